"""S3, Google Cloud Storage and HDFS, through the file systems of `pyarrow.fs`.

`ObjectFiles` is for stores where a file appears as a whole when it is closed: S3 and Google Cloud
Storage. `RenamedFiles` is for all other stores, such as HDFS. There a file is visible while it is
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
"""Name of Google Cloud Storage in Arrow. Its client lists a folder only if an object represents the
folder, and the connector writes no such objects."""
LOOKS = 3
"""Number of reads of a file that is absent or changes. A driver replaces a file once a batch, so
more reads are not needed."""


class ObjectFiles(RemoteFiles):
    """`Files` in a store that puts each object as a whole."""

    def __init__(self, file_system: FileSystem, place: Place) -> None:
        super().__init__(place)
        self._file_system = file_system

    def read_range(self, path: str, position: int, size: int) -> bytes:
        """Return a part of an object."""
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
                with contextlib.suppress(FileNotFoundError):  # no object represents the folder
                    self._file_system.delete_dir(inner)

    def _open(self, inner: str) -> Any:
        return self._file_system.open_input_file(inner)

    def _content(self, inner: str) -> bytes | None:
        """Return the bytes of an object, None if it does not exist.

        Pyarrow first asks for the size and then reads that many bytes. If a longer object replaces
        this one in between, pyarrow returns only a part, so the size is compared afterwards.
        """
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

    def _replace(self, inner: str, data: bytes) -> None:
        with self._file_system.open_output_stream(inner) as stream:
            stream.write(data)

    def _delete(self, inner: str) -> None:
        # The file may never have been written, or another driver deleted it: it is gone, as wanted.
        with contextlib.suppress(FileNotFoundError):
            self._file_system.delete_file(inner)


class RenamedFiles(ObjectFiles):
    """`Files` in a file system where a file is visible while it is being written.

    A file is first written next to its place, under a hidden and unique name with the digest of its
    bytes. Then the old file is deleted, and the new file is renamed. If a crash comes between these
    two steps, no file has the name, but hidden whole files exist. Then the newest hidden file
    counts as the file, so a file is never reported absent by mistake.

    A driver never deletes the hidden files of another driver, which may be about to rename them. A
    driver deletes its own hidden file if it could not finish it.
    """

    def open_output(self, path: str) -> ArrowOutput:
        """Begin a file under a hidden name; closing it renames it."""
        inner = self._place.inner(path)
        beside = _beside(inner, "part")
        with self._place.errors("it cannot be written"):
            self._make_folder(inner)
        move = self._file_system.move
        return ArrowOutput(self._file_system, self._place, beside, lambda: move(beside, inner))

    def _content(self, inner: str) -> bytes | None:
        """Return the file's bytes. Try several times: the file may be renamed between two looks."""
        for _ in range(LOOKS):
            found = super()._content(inner)
            if found is None:
                found = self._newest_beside(inner)
            if found is not None:
                return found
        return None

    def _holds(self, inner: str, data: bytes) -> bool:
        """True if the file has these bytes under its own name: a hidden file is not listed."""
        with self._place.errors("it cannot be read"):
            return super()._content(inner) == data

    def _replace(self, inner: str, data: bytes) -> None:
        """Replace a file, unless it already has these bytes.

        A file that other processes may list must not vanish. So the same bytes are not written
        again, and a rename never deletes a file that another driver wrote first.
        """
        old = super()._content(inner)
        if old == data:
            return
        self._make_folder(inner)
        beside = _beside(inner, _digest(data))
        try:
            super()._replace(beside, data)
        except BaseException:
            # The part has another digest than its name, so readers ignore it if it stays. The
            # error to show is the error of the write, not of this deletion.
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
        """Return the hidden files of a file, newest first, finished or not; the time is in the
        name."""
        folder, name = PurePosixPath(inner).parent, PurePosixPath(inner).name
        begun = (n for n in self._names(str(folder)) if n.startswith(f".{name}."))
        return [str(folder / n) for n in sorted(begun, reverse=True) if n.endswith(_UNFINISHED)]

    def _make_folder(self, inner: str) -> None:
        self._file_system.create_dir(str(PurePosixPath(inner).parent), recursive=True)


class ArrowOutput:
    """Object that appears when it is closed; then `named` is called."""

    def __init__(
        self, file_system: FileSystem, place: Place, inner: str, named: Callable[[], None]
    ) -> None:
        """Begin the object. Raises StoreFailed."""
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
        """Complete the object, and call `named`."""
        with self._place.errors("it cannot be written"):
            self._stream.close()
            self._named()

    def abort(self) -> None:
        """Complete the object and delete it: pyarrow has no other way to end a write.

        No other process knows the object's name yet. If the process dies, the object is never
        completed.
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
