"""Common parts of all remote stores: errors without secrets, and writes that are read back.

An error's text contains the text of the store's library, with secrets removed: some libraries put
whole URLs with signatures into their texts.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from txnlog_spark.errors import HIDDEN

SAID_MAX = 300
"""Longest text of a library that an error repeats, in characters: some libraries add the store's
whole answer."""
_QUERY_STRING = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")


class StoreFailed(OSError):
    """A store refused or did not answer. After a failed write, the bytes may or may not be
    there."""


@dataclass(frozen=True)
class Place:
    """Root of a store: `root` is its spelling in a location, `inner_root` its spelling in the
    library.

    `advice` says where to look if the store refuses; `secrets` are removed from all texts.
    """

    root: str
    inner_root: str
    advice: str
    secrets: frozenset[str] = frozenset()

    def inner(self, path: str) -> str:
        """Return the library's name of a path."""
        return self.inner_root + path.removeprefix(self.root)

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn every error of a store's library into StoreFailed."""
        try:
            yield
        except StoreFailed:
            raise
        except Exception as error:  # noqa: BLE001 - each library has exceptions of its own
            reason = without_secrets(error, self.secrets)
            raise StoreFailed(f"{doing}: {reason}. {self.advice}") from None


def without_secrets(error: Exception, secrets: frozenset[str]) -> str:
    """Return a library's error text on one line, without secrets. Do not chain the error itself:
    its traceback would show the secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _QUERY_STRING.sub(rf"\1?{HIDDEN}", text)[:SAID_MAX].rstrip(". ")


class RemoteFiles:
    """Part of `Files` that is the same for all stores; `inner` names are the library's names."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if it does not exist."""
        with self._place.errors("it cannot be read"):
            return self._content(self._place.inner(path))

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names of the files below a path, up to the next slash."""
        with self._place.errors("it cannot be listed"):
            names = self._names(self._place.inner(path))
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def list_folders(self, path: str) -> tuple[str, ...]:
        """Return the names of the folders below a path, up to the next slash."""
        with self._place.errors("it cannot be listed"):
            return tuple(sorted(self._names(self._place.inner(path), folders=True)))

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        """Put a file. A store keeps its files safe, so `durable` only means to read the file back.

        If the put fails, reading back also shows whether it happened: if the bytes are there, the
        write succeeded.
        """
        inner = self._place.inner(path)
        try:
            with self._place.errors("it cannot be written"):
                self._replace(inner, data)
        except StoreFailed:
            if not self._holds(inner, data):
                raise
            return
        if durable and not self._holds(inner, data):
            raise StoreFailed(
                "it was written, and has other bytes when it is read back: another driver of this "
                "query writes it as well, or the store answers with old copies"
            )

    def flush(self, path: str) -> None:
        """Do nothing: a file that can be read from a store is safe."""

    def delete(self, path: str) -> None:
        """Delete a file, if there is one."""
        with self._place.errors("it cannot be deleted"):
            self._delete(self._place.inner(path))

    def _holds(self, inner: str, data: bytes) -> bool:
        with self._place.errors("it cannot be read"):
            return self._content(inner) == data

    @abstractmethod
    def _content(self, inner: str) -> bytes | None:
        """Return a file's bytes, None if it does not exist."""

    @abstractmethod
    def _names(self, inner: str, *, folders: bool = False) -> list[str]:
        """Return the names of the files in a folder, hidden files too, or of its folders."""

    @abstractmethod
    def _replace(self, inner: str, data: bytes) -> None:
        """Put a file as a whole."""

    @abstractmethod
    def _delete(self, inner: str) -> None:
        """Delete a file, if there is one."""
