"""What the connector does with files, whatever store they are in.

A path is a `Location`'s text, or one below it. There is no rename here and no conditional write:
the commit protocol needs neither (docs/internals/commit-protocol.md), and not every store has
them. What cannot be done raises OSError, whose text has no secrets; a missing file is not an error.
"""

from __future__ import annotations

from typing import Protocol

Bytes = bytes | bytearray | memoryview


class FileWriter(Protocol):
    """A file that is being written. It is there under its name once it is closed, never before.

    Nothing is flushed: after a loss of power a closed file may be gone or torn.
    """

    def write(self, data: Bytes) -> None:
        """Add bytes. Raises OSError."""

    def close(self) -> None:
        """Make the whole file visible. Raises OSError: then it may be, or not."""

    def abort(self) -> None:
        """Leave no file behind. An error that comes up on the way is of no interest."""


class Files(Protocol):
    """One file system, as this process reaches it."""

    def read(self, path: str) -> bytes | None:
        """All of a file, None where there is none. Raises OSError."""

    def read_range(self, path: str, position: int, size: int) -> bytes | bytearray:
        """`size` bytes from `position` on, fewer at the file's end. Raises OSError."""

    def list_folder(self, path: str) -> tuple[str, ...]:
        """The names of the files in a folder, in order; () where there is none. Raises OSError.

        Names that begin with a dot are left out: files that are not written to their end.
        """

    def list_folders(self, path: str) -> tuple[str, ...]:
        """The names of the folders in a folder, in order; () where there is none. Raises
        OSError."""

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        """Replace a file as a whole; a reader finds the old bytes or the new ones.

        With `durable` the new ones are safe, and were read back where the store is remote, when
        this returns. After OSError it is not known whether the write took place.
        """

    def flush(self, path: str) -> None:
        """Make a file safe that another process has written whole; nothing without the file.

        Raises OSError.
        """

    def open_output(self, path: str) -> FileWriter:
        """Begin a file that nobody else writes. Raises OSError."""

    def delete(self, path: str) -> None:
        """Delete a file, if there is one. Raises OSError."""

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all below it, if there is one. Raises OSError."""
