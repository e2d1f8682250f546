"""The data directory: operations in order, flushes shared only where order cannot tell."""

from __future__ import annotations

import errno
import os
import sys

import pytest
from support.core.object_counts import count_objects, grown

from broker_sim.core.effects import Append, Delete, FileSlice, Flush, Rename, Truncate, WriteFile
from broker_sim.server import storage as storage_module
from broker_sim.server.space import RESERVE_FILE, RESERVE_FILE_BYTES, RETRY_SECONDS, SpaceGuard
from broker_sim.server.storage import FileStorage
from broker_sim.server.system import StorageFailed, StorageFull, System


class WatchedSystem(System):
    """Remembers what it was asked to do, in order, by file name; fails where it is told to."""

    def __init__(self, root) -> None:
        self.calls: list[str] = []
        self.folders_synced: list[str] = []
        self.failing: dict[str, OSError] = {}
        self._root = root

    def _note(self, call: str, descriptor: int) -> None:
        if call in self.failing:
            raise self.failing[call]
        name = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), self._root)
        self.calls.append(f"{call} {name}")

    def write(self, descriptor: int, data, position: int) -> int:
        self._note("write", descriptor)
        return super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        self._note("sync", descriptor)
        super().sync(descriptor)

    def sync_folder(self, path) -> None:
        self.folders_synced.append(os.path.relpath(path, self._root))
        super().sync_folder(path)


@pytest.fixture
def system(tmp_path) -> WatchedSystem:
    return WatchedSystem(tmp_path)


@pytest.fixture
def calls(system) -> list[str]:
    """Return the calls to the operating system."""
    return system.calls


@pytest.fixture
def storage(tmp_path, system):
    made = FileStorage(tmp_path, system)
    yield made
    system.failing.clear()
    made.close()


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


@pytest.mark.invariant(69)
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


def test_what_is_new_in_a_folder_is_made_durable_under_the_folders_next_name(storage, system):
    storage.perform([Append("a/f", 0, b"x"), Rename("a", "b")])
    system.folders_synced.clear()
    storage.perform([Append("b/f", 1, b"y"), Flush(("b/f",))])
    storage.barrier()
    assert system.folders_synced == ["b"]


def test_nothing_is_remembered_of_a_folder_that_is_gone(tmp_path):
    storage = FileStorage(tmp_path)
    before = count_objects([storage])
    for number in range(10):
        made, gone = f"t-{number}", f"t-{number}-delete"
        storage.perform([Append(f"{made}/0.log", 0, b"x"), Rename(made, gone), Delete(gone)])
    storage.close()
    assert grown(before, count_objects([storage]), 10) == {}


def test_a_flush_of_an_index_that_is_gone_is_nothing(storage):
    storage.perform([Append("0.index", 0, b"a"), Delete("0.index"), Flush(("0.index",))])
    storage.barrier()


def test_a_flush_of_a_segment_that_is_gone_is_a_failed_disk(storage):
    with pytest.raises(StorageFailed, match=r"fsync of 0\.log: No such file"):
        storage.perform([Append("0.log", 0, b"a"), Delete("0.log"), Flush(("0.log",))])
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


ENOSPC = OSError(errno.ENOSPC, "No space left on device")
EIO = OSError(errno.EIO, "Input/output error")


def test_a_failing_disk_is_not_retried(storage, system):
    storage.perform([Append("f", 0, b"a"), Flush(("f",))])
    system.failing["sync"] = EIO
    with pytest.raises(StorageFailed, match="fsync of f: Input/output error"):
        storage.barrier()


@pytest.mark.parametrize("error", [ENOSPC, OSError(errno.EDQUOT, "q"), OSError(errno.EFBIG, "b")])
@pytest.mark.parametrize("operation", [Append("f", 0, b"abc"), WriteFile("d/g", b"abc")])
def test_a_write_without_room_is_told_apart_and_the_storage_goes_on(
    storage, system, tmp_path, error, operation
):
    storage.perform([Append("before", 0, b"x")])
    system.failing["write"] = error
    with pytest.raises(StorageFull, match="writing"):
        storage.perform([operation])
    assert not list(tmp_path.rglob("*.tmp"))
    system.failing.clear()
    storage.reset()
    storage.perform([Delete(operation.path), operation])
    assert storage.read(operation.path, 0, 9) == b"abc"
    assert storage.read("before", 0, 9) == b"x"


@pytest.mark.parametrize("call", ["sync", "write"])
@pytest.mark.parametrize("operation", [Append("f", 0, b"abc"), WriteFile("g", b"abc")])
def test_a_failed_flush_is_a_failed_disk_whatever_the_reason(storage, system, operation, call):
    system.failing[call] = ENOSPC if call == "sync" else EIO
    with pytest.raises(StorageFailed):
        storage.perform([operation, Flush((operation.path,)), Delete("x")])


def test_what_was_to_be_flushed_before_a_write_without_room_is_not_flushed_later(
    storage, system, calls
):
    storage.perform([Append("f", 0, b"a"), Flush(("f",))])
    storage.reset()
    storage.barrier()
    assert calls == ["write f"]


def test_without_descriptors_the_ones_kept_at_hand_are_given_up(storage, system, monkeypatch):
    storage.perform([Append(f"d/{n}", 0, b"x") for n in range(5)])
    real_open = system.open
    refusals = [OSError(errno.EMFILE, "Too many open files")]

    def open_once_refused(path, flags: int) -> int:
        if refusals:
            raise refusals.pop()
        return real_open(path, flags)

    monkeypatch.setattr(system, "open", open_once_refused)
    storage.perform([Append("d/new", 0, b"y")])
    assert [storage.read(f"d/{n}", 0, 9) for n in range(5)] == [b"x"] * 5
    assert storage.read("d/new", 0, 9) == b"y"


def test_an_unreadable_file_is_a_failed_disk_and_not_an_empty_one(storage, system, monkeypatch):
    storage.perform([Append("f", 0, b"a")])

    def fails(_descriptor: int, _length: int, _position: int) -> bytes:
        raise EIO

    monkeypatch.setattr(system, "read", fails)
    with pytest.raises(StorageFailed, match="reading f"):
        storage.read("f", 0, 1)


class Disk:
    """A disk with a fixed amount of free space, which the test asks instead of the system."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes

    def ask(self) -> int:
        return self.free_bytes


def test_space_is_low_under_the_reserve_and_no_longer_when_there_is_more(tmp_path):
    disk = Disk(1000)
    guard = SpaceGuard(tmp_path, 1000, disk.ask)
    assert not guard.is_low(0.0)
    disk.free_bytes = 999
    assert guard.is_low(0.0)
    disk.free_bytes = 1000
    assert not guard.is_low(0.0)


def test_after_a_failed_write_space_is_low_until_the_reserve_file_is_there_again(tmp_path):
    guard = SpaceGuard(tmp_path, 0)
    assert not guard.is_low(0.0)
    assert (tmp_path / RESERVE_FILE).stat().st_size == RESERVE_FILE_BYTES
    guard.release(10.0)
    assert not (tmp_path / RESERVE_FILE).exists()
    assert guard.is_low(10.0 + RETRY_SECONDS / 2)
    assert not guard.is_low(10.0 + RETRY_SECONDS)
    assert (tmp_path / RESERVE_FILE).exists()


def test_a_reserve_file_that_cannot_be_made_means_low(tmp_path):
    guard = SpaceGuard(tmp_path / "absent", 0, lambda: 1)
    assert guard.is_low(0.0)
    (tmp_path / "absent").mkdir()
    assert guard.is_low(RETRY_SECONDS / 2)
    assert not guard.is_low(RETRY_SECONDS)


def calls_made(run) -> int:
    """Return the number of function calls, of Python and C, that `run` makes."""
    events = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        run()
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events)


@pytest.mark.parametrize("renames", [False, True])
def test_what_a_removed_folder_costs_does_not_grow_with_the_folders(storage, renames):
    """Forty thousand partitions that were never flushed made the next one take 8 ms."""

    def cost_among(folders: int) -> int:
        names = [f"{folders}-{number}" for number in range(folders)]
        storage.perform([Append(f"{name}/f", 0, b"x") for name in names])
        operation = Rename(names[7], f"{folders}-new") if renames else Delete(names[7])
        return calls_made(lambda: storage.perform([operation]))

    few = cost_among(600)
    assert cost_among(1_800) < few + 200


def test_folders_below_a_removed_one_are_not_made_durable(storage, system):
    storage.perform([Append("a/b/c/f", 0, b"x"), Rename("a", "z"), Delete("z/b")])
    storage.perform([Append("z/g", 0, b"x"), Flush(("z/g",))])
    storage.barrier()
    assert system.folders_synced == [".", "z"]
