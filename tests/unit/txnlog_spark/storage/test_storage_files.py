"""One body for every kind of store: a disk, an S3-compatible server, and one that renames."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.object_store import ObjectStore

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


def test_a_file_is_read_as_it_was_written_last(place: tuple[Files, str]) -> None:
    files, folder = place
    path = f"{folder}/txnlog/attempt.json"
    assert files.read(path) is None
    for data, durable in ((b"one", True), (b"and two", False), (b"", True), (b"x" * 3000, True)):
        files.write(path, data, durable=durable)
        assert files.read(path) == data
    assert files.read_range(path, 2998, 10) == b"xx"
    assert files.read_range(path, 1, 2) == b"xx"


def test_a_folder_has_the_names_of_its_files_in_order(place: tuple[Files, str]) -> None:
    files, folder = place
    assert files.list_folder(f"{folder}/ids") == ()
    names = ["b.json", "a.json", "ä b%20c.json"]
    for name in names:
        files.write(f"{folder}/ids/{name}", b"1", durable=True)
        files.write(f"{folder}/ids/{name}", b"2", durable=True)
    assert files.list_folder(f"{folder}/ids") == tuple(sorted(names))
    assert files.list_folder(f"{folder}/id") == ()


def test_what_is_deleted_is_gone_and_may_be_gone_before(place: tuple[Files, str]) -> None:
    files, folder = place
    for name in ("a/1", "a/b/2", "c"):
        files.write(f"{folder}/{name}", b"1", durable=False)
    files.delete(f"{folder}/c")
    files.delete(f"{folder}/c")
    files.delete_folder(f"{folder}/a")
    files.delete_folder(f"{folder}/a")
    found = [files.read(f"{folder}/{name}") for name in ("a/1", "a/b/2", "c")]
    assert found == [None, None, None]


def test_an_output_is_there_when_it_is_closed(place: tuple[Files, str]) -> None:
    files, folder = place
    path = f"{folder}/staged/one.staged"
    output = files.open_output(path)
    for part in (b"abc", bytearray(b"def"), memoryview(b"ghi")):
        output.write(part)
        assert files.read(path) is None
    assert files.list_folder(f"{folder}/staged") == ()
    output.close()
    assert files.list_folder(f"{folder}/staged") == ("one.staged",)
    assert files.read_range(path, 2, 5) == b"cdefg"


def test_a_given_up_output_leaves_nothing(place: tuple[Files, str]) -> None:
    files, folder = place
    path = f"{folder}/staged/one.staged"
    output = files.open_output(path)
    output.write(b"abc")
    output.abort()
    assert files.read(path) is None
    assert files.list_folder(f"{folder}/staged") == ()


def test_what_cannot_be_read_is_an_error_and_not_absent(place: tuple[Files, str]) -> None:
    files, folder = place
    with pytest.raises(OSError, match=r"no|No|not|find"):
        files.read_range(f"{folder}/none", 0, 10)
