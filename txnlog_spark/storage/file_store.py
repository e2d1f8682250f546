"""Operations of the connector on files, the same for every store.

A path is the text of a `Location`, or of a folder or file below it. There are no renames and no
conditional writes: the commit protocol does not need them (docs/internals/commit-protocol.md), and
some stores lack them. An operation that fails raises OSError, whose text has no secrets. A missing
file is not an error.
"""

from __future__ import annotations

from typing import Protocol

Bytes = bytes | bytearray | memoryview


class FileWriter(Protocol):
    """File that is being written. It appears under its name when it is closed, never earlier.

    The file is not flushed: after a power failure a closed file may be lost or torn.
    """

    def write(self, data: Bytes) -> None:
        """Add bytes. Raises OSError."""

    def close(self) -> None:
        """Make the whole file visible. After OSError the file may or may not be visible."""

    def abort(self) -> None:
        """Leave no file behind. Errors on the way are ignored."""


class Files(Protocol):
    """File system, as this process reaches it."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file, None if it does not exist. Raises OSError."""

    def read_range(self, path: str, position: int, size: int) -> bytes | bytearray:
        """Return `size` bytes from `position` on, fewer at the file's end. Raises OSError."""

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the sorted names of the files in a folder, () if it does not exist. Raises
        OSError.

        Names that begin with a dot are left out: such files are unfinished.
        """

    def list_folders(self, path: str) -> tuple[str, ...]:
        """Return the sorted names of the folders in a folder, () if it does not exist. Raises
        OSError."""

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        """Replace a file as a whole; a reader sees the old bytes or the new bytes.

        With `durable`, the new bytes are safe when this returns; a remote store has also sent them
        back for comparison. After OSError the write may or may not have happened.
        """

    def flush(self, path: str) -> None:
        """Flush a file that another process has written; do nothing if it does not exist.

        Raises OSError.
        """

    def open_output(self, path: str) -> FileWriter:
        """Begin a file that no other process writes. Raises OSError."""

    def delete(self, path: str) -> None:
        """Delete a file, if there is one. Raises OSError."""

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all below it, if there is one. Raises OSError."""
