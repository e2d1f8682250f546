"""S3, Google Cloud Storage and HDFS, through the file systems of `pyarrow.fs`.

`ObjectFiles` is for stores in which a file appears as a whole when it is closed: S3 and Google
Cloud Storage. `RenamedFiles` is for all others, HDFS among them, where a file is there while it is
being written, and a rename does not replace another file.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from txnlog_spark.storage.file_store import Bytes
from txnlog_spark.storage.remote import Place, RemoteFiles, StoreFailed

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_UNFINISHED = ".new"
_GCS = "gcs"
"""Arrow's client of it lists a folder only where an object stands for it, which ours have not."""
LOOKS = 3
"""At a file that is absent or changes: a driver replaces one once a batch, not more often."""


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
        """Pyarrow asks for the size and then for so many bytes: of a longer object that was put in
        between it would get a part."""
        for _ in range(LOOKS):
            try:
                with self._open(inner) as file:
                    data = bytes(file.read())
            except FileNotFoundError:
                return None
            if self._file_system.get_file_info(inner).size == len(data):
                return data
        raise StoreFailed("it was replaced again and again while it was read")

    def _names(self, inner: str, *, folders: bool = False) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        if folders and self._file_system.type_name == _GCS:
            below = FileSelector(inner, allow_not_found=True, recursive=True)
            paths = [each.path for each in self._file_system.get_file_info(below)]
            parts = [path.removeprefix(f"{inner}/").partition("/") for path in paths]
            return list({name for name, slash, _ in parts if slash})
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

    A file is written beside, under a hidden name of its own with the digest of its bytes, and then
    renamed, for which the old one is deleted first. A crash between these two leaves whole files
    beside, and none under the name: then the newest of them counts as the file, so that none is
    ever taken for absent. Nobody deletes what another driver has beside, which may be about to
    rename it; a driver deletes its own that it could not write to the end.
    """

    def open_output(self, path: str) -> ArrowOutput:
        """Begin a file beside."""
        inner = self._place.inner(path)
        beside = _beside(inner, "part")
        with self._place.errors("it cannot be written"):
            self._make_folder(inner)
        move = self._file_system.move
        return ArrowOutput(self._file_system, self._place, beside, lambda: move(beside, inner))

    def _content(self, inner: str) -> bytes | None:
        """Looked for more than once: it may have been renamed between two looks."""
        for _ in range(LOOKS):
            found = super()._content(inner)
            if found is None:
                found = self._newest_beside(inner)
            if found is not None:
                return found
        return None

    def _holds(self, inner: str, data: bytes) -> bool:
        """Under its own name: one that is still beside is not listed."""
        with self._place.errors("it cannot be read"):
            return super()._content(inner) == data

    def _replace(self, inner: str, data: bytes) -> None:
        """A file that may be listed must not vanish: it is not replaced by the same bytes, and a
        new one's rename deletes none that another driver was first to write."""
        old = super()._content(inner)
        if old == data:
            return
        self._make_folder(inner)
        beside = _beside(inner, _digest(data))
        try:
            self._put(beside, data)
        except BaseException:
            # Part of a file, which nobody takes for it. The error of the write is the one to show.
            with contextlib.suppress(OSError), self._place.errors("it cannot be given up"):
                super()._delete(beside)
            raise
        if old is not None:
            super()._delete(inner)
        self._file_system.move(beside, inner)

    def _delete(self, inner: str) -> None:
        for beside in self._all_beside(inner):
            super()._delete(beside)
        super()._delete(inner)

    def _newest_beside(self, inner: str) -> bytes | None:
        for beside in self._all_beside(inner):
            found = super()._content(beside)
            if found is not None and _digest(found) in beside:
                return found
        return None

    def _all_beside(self, inner: str) -> list[str]:
        """The names of whole and unfinished ones, the newest first: the time is in the name."""
        folder, name = PurePosixPath(inner).parent, PurePosixPath(inner).name
        begun = (n for n in self._names(str(folder)) if n.startswith(f".{name}."))
        return [str(folder / n) for n in sorted(begun, reverse=True) if n.endswith(_UNFINISHED)]

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


def _beside(inner: str, mark: str) -> str:
    path, now_ns = PurePosixPath(inner), time.time_ns()
    name = f".{path.name}.{now_ns:020}-{uuid.uuid4().hex[:8]}-{mark}{_UNFINISHED}"
    return str(path.with_name(name))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
