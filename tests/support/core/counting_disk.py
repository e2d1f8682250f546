"""A disk in memory that counts what is read of it."""

from __future__ import annotations

from simulation.hosts.disk import SimDisk


class CountingDisk(SimDisk):
    """`read_bytes` is by file."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes: dict[str, int] = {}

    def read(self, path: str, position: int, length: int) -> bytes:
        data = super().read(path, position, length)
        self.read_bytes[path] = self.read_bytes.get(path, 0) + len(data)
        return data

    def count(self, *, begins: str = "", ends: str = "") -> int:
        """Return the bytes read since the last call from files with such names."""
        counted = [n for path, n in self.read_bytes.items()
                   if path.startswith(begins) and path.endswith(ends)]  # fmt: skip
        self.read_bytes.clear()
        return sum(counted)
