"""The same test for every kind of store: a disk, an S3-compatible server, and one that renames."""

from __future__ import annotations

import errno
import itertools
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.stores.object_store import ObjectStore
from support.stores.store_contract import CHECKS

from txnlog_spark.storage.arrow import ObjectFiles, RenamedFiles
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.file_store import Files
from txnlog_spark.storage.local import LocalFiles, write_atomically
from txnlog_spark.storage.location import read_location
from txnlog_spark.storage.options import STORAGE_PREFIX

_numbers = itertools.count()
KINDS = {"disk": LocalFiles, "s3a": ObjectFiles, "memory": RenamedFiles}


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        yield made


def settings_of(store: ObjectStore) -> StorageSettings:
    given = {name.removeprefix(STORAGE_PREFIX): value for name, value in store.options().items()}
    return StorageSettings({**StorageSettings().values, **given})


@pytest.fixture(params=KINDS)
def place(request, store: ObjectStore, tmp_path: Path) -> tuple[Files, str]:
    """Return the files of a kind of store, and the location of an unused folder."""
    name = f"folder-{next(_numbers)}"
    text = {
        "disk": str(tmp_path / name),
        "s3a": store.location(name),
        "memory": f"memory://{name}/checkpoint",
    }[request.param]
    location = read_location("option", text)
    files = open_files("option", location, settings_of(store))
    assert isinstance(files, KINDS[request.param])
    assert location.text == text
    return files, text


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_store_does_the_same(place: tuple[Files, str], check: Callable[..., None]) -> None:
    check(*place)


@pytest.fixture
def no_large_files() -> Iterator[None]:
    """A file of more than 1,000 bytes is refused while it is written, as a full disk does it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_large_files: None, step: str
) -> None:
    path = tmp_path / "attempt.json"
    path.write_bytes(b"old")
    if step != "write":
        monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), refuse)
    for _ in range(3):
        with pytest.raises(OSError, match=r"File too large|No space left"):
            write_atomically(path, bytes(2000 if step == "write" else 10))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_write_that_fails_says_why_although_what_is_beside_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(Path, "unlink", forbid)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "attempt.json", b"new")


def test_two_writers_of_one_process_id_never_share_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers in two containers may have the same process id and share a volume."""
    path, flush = tmp_path / "attempt.json", os.fsync

    def flush_while_another_writes(descriptor: int) -> None:
        monkeypatch.setattr("txnlog_spark.storage.local.os.fsync", flush)
        write_atomically(path, b"of another, and longer")
        flush(descriptor)

    monkeypatch.setattr("txnlog_spark.storage.local.os.fsync", flush_while_another_writes)
    write_atomically(path, b"of one")
    assert path.read_bytes() == b"of one"

    one, another = (LocalFiles().open_output(str(path)) for _ in range(2))
    one.write(b"staged by one")
    another.write(b"staged by another")
    one.close()
    assert path.read_bytes() == b"staged by one"
    another.close()
    assert path.read_bytes() == b"staged by another"
    assert list(tmp_path.iterdir()) == [path]
