"""Object stores and HDFS, through any file system of `pyarrow.fs`.

`ObjectFiles` is for stores in which a file appears as a whole when it is closed: S3, Google Cloud
Storage, Azure. `RenamedFiles` is for all others, HDFS among them, where a file is there while it is
being written, and a rename does not replace another file.

What the store's library says goes into the text of an error without its secrets: some of them put
whole URLs into their texts, with signatures.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from txnlog_spark.errors import HIDDEN
from txnlog_spark.storage.files import Bytes

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_QUERY_STRING = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")
_UNFINISHED = ".new"


class StoreFailed(OSError):
    """A store refused, or did not answer; whether a write took place is not known."""


@dataclass(frozen=True)
class Store:
    """A store's root: `root` of a location is `inner_root` to the file system.

    `advice` is where to look when it refuses; `secrets` are kept out of all texts.
    """

    file_system: FileSystem
    root: str
    inner_root: str
    advice: str
    secrets: frozenset[str] = frozenset()

    def inner(self, path: str) -> str:
        """The file system's own name of a path."""
        return self.inner_root + path.removeprefix(self.root)

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Whatever a store's library raises, as StoreFailed."""
        try:
            yield
        except StoreFailed:
            raise
        except Exception as error:  # noqa: BLE001 - each library has exceptions of its own
            reason = without_secrets(error, self.secrets)
            raise StoreFailed(f"{doing}: {reason}. {self.advice}") from None


def without_secrets(error: Exception, secrets: frozenset[str]) -> str:
    """What a library says, on one line; the error itself must not be shown as a cause either."""
    text = " ".join(str(error).split()) or type(error).__name__
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _QUERY_STRING.sub(rf"\1?{HIDDEN}", text).rstrip(". ")


class ObjectFiles:
    """`Files` in a store whose objects are put as a whole."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, path: str) -> bytes | None:
        """An object's bytes; None without it, or without its bucket."""
        with self._store.errors("it cannot be read"):
            return self._content(self._store.inner(path))

    def read_range(self, path: str, position: int, size: int) -> bytes:
        """A part of an object."""
        store = self._store
        with store.errors("it cannot be read"), self._open(store.inner(path)) as file:
            return bytes(file.read_at(min(size, max(file.size() - position, 0)), position))

    def list_folder(self, path: str) -> tuple[str, ...]:
        """The names below a prefix, up to the next slash."""
        with self._store.errors("it cannot be listed"):
            return tuple(n for n in self._names(self._store.inner(path)) if not n.startswith("."))

    def list_folders(self, path: str) -> tuple[str, ...]:
        """What stands between a prefix and the next slash."""
        with self._store.errors("it cannot be listed"):
            return tuple(self._names(self._store.inner(path), folders=True))

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        """One put. A store that keeps an object keeps it safely, so `durable` is to read it back.

        That also tells what became of a put that failed: if the bytes are there, it took place.
        """
        inner = self._store.inner(path)
        try:
            with self._store.errors("it cannot be written"):
                self._replace(inner, data)
        except StoreFailed:
            if not self._holds(path, data):
                raise
            return
        if durable and not self._holds(path, data):
            raise StoreFailed(
                "it was written, and has other bytes when it is read back: another driver of this "
                "query writes it as well, or the store answers with old copies"
            )

    def open_output(self, path: str) -> ArrowOutput:
        """Begin an object."""
        return self._output(path, self._store.inner(path), lambda: None)

    def delete(self, path: str) -> None:
        """Delete an object."""
        with self._store.errors("it cannot be deleted"):
            self._delete(self._store.inner(path))

    def delete_folder(self, path: str) -> None:
        """Delete all objects below a prefix."""
        store = self._store
        with store.errors("it cannot be deleted"), contextlib.suppress(FileNotFoundError):
            store.file_system.delete_dir(store.inner(path))

    def _output(self, path: str, inner: str, named: Callable[[], None]) -> ArrowOutput:
        with self._store.errors("it cannot be written"):
            stream = self._store.file_system.open_output_stream(inner)
        return ArrowOutput(self._store, stream, lambda: self.delete(path), named)

    def _holds(self, path: str, data: bytes) -> bool:
        return self.read(path) == data

    def _open(self, inner: str) -> Any:
        return self._store.file_system.open_input_file(inner)

    def _content(self, inner: str) -> bytes | None:
        try:
            with self._open(inner) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def _names(self, inner: str, *, folders: bool = False) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        wanted = FileType.Directory if folders else FileType.File
        found = self._store.file_system.get_file_info(FileSelector(inner, allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == wanted)

    def _put(self, inner: str, data: bytes) -> None:
        with self._store.file_system.open_output_stream(inner) as stream:
            stream.write(data)

    def _replace(self, inner: str, data: bytes) -> None:
        self._put(inner, data)

    def _delete(self, inner: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._store.file_system.delete_file(inner)


class RenamedFiles(ObjectFiles):
    """`Files` in a file system where a file is seen while it is being written.

    A file is written beside, under a hidden name with the digest of its bytes, and then renamed,
    for which the old one is deleted first. A crash between these two leaves a whole file beside,
    and no other: it counts as the file, so that none is ever taken for absent.
    """

    def open_output(self, path: str) -> ArrowOutput:
        """Begin a file beside."""
        inner = self._store.inner(path)
        beside = _hidden(inner, "part")
        self._make_folder(inner)
        return self._output(
            path.removesuffix(PurePosixPath(inner).name) + PurePosixPath(beside).name,
            beside,
            lambda: self._store.file_system.move(beside, inner),
        )

    def _content(self, inner: str) -> bytes | None:
        plain = super()._content(inner)
        if plain is not None:
            return plain
        found = [data for data in map(super()._content, self._beside(inner)) if data is not None]
        whole = [data for data in found if _hidden(inner, _digest(data)) in self._beside(inner)]
        if len(whole) > 1:
            raise StoreFailed("two drivers write it at this moment")
        return whole[0] if whole else None

    def _holds(self, path: str, data: bytes) -> bool:
        """Under its own name: one that is still beside is not listed."""
        with self._store.errors("it cannot be read"):
            return super()._content(self._store.inner(path)) == data

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
        self._store.file_system.move(beside, inner)

    def _beside(self, inner: str) -> list[str]:
        folder, name = PurePosixPath(inner).parent, PurePosixPath(inner).name
        names: Iterable[str] = self._names(str(folder))
        begun = (n for n in names if n.startswith(f".{name}.") and n.endswith(_UNFINISHED))
        return [str(folder / each) for each in begun]

    def _make_folder(self, inner: str) -> None:
        self._store.file_system.create_dir(str(PurePosixPath(inner).parent), recursive=True)


class ArrowOutput:
    """An object that is there when it is closed, and `named` after that."""

    def __init__(
        self, store: Store, stream: Any, delete: Callable[[], None], named: Callable[[], None]
    ) -> None:
        self._store = store
        self._stream = stream
        self._delete = delete
        self._named = named

    def write(self, data: Bytes) -> None:
        """Add bytes; large objects are sent in parts."""
        with self._store.errors("it cannot be written"):
            self._stream.write(data)

    def close(self) -> None:
        """Complete the object."""
        with self._store.errors("it cannot be written"):
            self._stream.close()
            self._named()

    def abort(self) -> None:
        """Complete it and delete it: pyarrow knows no other way to end what it has begun.

        Nobody knows the object's name yet. Of a process that dies nothing is ever completed.
        """
        with contextlib.suppress(OSError), self._store.errors("it cannot be given up"):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._delete()


def _hidden(inner: str, mark: str) -> str:
    path = PurePosixPath(inner)
    return str(path.with_name(f".{path.name}.{mark}{_UNFINISHED}"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
