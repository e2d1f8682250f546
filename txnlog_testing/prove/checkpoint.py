"""Files of the checkpoints of a job under test: what is taken out, lost or put back.

A job gets one folder and may keep the checkpoints of several queries in it: each folder with
`offsets` is one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

OFFSETS, COMMITS = "offsets", "commits"


class Checkpoints:
    """Checkpoints below one folder of the local file system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def found(self, files: str) -> set[Path]:
        """Return the files of all queries that a pattern names, without those being written."""
        return {p for p in self.root.glob(f"**/{files}") if not p.name.startswith(".")}

    def folders(self) -> list[Path]:
        """Return the checkpoint of each query."""
        return sorted(path.parent for path in self.root.glob(f"**/{OFFSETS}"))

    def take_last(self, log: str) -> list[str]:
        """Remove the last entry of this log of each query, and return their names."""
        taken = []
        for folder in self.folders():
            numbers = [int(path.name) for path in (folder / log).glob("[0-9]*")]
            if numbers:
                _remove_entry(folder / log / str(max(numbers)))
                taken.append(f"{log}/{max(numbers)}")
        return taken

    def back_up(self, into: Path) -> None:
        """Copy all; a job that has not run has nothing to copy."""
        if self.root.exists():
            shutil.copytree(self.root, into)
        else:
            into.mkdir(parents=True)

    def restore(self, backup: Path) -> None:
        """Put a copy in the place of what is there."""
        shutil.rmtree(self.root)
        shutil.copytree(backup, self.root)


def _remove_entry(path: Path) -> None:
    """Remove an entry with the checksum that Hadoop keeps beside it."""
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
