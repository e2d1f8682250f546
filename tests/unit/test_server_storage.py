"""The data directory: operations in order, flushes shared only where order cannot tell."""

from __future__ import annotations

import os

import pytest

from broker_sim.core.effects import Append, Delete, FileSlice, Flush, Rename, Truncate, WriteFile
from broker_sim.server import storage as storage_module
from broker_sim.server.storage import FileStorage


@pytest.fixture
def storage(tmp_path):
    made = FileStorage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """What the operating system was asked to do, in order, by file name."""
    seen: list[str] = []

    def name_of(descriptor: int) -> str:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)

    real_pwrite, real_sync = os.pwrite, storage_module.sync

    def pwrite(descriptor: int, data, position: int) -> int:
        seen.append(f"write {name_of(descriptor)}")
        return real_pwrite(descriptor, data, position)

    def sync(descriptor: int) -> None:
        seen.append(f"sync {name_of(descriptor)}")
        real_sync(descriptor)

    monkeypatch.setattr(storage_module.os, "pwrite", pwrite)
    monkeypatch.setattr(storage_module, "sync", sync)
    return seen


def test_what_was_appended_is_read_back_at_once(storage):
    storage.perform([Append("a-0/x.log", 0, b"hello "), Append("a-0/x.log", 6, b"world")])
    assert storage.read("a-0/x.log", 3, 5) == b"lo wo"
    assert storage.read("a-0/x.log", 6, 100) == b"world"
    assert storage.size_bytes("a-0/x.log") == 11
    assert storage.list("") == ("a-0",)
    assert storage.list("a-0") == ("x.log",)


def test_absent_files_read_as_nothing(storage):
    assert storage.read("no/such", 0, 10) == b""
    assert storage.size_bytes("no/such") is None
    assert storage.list("no") == ()


def test_files_are_replaced_cut_renamed_and_deleted(storage, tmp_path):
    storage.perform([WriteFile("a-0/f", b"old"), WriteFile("a-0/f", b"new!")])
    assert storage.read("a-0/f", 0, 10) == b"new!"
    storage.perform([Truncate("a-0/f", 2)])
    assert storage.read("a-0/f", 0, 10) == b"ne"
    storage.perform([Rename("a-0", "a-0-delete")])
    assert storage.read("a-0/f", 0, 10) == b""
    assert storage.read("a-0-delete/f", 0, 10) == b"ne"
    storage.perform([Delete("a-0-delete"), Delete("a-0-delete"), Delete("never/was")])
    assert list(tmp_path.iterdir()) == []


def test_a_file_deleted_and_made_again_is_the_new_one(storage):
    storage.perform([Append("f", 0, b"old"), Delete("f"), Append("f", 0, b"n")])
    assert storage.read("f", 0, 10) == b"n"


def test_flushes_of_one_round_are_shared_while_only_the_same_file_grows(storage, calls):
    storage.perform([Append("f", 0, b"a"), Flush(("f",))])
    storage.perform([Append("f", 1, b"b"), Flush(("f",))])
    storage.barrier()
    assert calls == ["write f", "write f", "sync f"]


def test_another_file_waits_until_the_flush_before_it_is_done(storage, calls):
    storage.perform(
        [Append("data", 0, b"a"), Flush(("data",)), Append("txn", 0, b"b"), Flush(("txn",))]
    )
    storage.barrier()
    assert calls == ["write data", "sync data", "write txn", "sync txn"]


@pytest.mark.parametrize(
    "operation", [WriteFile("g", b""), Truncate("f", 0), Rename("f", "g"), Delete("f")]
)
def test_every_other_operation_waits_for_flushes_before_it(storage, calls, operation):
    storage.perform([Append("f", 0, b"a"), Flush(("f",)), operation])
    assert calls[:2] == ["write f", "sync f"]


def test_a_flush_of_a_file_that_is_gone_is_nothing(storage):
    storage.perform([Append("f", 0, b"a"), Delete("f"), Flush(("f",))])
    storage.barrier()


def test_slices_are_joined_and_a_cut_one_is_an_error(storage):
    storage.perform([Append("f", 0, b"abcdef"), Append("g", 0, b"xyz")])
    assert storage.read_slices([FileSlice("f", 1, 2), FileSlice("g", 0, 3)]) == b"bcxyz"
    with pytest.raises(LookupError, match="g"):
        storage.read_slices([FileSlice("g", 2, 2)])


def test_few_files_stay_open_however_many_are_used(storage, monkeypatch):
    monkeypatch.setattr(storage_module, "OPEN_FILES_MAX", 4)
    before = len(os.listdir("/proc/self/fd"))
    storage.perform([Append(f"d/{n}", 0, b"x") for n in range(50)])
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert all(storage.read(f"d/{n}", 0, 9) == b"x" for n in range(50))


def test_a_failing_disk_is_not_retried(storage, monkeypatch):
    def fails(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    storage.perform([Append("f", 0, b"a"), Flush(("f",))])
    monkeypatch.setattr(storage_module, "sync", fails)
    with pytest.raises(OSError, match="Input/output"):
        storage.barrier()
    monkeypatch.undo()
