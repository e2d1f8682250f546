"""Bodies of tests of what every store does; each takes `Files` and a folder that no test has
used."""

from __future__ import annotations

import pytest

from txnlog_spark.storage.file_store import Files


def a_file_is_read_as_it_was_written_last(files: Files, folder: str) -> None:
    path = f"{folder}/txnlog/attempt.json"
    assert files.read(path) is None
    for data, durable in ((b"one", True), (b"and two", False), (b"", True), (b"x" * 3000, True)):
        files.write(path, data, durable=durable)
        assert files.read(path) == data
    assert files.read_range(path, 2998, 10) == b"xx"
    assert files.read_range(path, 1, 2) == b"xx"


def a_folder_has_the_names_of_its_files_in_order(files: Files, folder: str) -> None:
    assert files.list_folder(f"{folder}/ids") == ()
    names = ["b.json", "a.json", "ä b%20c.json"]
    for name in names:
        files.write(f"{folder}/ids/{name}", b"1", durable=True)
        files.write(f"{folder}/ids/{name}", b"2", durable=True)
    assert files.list_folder(f"{folder}/ids") == tuple(sorted(names))
    assert files.list_folder(f"{folder}/id") == ()


def a_folder_has_the_names_of_its_folders(files: Files, folder: str) -> None:
    assert files.list_folders(folder) == ()
    for name in ("b/1/x", "a/1/x", "a/2/x", "c"):
        files.write(f"{folder}/{name}", b"1", durable=False)
    assert files.list_folders(folder) == ("a", "b")
    assert files.list_folders(f"{folder}/a") == ("1", "2")


def what_is_deleted_is_gone_and_may_be_gone_before(files: Files, folder: str) -> None:
    for name in ("a/1", "a/b/2", "c"):
        files.write(f"{folder}/{name}", b"1", durable=False)
    files.delete(f"{folder}/c")
    files.delete(f"{folder}/c")
    files.delete_folder(f"{folder}/a")
    files.delete_folder(f"{folder}/a")
    found = [files.read(f"{folder}/{name}") for name in ("a/1", "a/b/2", "c")]
    assert found == [None, None, None]


def an_output_is_there_when_it_is_closed(files: Files, folder: str) -> None:
    path = f"{folder}/staged/one.staged"
    output = files.open_output(path)
    for part in (b"abc", bytearray(b"def"), memoryview(b"ghi")):
        output.write(part)
        assert files.read(path) is None
    assert files.list_folder(f"{folder}/staged") == ()
    output.close()
    assert files.list_folder(f"{folder}/staged") == ("one.staged",)
    assert files.read_range(path, 2, 5) == b"cdefg"


def a_given_up_output_leaves_nothing(files: Files, folder: str) -> None:
    path = f"{folder}/staged/one.staged"
    output = files.open_output(path)
    output.write(b"abc")
    output.abort()
    assert files.read(path) is None
    assert files.list_folder(f"{folder}/staged") == ()


def what_cannot_be_read_is_an_error_and_not_absent(files: Files, folder: str) -> None:
    with pytest.raises(OSError, match=r"no|No|not|find"):
        files.read_range(f"{folder}/none", 0, 10)


CHECKS = (
    a_folder_has_the_names_of_its_folders,
    a_file_is_read_as_it_was_written_last,
    a_folder_has_the_names_of_its_files_in_order,
    what_is_deleted_is_gone_and_may_be_gone_before,
    an_output_is_there_when_it_is_closed,
    a_given_up_output_leaves_nothing,
    what_cannot_be_read_is_an_error_and_not_absent,
)
