"""One body for every kind of store: a disk, an S3-compatible server, and one that renames."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.object_store import ObjectStore
from support.store_contract import CHECKS

from txnlog_spark.storage.arrow import ObjectFiles, RenamedFiles
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.files import Files
from txnlog_spark.storage.local import LocalFiles
from txnlog_spark.storage.location import read_location
from txnlog_spark.storage_options import STORAGE_PREFIX

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
    """The files, and the text of a folder that nobody has used."""
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
