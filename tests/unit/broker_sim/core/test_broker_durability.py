"""Recovery points, flush settings and damage, as a whole broker goes about them."""

from __future__ import annotations

import json

import pytest
from support.core.broker_build import SMALL, BrokerOnDisk, offset_commit
from support.core.damage import flip, replace

from broker_sim.core.broker import MORE_MS
from broker_sim.core.config import BrokerConfig, DataDirectoryError
from broker_sim.core.data_directory import CLEAN_SHUTDOWN_FILE
from broker_sim.core.effects import Delete, Flush
from broker_sim.core.log.offset_checkpoint import RECOVERY_POINT_FILE, decode_offsets
from broker_sim.core.log.segment_states import FILE_NAME as SEGMENT_STATES_FILE
from broker_sim.core.replica.log_manager import CHECKPOINT_LOGS
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import iter_batches

LOG = "orders-0/00000000000000000000.log"
METADATA = "__cluster_metadata-0/00000000000000000000.log"


def with_records(count: int = 3, config: dict | None = None) -> BrokerOnDisk:
    broker = BrokerOnDisk(config)
    broker.create_topic("orders")
    for i in range(count):
        assert broker.produce("orders", f"value {i}").error_code == ErrorCode.NONE
    return broker


def values_end(broker: BrokerOnDisk) -> int:
    return broker.fetch("orders").high_watermark


def recovery_points(broker: BrokerOnDisk) -> dict:
    data = broker.disk.read(RECOVERY_POINT_FILE, 0, 10**6)
    offsets = decode_offsets(data)
    assert offsets is not None
    return offsets


def flushed(broker: BrokerOnDisk, steps: int = 1) -> bool:
    """Return True if one of the last `steps` steps flushed the topic's log."""
    operations = [o for step in broker.steps[-steps:] for o in step.storage]
    return any(isinstance(o, Flush) and LOG in o.paths for o in operations)


# --------------------------------------------------------------------------- recovery points


def test_the_recovery_points_are_written_on_time_in_kafkas_file():
    broker = with_records(3, {"log.flush.offset.checkpoint.interval.ms": 5000})
    broker.advance(5000)
    assert recovery_points(broker)["orders", 0] == 0
    broker.alter_topic("orders", "flush.messages", "1")
    broker.produce("orders", "flushed")
    broker.advance(5000)
    assert recovery_points(broker)["orders", 0] == 4
    assert recovery_points(broker)["__cluster_metadata", 0] > 0


def test_the_recovery_points_of_many_logs_are_moved_some_at_a_time():
    """The broker answers no request during a step; a topic may be deleted between two steps."""
    broker = BrokerOnDisk({"log.flush.offset.checkpoint.interval.ms": 5000})
    for name in ("orders", "gone"):
        broker.create_topic(name, 2 * CHECKPOINT_LOGS, **{"flush.messages": "1"})
        for partition in range(2 * CHECKPOINT_LOGS):
            assert broker.produce(name, "a", partition=partition).error_code == ErrorCode.NONE

    def moved() -> list[str]:
        paths = [getattr(each, "path", "") for each in broker.steps[-1].storage]
        return [path for path in paths if path.endswith(SEGMENT_STATES_FILE)]

    due_ms = broker.timers["log-recovery-checkpoint",] - broker.monotonic_ms
    broker.advance(due_ms)
    assert len(moved()) == CHECKPOINT_LOGS
    assert ("orders", 0) not in recovery_points(broker)
    assert broker.delete_topic("gone") == ErrorCode.NONE
    broker.advance(2 * MORE_MS)
    points = recovery_points(broker)
    assert {points["orders", partition] for partition in range(2 * CHECKPOINT_LOGS)} == {1}
    assert not [topic for topic, _ in points if topic == "gone"]
    assert broker.timers["log-recovery-checkpoint",] - broker.monotonic_ms > 4_000


def test_a_clean_stop_writes_the_recovery_points_before_the_marker():
    broker = with_records()
    broker.stop()
    assert recovery_points(broker)["orders", 0] == 3
    paths = [getattr(operation, "path", "") for operation in broker.steps[-1].storage]
    assert paths[-2:] == [RECOVERY_POINT_FILE, CLEAN_SHUTDOWN_FILE]
    marker = json.loads(broker.disk.read(CLEAN_SHUTDOWN_FILE, 0, 1000))
    assert marker == {"version": 0, "brokerEpoch": broker.parts.image.broker_epoch}
    broker.start()
    assert broker.disk.size_bytes(CLEAN_SHUTDOWN_FILE) is None
    assert values_end(broker) == 3


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"0\n9\norders 0 2\n"])
def test_a_lost_or_damaged_recovery_point_file_makes_everything_be_read(content):
    broker = with_records()
    broker.stop()
    broker.disk.apply(Delete(CLEAN_SHUTDOWN_FILE))
    broker.disk.apply(Delete(RECOVERY_POINT_FILE))
    if content is not None:
        replace(broker.disk, RECOVERY_POINT_FILE, content)
    broker.start()
    assert values_end(broker) == 3
    assert broker.log().recovery_point == 0


def test_every_bit_of_the_recovery_point_file_may_flip():
    broker = with_records()
    broker.stop()
    broker.disk.apply(Delete(CLEAN_SHUTDOWN_FILE))
    data = broker.disk.read(RECOVERY_POINT_FILE, 0, 10**6)
    line = data.index(b"orders 0")
    for bit in range(8 * line, 8 * (line + len(b"orders 0 3"))):
        flip(broker.disk, RECOVERY_POINT_FILE, bit)
        broker.start()
        assert values_end(broker) == 3
        replace(broker.disk, RECOVERY_POINT_FILE, data)


# --------------------------------------------------------------------------- flush settings


def test_flush_messages_of_a_topic_has_effect_at_once_and_the_brokers_is_its_default():
    broker = with_records()
    assert not flushed(broker)
    broker.alter_topic("orders", "flush.messages", "1")
    broker.produce("orders", "a")
    assert flushed(broker)
    broker.alter_topic("orders", "flush.messages", "1000")
    broker.produce("orders", "b")
    assert not flushed(broker)
    assert flushed(with_records(2, {"log.flush.interval.messages": 2}))


def test_what_a_killed_process_was_about_to_flush_is_flushed_before_anybody_reads_it():
    broker = with_records(3)
    broker.kill()
    assert not flushed(broker)
    broker.config = BrokerConfig(SMALL | {"log.flush.interval.messages": 1})
    broker.kill()
    assert flushed(broker)
    broker.lose_power()
    assert values_end(broker) == 3


def test_the_flush_scheduler_looks_for_flush_ms_that_has_passed():
    broker = with_records(1, {"log.flush.scheduler.interval.ms": 1000})
    seen = len(broker.steps)
    broker.advance(1000)
    assert flushed(broker, len(broker.steps) - seen)
    broker.alter_topic("orders", "flush.ms", "2500")
    broker.produce("orders", "a")
    results = []
    for _ in range(3):
        seen = len(broker.steps)
        broker.advance(1000)
        results.append(flushed(broker, len(broker.steps) - seen))
    assert results == [False, False, True]


def test_by_default_nothing_is_flushed_by_time_as_in_kafka():
    broker = with_records()
    seen = len(broker.steps)
    broker.advance(59_000)
    assert not flushed(broker, len(broker.steps) - seen)


# --------------------------------------------------------------------------- damage


def test_damage_met_by_a_reader_is_corrupt_message_and_is_told_once_with_file_and_position():
    broker = with_records(5)
    broker.stop()
    data = broker.disk.read(LOG, 0, 10**6)
    position = [at for _, at in iter_batches(data)][2]
    flip(broker.disk, LOG, 8 * (position + 16))  # magic
    broker.start()
    answers = [broker.fetch("orders", 3).error_code for _ in range(2)]
    assert answers == [ErrorCode.CORRUPT_MESSAGE] * 2
    (told,) = broker.traced("damaged-file")
    assert f"{LOG}: no valid batch at position {position}" in told.fields["reason"]


def metadata_batches(broker: BrokerOnDisk) -> tuple[bytes, list[int]]:
    data = broker.disk.read(METADATA, 0, 10**6)
    return data, [at for _, at in iter_batches(data)]


def test_a_bit_flipped_in_the_metadata_log_refuses_the_start_and_removes_nothing():
    broker = with_records()
    data, positions = metadata_batches(broker)
    for position in positions:
        for byte in (0, 7, 8, 11, 15, 16, 17, 21, 26, 43, 57, 60, 64):
            flip(broker.disk, METADATA, 8 * (position + byte))
            with pytest.raises(DataDirectoryError, match=r"__cluster_metadata-0.*position"):
                broker.start()
            assert broker.disk.size_bytes(LOG)
            replace(broker.disk, METADATA, data)
    broker.start()
    assert values_end(broker) == 3


def test_a_metadata_record_that_was_cut_short_by_a_crash_is_dropped():
    broker = with_records()
    data, _ = metadata_batches(broker)
    broker.create_topic("later")
    longer, _ = metadata_batches(broker)
    for kept in range(len(data), len(longer), 7):
        other = BrokerOnDisk.__new__(BrokerOnDisk)
        other.__dict__.update(broker.__dict__)
        replace(broker.disk, METADATA, longer[:kept])
        other.start()
        assert values_end(other) == 3


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_damage_in_what_was_decided_refuses_the_start(topic):
    broker = with_records()
    broker.find_coordinators()
    assert broker.producer().init() == "NONE"
    assert broker.ask(offset_commit(), 8).topics[0].partitions[0].error_code == 0
    path = next(
        f"{name}/00000000000000000000.log"
        for name in broker.disk.list("")
        if name.startswith(topic) and broker.disk.size_bytes(f"{name}/{0:020d}.log")
    )
    flip(broker.disk, path, 8 * 70)
    with pytest.raises(DataDirectoryError, match=rf"{topic}.*position 0"):
        broker.start()
