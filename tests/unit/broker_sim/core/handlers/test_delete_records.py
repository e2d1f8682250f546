"""DeleteRecords: what it refuses, what it moves, and that no crash moves it back."""

from __future__ import annotations

import copy

import pytest
from support.core.broker_build import BrokerOnDisk, fetch_request
from support.core.log_build import build_batch
from support.raw.raw_admin import list_offset

from broker_sim.core.config import DataDirectoryError
from broker_sim.core.log import AppendOrigin, AppendResult
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import MarkerType, TransactionMarker

FILE = "log-start-offset-checkpoint"
CRC_FILE = FILE + ".crc"
TINY = {"internal_segment_bytes": "200"}


@pytest.fixture
def broker() -> BrokerOnDisk:
    broker = BrokerOnDisk()
    assert broker.create_topic("orders", 2, **TINY).error_code == ErrorCode.NONE
    for index in range(10):
        broker.produce("orders", f"v{index}")
    return broker


def segments(broker: BrokerOnDisk) -> list[int]:
    return [int(name[:20]) for name in broker.disk.list("orders-0") if name.endswith(".log")]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_below_the_offset_can_no_longer_be_read(broker, version):
    assert broker.delete_records(4, version=version) == (ErrorCode.NONE, 4)
    assert broker.fetch("orders", 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    answer = broker.fetch("orders", 4)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.NONE, 4)
    for timestamp, offset in ((-2, 4), (0, 4), (-1, 10)):
        assert list_offset(broker, "orders", 0, timestamp=timestamp).offset == offset


@pytest.mark.invariant(5)
def test_the_low_watermark_never_goes_back(broker):
    broker.delete_records(5)
    assert broker.delete_records(2) == (ErrorCode.NONE, 5)
    assert broker.delete_records(0) == (ErrorCode.NONE, 5)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("compact,delete", ErrorCode.NONE),
        ("", ErrorCode.NONE),
    ],
)
def test_only_a_topic_that_is_compacted_alone_keeps_its_records(broker, policy, error):
    assert broker.create_topic("keyed", cleanup_policy=policy).error_code == ErrorCode.NONE
    assert broker.delete_records(0, "keyed")[0] is error


def test_segments_wholly_below_are_removed_and_the_others_stay(broker):
    before = segments(broker)
    assert len(before) > 3
    broker.delete_records(before[2] + 1)
    assert segments(broker) == before[2:]
    broker.delete_records(-1)
    assert segments(broker) == before[-1:]


def test_a_parked_fetch_below_the_new_start_is_answered_at_once(broker):
    broker.delete_records(3)
    message = fetch_request("orders", 3, min_bytes=1 << 20, max_wait_ms=60_000)
    key = broker.send(message, 12, connection_id=7)
    assert key not in broker.asked.answers
    broker.delete_records(8)
    answer = broker.asked.answers[key].responses[0].partitions[0]
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("how", ["kill", "clean", "power"])
def test_the_log_start_survives_a_restart(broker, how):
    broker.delete_records(5)
    if how == "clean":
        broker.stop()
    elif how == "power":
        broker.cut_power()
    broker.start()
    assert broker.log().log_start_offset == 5
    assert broker.disk.read(FILE, 0, 100) == b"0\n1\norders 0 5\n"
    assert broker.produce("orders", "next").base_offset == 10


def test_a_log_that_ends_below_its_start_is_damage_and_nothing_is_deleted(broker):
    """A directory that Kafka wrote has no checksum, so a flipped digit would delete the log."""
    broker.delete_records(5)
    del broker.disk._files[CRC_FILE]
    broker.disk._files[FILE].content[:] = b"0\n1\norders 0 50\n"
    with pytest.raises(DataDirectoryError, match="orders-0 ends at offset 10, below its log start"):
        broker.kill()
    broker.disk._files[FILE].content[:] = b"0\n1\norders 0 5\n"
    broker.kill()
    assert broker.log().log_end_offset == 10


def test_what_was_written_is_flushed_before_the_start_moves(broker):
    """The order keeps a loss of power from leaving a log that ends below its start."""
    broker.delete_records(-1)
    broker.lose_power()
    log = broker.log()
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)


def test_a_crash_between_any_two_operations_keeps_the_old_start_or_the_new(broker):
    before = len(broker.operations)
    broker.delete_records(7)
    starts: list[int] = []
    for disk in broker.disks_since(before):
        survivor = BrokerOnDisk(disk=disk)
        starts.append(survivor.log().log_start_offset)
        assert starts[-1] in (0, 7)
        assert survivor.produce("orders", "next").base_offset == 10
    assert len(starts) > 5
    assert starts == sorted(starts)
    assert starts[-1] == 7


def test_a_new_topic_of_the_same_name_begins_at_zero(broker):
    broker.delete_records(7)
    assert broker.delete_topic("orders") == ErrorCode.NONE
    broker.create_topic("orders", 1)
    broker.kill()
    assert broker.produce("orders", "first").base_offset == 0
    assert broker.fetch("orders", 0).log_start_offset == 0


def test_nothing_of_a_topic_is_inherited_whatever_its_deletion_came_to(broker):
    """A crash may come between the record that it is gone and the offsets kept of it."""
    broker.delete_records(7)
    broker.cause(lambda effects: broker.parts.logs.cleaned.put({("orders", 0): 7}, effects))
    before = len(broker.operations)
    assert broker.delete_topic("orders") == ErrorCode.NONE
    for count, disk in enumerate(broker.disks_since(before + 2)):  # one append and its flush
        survivor = BrokerOnDisk(disk=disk)
        assert survivor.create_topic("orders", 1, **TINY).error_code == ErrorCode.NONE
        for index in range(9):
            survivor.produce("orders", f"w{index}")
        survivor.kill()
        assert survivor.log().log_start_offset == 0, count
        assert survivor.parts.logs.cleaned.offsets == {}, count


def test_a_damaged_checkpoint_costs_the_deletion_and_nothing_else(broker):
    broker.delete_records(7)
    file = broker.disk._files[FILE]
    file.content[:] = b"\xff\x00"
    broker.kill()
    log = broker.log()
    assert log.log_start_offset == log._local.segments[0].base_offset
    assert log.log_end_offset == 10


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_hides_records(broker, bit: int):
    """Kafka's file has no checksum: with another digit in it, segments would be removed."""
    broker.delete_records(7)
    for name in (FILE, CRC_FILE):
        content = broker.disk._files[name].content
        for at in range(len(content)):
            disk = copy.deepcopy(broker.disk)
            disk._files[name].content[at] ^= 1 << bit
            log = BrokerOnDisk(disk=disk).log()
            kept = log._local.segments[0].base_offset if name == FILE else 7
            assert (log.log_start_offset, log.log_end_offset) == (kept, 10), (name, at)


def test_after_damage_only_what_is_written_next_is_taken(broker):
    broker.delete_records(4)
    before = bytes(broker.disk._files[FILE].content)
    broker.disk._files[FILE].content[:] = before.replace(b" 4", b" 9")
    broker.kill()
    assert broker.delete_records(6) == (ErrorCode.NONE, 6)
    broker.disk._files[FILE].content[:] = before.replace(b" 4", b" 9")
    broker.kill()
    assert broker.log().log_start_offset < 9


def test_an_open_transaction_holds_the_stable_offset_no_lower_than_the_log_start(broker):
    data = build_batch("a", "b", "c", producer=(77, 0, 0), transactional=True)
    assert append(broker, data).ok
    assert broker.log().last_stable_offset == 10
    assert broker.delete_records(12) == (ErrorCode.NONE, 12)
    assert broker.log().last_stable_offset == 12
    broker.kill()
    log = broker.log()
    assert log.last_stable_offset == 12
    assert log.has_open_transaction(77)
    marker = TransactionMarker(77, 0, MarkerType.ABORT, 0)
    broker.cause(lambda effects: log.append_marker(marker, effects=effects))
    assert log.last_stable_offset == 14
    read = log.read(12, max_bytes=1000, read_committed=True, at_least_one_batch=True)
    assert [(a.producer_id, a.first_offset) for a in read.aborted] == [(77, 10)]


def append(broker: BrokerOnDisk, data: bytes) -> AppendResult:
    origin = AppendOrigin.CLIENT
    return broker.cause(
        lambda effects: broker.log().append_as_leader(data, origin=origin, effects=effects)
    )


def test_producers_keep_their_sequence_when_their_records_are_deleted(broker):
    for sequence in range(3):
        assert append(broker, build_batch("a" * 100, producer=(77, 3, sequence))).ok
    broker.delete_records(-1)
    views = broker.log().producers()
    broker.kill()
    assert broker.log().producers() == views
    assert append(broker, build_batch("a" * 100, producer=(77, 3, 2))).duplicate
