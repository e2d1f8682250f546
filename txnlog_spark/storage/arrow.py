"""S3, Google Cloud Storage and HDFS, through the file systems of `pyarrow.fs`.

`ObjectFiles` is for stores in which a file appears as a whole when it is closed: S3 and Google
Cloud Storage. `RenamedFiles` is for all others, HDFS among them, where a file is there while it is
being written, and a rename does not replace another file.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from txnlog_spark.storage.files import Bytes
from txnlog_spark.storage.remote import Place, RemoteFiles, StoreFailed

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_UNFINISHED = ".new"


class ObjectFiles(RemoteFiles):
    """`Files` in a store whose objects are put as a whole."""

    def __init__(self, file_system: FileSystem, place: Place) -> None:
        super().__init__(place)
        self._file_system = file_system

    def read_range(self, path: str, position: int, size: int) -> bytes:
        """A part of an object."""
        place = self._place
        with place.errors("it cannot be read"), self._open(place.inner(path)) as file:
            return bytes(file.read_at(min(size, max(file.size() - position, 0)), position))

    def open_output(self, path: str) -> ArrowOutput:
        """Begin an object."""
        inner = self._place.inner(path)
        return ArrowOutput(self._file_system, self._place, inner, lambda: None)

    def delete_folder(self, path: str) -> None:
        """Delete all objects below a prefix."""
        from pyarrow.fs import FileType

        inner = self._place.inner(path)
        with self._place.errors("it cannot be deleted"):
            if self._file_system.get_file_info(inner).type == FileType.Directory:
                with contextlib.suppress(FileNotFoundError):  # of an object for the folder itself
                    self._file_system.delete_dir(inner)

    def _open(self, inner: str) -> Any:
        return self._file_system.open_input_file(inner)

    def _content(self, inner: str) -> bytes | None:
        try:
            with self._open(inner) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def _names(self, inner: str, *, folders: bool = False) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        wanted = FileType.Directory if folders else FileType.File
        found = self._file_system.get_file_info(FileSelector(inner, allow_not_found=True))
        return [each.base_name for each in found if each.type == wanted]

    def _put(self, inner: str, data: bytes) -> None:
        with self._file_system.open_output_stream(inner) as stream:
            stream.write(data)

    def _replace(self, inner: str, data: bytes) -> None:
        self._put(inner, data)

    def _delete(self, inner: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file_system.delete_file(inner)


class RenamedFiles(ObjectFiles):
    """`Files` in a file system where a file is seen while it is being written.

    A file is written beside, under a hidden name with the digest of its bytes, and then renamed,
    for which the old one is deleted first. A crash between these two leaves a whole file beside,
    and no other: it counts as the file, so that none is ever taken for absent.
    """

    def open_output(self, path: str) -> ArrowOutput:
        """Begin a file beside."""
        inner = self._place.inner(path)
        beside = _hidden(inner, "part")
        with self._place.errors("it cannot be written"):
            self._make_folder(inner)
        move = self._file_system.move
        return ArrowOutput(self._file_system, self._place, beside, lambda: move(beside, inner))

    def _content(self, inner: str) -> bytes | None:
        plain = super()._content(inner)
        if plain is not None:
            return plain
        found = [data for data in map(super()._content, self._beside(inner)) if data is not None]
        whole = [data for data in found if _hidden(inner, _digest(data)) in self._beside(inner)]
        if len(whole) > 1:
            raise StoreFailed("two drivers write it at this moment")
        return whole[0] if whole else None

    def _holds(self, inner: str, data: bytes) -> bool:
        """Under its own name: one that is still beside is not listed."""
        with self._place.errors("it cannot be read"):
            return super()._content(inner) == data

    def _replace(self, inner: str, data: bytes) -> None:
        if super()._content(inner) == data:
            return  # a file that may be listed must not vanish for a moment
        self._make_folder(inner)
        beside = _hidden(inner, _digest(data))
        self._put(beside, data)
        for other in self._beside(inner):
            if other != beside:
                self._delete(other)
        self._delete(inner)
        self._file_system.move(beside, inner)

    def _beside(self, inner: str) -> list[str]:
        folder, name = PurePosixPath(inner).parent, PurePosixPath(inner).name
        begun = (
            n
            for n in self._names(str(folder))
            if n.startswith(f".{name}.") and n.endswith(_UNFINISHED)
        )
        return [str(folder / each) for each in begun]

    def _make_folder(self, inner: str) -> None:
        self._file_system.create_dir(str(PurePosixPath(inner).parent), recursive=True)


class ArrowOutput:
    """An object that is there when it is closed, and `named` after that."""

    def __init__(
        self, file_system: FileSystem, place: Place, inner: str, named: Callable[[], None]
    ) -> None:
        """Raises StoreFailed."""
        self._file_system = file_system
        self._place = place
        self._inner = inner
        self._named = named
        with place.errors("it cannot be written"):
            self._stream = file_system.open_output_stream(inner)

    def write(self, data: Bytes) -> None:
        """Add bytes; large objects are sent in parts."""
        with self._place.errors("it cannot be written"):
            self._stream.write(data)

    def close(self) -> None:
        """Complete the object."""
        with self._place.errors("it cannot be written"):
            self._stream.close()
            self._named()

    def abort(self) -> None:
        """Complete it and delete it: pyarrow knows no other way to end what it has begun.

        Nobody knows the object's name yet. Of a process that dies nothing is ever completed.
        """
        with contextlib.suppress(OSError), self._place.errors("it cannot be given up"):
            self._stream.close()
        with contextlib.suppress(OSError), self._place.errors("it cannot be given up"):
            self._file_system.delete_file(self._inner)


def _hidden(inner: str, mark: str) -> str:
    path = PurePosixPath(inner)
    return str(path.with_name(f".{path.name}.{mark}{_UNFINISHED}"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
