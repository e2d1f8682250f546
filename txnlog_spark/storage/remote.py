"""What all remote stores have in common: errors without secrets, and writes that are read back.

What a store's library says goes into the text of an error without its secrets: some of them put
whole URLs into their texts, with signatures.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from txnlog_spark.errors import HIDDEN

SAID_MAX = 300
"""Characters: some libraries add the store's whole answer."""
_QUERY_STRING = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")


class StoreFailed(OSError):
    """A store refused, or did not answer; whether a write took place is not known."""


@dataclass(frozen=True)
class Place:
    """A store's root: `root` of a location is `inner_root` to the store's library.

    `advice` is where to look when it refuses; `secrets` are kept out of all texts.
    """

    root: str
    inner_root: str
    advice: str
    secrets: frozenset[str] = frozenset()

    def inner(self, path: str) -> str:
        """The library's own name of a path."""
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
    return _QUERY_STRING.sub(rf"\1?{HIDDEN}", text)[:SAID_MAX].rstrip(". ")


class RemoteFiles:
    """The part of `Files` that is the same for all stores; `inner` names are the library's."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self, path: str) -> bytes | None:
        """A file's bytes, None without it."""
        with self._place.errors("it cannot be read"):
            return self._content(self._place.inner(path))

    def list_folder(self, path: str) -> tuple[str, ...]:
        """The names below a path, up to the next slash."""
        with self._place.errors("it cannot be listed"):
            names = self._names(self._place.inner(path))
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def list_folders(self, path: str) -> tuple[str, ...]:
        """What stands between a path and the next slash."""
        with self._place.errors("it cannot be listed"):
            return tuple(sorted(self._names(self._place.inner(path), folders=True)))

    def write(self, path: str, data: bytes, *, durable: bool) -> None:
        """One put. A store that has a file keeps it safely, so `durable` is to read it back.

        That also tells what became of a put that failed: if the bytes are there, it took place.
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
        """Do nothing: what can be read from a store is safe there."""

    def delete(self, path: str) -> None:
        """Delete a file, if there is one."""
        with self._place.errors("it cannot be deleted"):
            self._delete(self._place.inner(path))

    def _holds(self, inner: str, data: bytes) -> bool:
        with self._place.errors("it cannot be read"):
            return self._content(inner) == data

    @abstractmethod
    def _content(self, inner: str) -> bytes | None:
        """A file's bytes, None without it."""

    @abstractmethod
    def _names(self, inner: str, *, folders: bool = False) -> list[str]:
        """The names of the files in a folder, hidden ones too; or those of the folders in it."""

    @abstractmethod
    def _replace(self, inner: str, data: bytes) -> None:
        """Put a file as a whole."""

    @abstractmethod
    def _delete(self, inner: str) -> None:
        """Delete a file, if there is one."""
