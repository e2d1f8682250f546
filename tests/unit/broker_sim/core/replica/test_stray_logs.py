"""A log that was set aside and is renamed back: its checkpoint entries are restored."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from support.core.broker_build import BrokerOnDisk

from broker_sim.core.effects import Delete, Rename, WriteFile
from broker_sim.core.log import STRAY_SUFFIX
from broker_sim.core.log.offset_checkpoint import CLEANER_FILE, LOG_START_FILE, STRAY_FILE
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode

METADATA = "__cluster_metadata-0"
NAME = ("orders", 0)


def fill(broker: BrokerOnDisk, count: int, *, start: int, cleaned: int) -> None:
    """A topic `orders` with so many records, deleted up to `start`, compacted up to `cleaned`."""
    assert broker.create_topic("orders").error_code == 0
    for number in range(count):
        broker.produce("orders", f"v{number}")
    assert broker.delete_records(start)[0] is ErrorCode.NONE
    broker.cause(lambda effects: broker.parts.logs.cleaned.put({NAME: cleaned}, effects))


def put_metadata(disk: SimDisk, of: SimDisk) -> None:
    """Another copy of the metadata log is put in place of the one that is there."""
    disk.apply(Delete(METADATA))
    for name in of.list(METADATA):
        path = f"{METADATA}/{name}"
        disk.apply(WriteFile(path, of.read(path, 0, of.size_bytes(path) or 0)))


@pytest.fixture
def older() -> SimDisk:
    """The data directory without a topic."""
    return BrokerOnDisk().disk


@pytest.fixture
def newest(older) -> SimDisk:
    """The same when `orders` has records at 2 to 4 and was compacted up to 3."""
    broker = BrokerOnDisk(disk=copy.deepcopy(older))
    fill(broker, 5, start=2, cleaned=3)
    return broker.disk


def set_aside(older: SimDisk, newest: SimDisk) -> SimDisk:
    """The data directory once a broker was started with the older metadata."""
    disk = copy.deepcopy(newest)
    put_metadata(disk, older)
    BrokerOnDisk(disk=disk)
    return disk


def strays(disk: SimDisk) -> list[str]:
    return [name for name in disk.list("") if name.endswith(STRAY_SUFFIX)]


def rename_back(disk: SimDisk, newest: SimDisk) -> SimDisk:
    """Rename the log that was set aside, if any, to its place, as docs/broker/cluster.md says."""
    put_metadata(disk, newest)
    for stray in strays(disk):
        disk.apply(Delete("orders-0"))
        disk.apply(Rename(stray, "orders-0"))
    return disk


def state(broker: BrokerOnDisk) -> tuple[int, int, int | None]:
    """Log start, log end, and up to where the log was compacted."""
    log, cleaned = broker.log(), broker.parts.logs.cleaned.offsets.get(NAME)
    return log.log_start_offset, log.log_end_offset, cleaned


def crashes(disk: SimDisk) -> Iterator[SimDisk]:
    """The disk after a crash between any two operations of a start, and after all of them."""
    return BrokerOnDisk(disk=copy.deepcopy(disk)).disks_since(0)


def test_what_the_checkpoints_had_of_a_log_is_there_when_it_is_renamed_back(older, newest):
    disk = set_aside(older, newest)
    (stray,) = strays(disk)
    for file in (LOG_START_FILE, CLEANER_FILE):
        assert b"orders" not in disk.read(file, 0, 100)
    assert disk.size_bytes(f"{stray}/{STRAY_FILE}")
    broker = BrokerOnDisk(disk=rename_back(disk, newest))
    assert state(broker) == (2, 5, 3)
    assert disk.size_bytes(f"orders-0/{STRAY_FILE}") is None
    assert broker.delete_records(4)[0] is ErrorCode.NONE
    broker.kill()
    assert state(broker) == (4, 5, 3)


def test_a_crash_between_any_two_operations_of_either_start_forgets_nothing(older, newest):
    disk = copy.deepcopy(newest)
    put_metadata(disk, older)
    count = 0
    for aside in crashes(disk):
        for back in crashes(rename_back(copy.deepcopy(aside), newest)):
            # It is what it was, and that is also what the next start finds.
            for _ in range(2):
                assert state(BrokerOnDisk(disk=back)) == (2, 5, 3)
            assert back.size_bytes(f"orders-0/{STRAY_FILE}") is None
            count += 1
        BrokerOnDisk(disk=aside)
        assert len(strays(aside)) == 1
        assert state(BrokerOnDisk(disk=rename_back(aside, newest))) == (2, 5, 3)
    assert count > 100


def test_a_removal_of_the_file_that_is_lost_with_the_power_undoes_no_later_deletion(older, newest):
    disk = rename_back(set_aside(older, newest), newest)
    path = f"orders-0/{STRAY_FILE}"
    broker = BrokerOnDisk(disk=copy.deepcopy(disk))
    for operation in broker.steps[0].storage:
        if operation != Delete(path):
            disk.apply(operation)
    assert disk.size_bytes(path) is not None
    left = disk.read(path, 0, 1000)
    assert broker.delete_records(4)[0] is ErrorCode.NONE
    broker.disk.apply(WriteFile(path, left))
    broker.kill()
    assert state(broker) == (4, 5, 3)


def test_a_log_that_is_set_aside_again_before_it_was_opened_keeps_what_was_known_of_it(
    older, newest
):
    disk = set_aside(older, newest)
    (stray,) = strays(disk)
    disk.apply(Rename(stray, "orders-0"))  # and the older metadata are still there
    for again in crashes(disk):
        BrokerOnDisk(disk=again)
        assert state(BrokerOnDisk(disk=rename_back(again, newest))) == (2, 5, 3)


def test_a_log_that_is_renamed_back_has_nothing_of_the_one_that_took_its_name(older, newest):
    """Otherwise the log would begin at the other log's start, and lose the records below."""
    disk = set_aside(older, newest)
    broker = BrokerOnDisk(disk=disk)
    fill(broker, 9, start=8, cleaned=9)
    assert state(broker) == (8, 9, 9)
    assert state(BrokerOnDisk(disk=rename_back(disk, newest))) == (2, 5, 3)


def test_a_log_of_which_nothing_was_known_has_nothing_of_another_one_either(older):
    broker = BrokerOnDisk(disk=copy.deepcopy(older))
    assert broker.create_topic("orders").error_code == 0
    broker.produce("orders", "paid")
    disk = set_aside(older, broker.disk)
    fill(BrokerOnDisk(disk=disk), 3, start=3, cleaned=3)
    assert state(BrokerOnDisk(disk=rename_back(disk, broker.disk))) == (0, 1, None)


def test_of_a_damaged_file_nothing_is_taken_but_that_the_log_may_have_gaps(older, newest):
    disk = set_aside(older, newest)
    (stray,) = strays(disk)
    path = f"{stray}/{STRAY_FILE}"
    data = disk.read(path, 0, 1000)
    for at in range(len(data)):
        for bit in range(8):
            damaged = copy.deepcopy(disk)
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            damaged.apply(WriteFile(path, bytes(changed)))
            broker = BrokerOnDisk(disk=rename_back(damaged, newest))
            assert state(broker) == (0, 5, 0), (at, bit)
            traces = [each.kind for each in broker.steps[0].traces]
            assert "corrupt-checkpoint" in traces


def test_which_logs_have_gaps_is_not_known_of_those_that_are_set_aside_either(older, newest):
    """The cleaner's checkpoint is damaged when the log is set aside."""
    disk = copy.deepcopy(newest)
    disk.apply(WriteFile(CLEANER_FILE, b"\xff"))
    disk = set_aside(older, disk)
    assert state(BrokerOnDisk(disk=rename_back(disk, newest))) == (2, 5, 0)


def test_a_damaged_cleaner_checkpoint_stays_so_until_every_log_has_an_entry(older, newest):
    """The checkpoint is damaged when the log is renamed back: other logs may lack their entries."""
    broker = BrokerOnDisk(disk=copy.deepcopy(newest))
    assert broker.create_topic("other").error_code == 0
    disk = set_aside(older, newest)
    disk.apply(WriteFile(CLEANER_FILE, b"\xff"))
    rename_back(disk, broker.disk)
    for crashed in crashes(disk):
        cleaned = BrokerOnDisk(disk=crashed).parts.logs.cleaned.offsets
        assert cleaned == {("orders", 0): 0, ("other", 0): 0}


def test_entries_of_logs_that_are_not_there_go_at_a_start(older, newest):
    """An unfinished deletion's entry must go: a later topic of its name is another topic."""
    disk = copy.deepcopy(newest)
    put_metadata(disk, older)
    disk.apply(Delete("orders-0"))
    BrokerOnDisk(disk=disk)
    for file in (LOG_START_FILE, CLEANER_FILE):
        assert disk.read(file, 0, 100) == b"0\n0\n"
