"""Location of files in Spark's notation: a path, or a URI of a Hadoop file system."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from txnlog_spark.errors import OptionError

LOCAL = "file"
S3 = ("s3a", "s3", "s3n")
AZURE = ("abfss", "abfs")
GCS = "gs"
HDFS = ("hdfs", "viewfs")
_SLASHES = re.compile(r"/+")


@dataclass(frozen=True, slots=True)
class Location:
    """Folder. `text` names it in messages, and paths below it begin with this text.

    `root` is the part of the text before the path, "" for a local folder. `is_bare` is true if the
    user wrote no scheme: then Spark may mean another file system.
    """

    scheme: str
    authority: str
    path: str
    is_bare: bool = False

    @property
    def root(self) -> str:
        """Scheme and authority, as the user wrote them."""
        return "" if self.scheme == LOCAL else f"{self.scheme}://{self.authority}"

    @property
    def text(self) -> str:
        """Whole name; a plain path for a local folder."""
        return self.root + self.path

    @property
    def normal_root(self) -> str:
        """`root`, the same for all spellings of one store."""
        if self.scheme == LOCAL:
            return ""
        family = next((each for each in (S3, AZURE) if self.scheme in each), (self.scheme,))
        return f"{family[0]}://{self.authority.lower()}"

    @property
    def normal(self) -> str:
        """Normal form, the same for all spellings; a local path has its symbolic links resolved."""
        if self.scheme == LOCAL:
            return str(Path(self.path).resolve())
        return self.normal_root + self.path

    @property
    def local(self) -> Path | None:
        """Path on this machine; None for a remote folder."""
        return Path(self.path) if self.scheme == LOCAL else None

    def __truediv__(self, name: str) -> Location:
        """Return the folder of this name in this folder."""
        return Location(self.scheme, self.authority, f"{self.path}/{name}", self.is_bare)

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def read_location(option: str, text: str) -> Location:
    """Parse a location like Hadoop's `Path`, without decoding. Raises OptionError.

    For example, `file:/a%20b` is a directory with a percent sign, and Spark writes its checkpoint
    there.
    """
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        return Location(LOCAL, "", str(Path(text).absolute()), is_bare=True)
    scheme = scheme.lower()
    if scheme == LOCAL:
        return _local(option, text, rest)
    if scheme == "dbfs":
        raise OptionError(
            option, text, "the path where it is mounted, such as /Volumes/... or /dbfs/..."
        )
    authority, path = "", rest
    if rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
    path = _SLASHES.sub("/", f"/{path}").rstrip("/")
    owner, is_owned, _ = authority.rpartition("@")
    if ":" in owner:
        raise OptionError(option, None, f"a {scheme} location without a password in it")
    is_whole = bool(authority) or scheme in HDFS
    if not rest.startswith("/") or not is_whole or (scheme in AZURE and not is_owned):
        raise OptionError(option, text, f"{scheme}://, then {_authority_of(scheme)}, then a path")
    if {".", ".."} & set(path.split("/")):
        raise OptionError(option, text, "the same path without . and .. in it")
    return Location(scheme, authority, path)


def _local(option: str, text: str, rest: str) -> Location:
    path = rest.removeprefix("//localhost") if rest.startswith("//localhost/") else rest
    if not path.startswith("/") or (path.startswith("//") and not path.startswith("///")):
        raise OptionError(option, text, "file: and the absolute path of a directory")
    return Location(LOCAL, "", str(Path("/" + path.lstrip("/"))))


def _authority_of(scheme: str) -> str:
    if scheme in AZURE:
        return "CONTAINER@ACCOUNT.dfs.core.windows.net"
    return "the bucket" if scheme in (*S3, GCS) else "the store's name"
