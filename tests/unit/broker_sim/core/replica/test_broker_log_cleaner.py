"""The cleaner in a broker: its times, its logs, and requests that it does not disturb."""

from __future__ import annotations

import gzip

import pytest
from support.core.broker_build import BrokerOnDisk
from support.core.log_build import packed
from support.models.compacted_log import keyed_batch

from broker_sim.core.effects import Rename, TimerFired, WriteFile
from broker_sim.core.log import validation
from broker_sim.core.log.compression import Codecs
from broker_sim.core.replica.log_cleaner import CLEANER_TIMER, PAUSE_MS
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.varint import encode_signed

COMPACTED = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "400",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "0",
}
BACKOFF_MS = 15_000
FILE = "cleaner-offset-checkpoint"


@pytest.fixture
def broker() -> BrokerOnDisk:
    broker = BrokerOnDisk()
    assert broker.create_topic("keyed", **COMPACTED).error_code == ErrorCode.NONE
    return broker


def put(broker: BrokerOnDisk, *pairs, topic: str = "keyed") -> None:
    data = keyed_batch(list(pairs), timestamp=broker.now_ms)
    assert broker.produce_bytes({(topic, 0): data})[0].error_code == ErrorCode.NONE


def fill(broker: BrokerOnDisk, count: int, keys: int = 3, topic: str = "keyed") -> None:
    for index in range(count):
        put(broker, (f"k{index % keys}", f"v{index}" * 10), topic=topic)


def consume(broker: BrokerOnDisk, topic: str = "keyed") -> list[tuple[int, str]]:
    found, position = [], 0
    while True:
        part = broker.fetch(topic, position)
        assert part.error_code == ErrorCode.NONE
        if not part.records:
            return found
        for header, at in records.iter_batches(part.records):
            decoded = records.decode_records(part.records, at, header)
            found += [(r.record_offset, r.key.decode()) for r in decoded]
            position = header.next_offset


def test_a_compacted_topic_is_cleaned_after_the_backoff(broker):
    fill(broker, 30)
    broker.advance(BACKOFF_MS - 1)
    assert len(consume(broker)) == 30
    broker.advance(100)
    left = consume(broker)
    log = broker.log("keyed")
    active = max(int(n[:20]) for n in broker.disk.list("keyed-0") if n.endswith(".log"))
    assert [offset for offset, _ in left if offset < active] == [active - 3, active - 2, active - 1]
    assert broker.disk.read(FILE, 0, 100) == f"0\n1\nkeyed 0 {active}\n".encode()
    assert log.log_end_offset == 30


def test_requests_are_served_between_two_steps(broker):
    broker = BrokerOnDisk({"log.cleaner.io.buffer.size": 300})
    broker.create_topic("keyed", **COMPACTED)
    fill(broker, 40)
    broker.monotonic_ms = broker.timers[CLEANER_TIMER]
    for at in range(30):
        assert broker.timers[CLEANER_TIMER] <= broker.monotonic_ms + PAUSE_MS
        broker.step(TimerFired(CLEANER_TIMER))
        put(broker, ("during", str(at)))
        assert broker.fetch("keyed", 40 + at).high_watermark == 41 + at
    assert consume(broker)[-1] == (69, "during")


def test_reading_is_slowed_down_to_the_configured_rate():
    broker = BrokerOnDisk(
        {"log.cleaner.io.buffer.size": 1000, "log.cleaner.io.max.bytes.per.second": 1000}
    )
    broker.create_topic("keyed", **COMPACTED)
    fill(broker, 30)
    broker.advance(BACKOFF_MS + 100)
    assert broker.timers[CLEANER_TIMER] > broker.monotonic_ms
    assert not any(isinstance(operation, Rename) for operation in broker.operations)
    broker.advance(60_000)
    assert len(consume(broker)) < 10


def test_without_the_cleaner_nothing_is_compacted():
    broker = BrokerOnDisk({"log.cleaner.enable": "false"})
    broker.create_topic("keyed", **COMPACTED)
    fill(broker, 30)
    broker.advance(10 * BACKOFF_MS)
    assert len(consume(broker)) == 30
    assert CLEANER_TIMER not in broker.timers


def test_the_dirtiest_log_is_cleaned_first(broker):
    broker.create_topic("fresh", **COMPACTED)
    fill(broker, 30)
    broker.advance(BACKOFF_MS + 100)
    fill(broker, 6)
    fill(broker, 30, topic="fresh")
    before = len(broker.traced("log-cleaning"))
    broker.advance(BACKOFF_MS + 100)
    cleaned = broker.traced("log-cleaning")[before:]
    assert [trace.fields["log"] for trace in cleaned[:2]] == ["fresh-0", "keyed-0"]


def test_a_log_that_cannot_be_cleaned_is_left_alone_and_the_others_go_on(broker):
    broker.create_topic("broken", **COMPACTED)
    fill(broker, 30, topic="broken")
    file = broker.disk._files["broken-0/" + "0" * 20 + ".log"]
    file.content[70] ^= 1
    fill(broker, 30)
    broker.advance(3 * BACKOFF_MS)
    assert len(consume(broker)) < 15
    assert [trace.fields["log"] for trace in broker.traced("log-not-cleaned")] == ["broken-0"]


def test_a_topic_deleted_while_it_is_cleaned_is_forgotten(broker):
    fill(broker, 30)
    broker.monotonic_ms = broker.timers.pop(CLEANER_TIMER)
    broker.step(TimerFired(CLEANER_TIMER))  # chosen, not begun
    assert broker.delete_topic("keyed") == ErrorCode.NONE
    broker.advance(BACKOFF_MS + 100)
    assert not any(name.startswith("keyed") for name in broker.disk.list(""))
    assert broker.disk.read(FILE, 0, 100) == b"0\n0\n"
    broker.create_topic("keyed", **COMPACTED)
    fill(broker, 30)
    broker.advance(BACKOFF_MS + 100)
    assert len(consume(broker)) < 15


def test_a_restart_in_the_middle_loses_only_the_work(broker):
    broker = BrokerOnDisk({"log.cleaner.io.buffer.size": 100})
    broker.create_topic("keyed", **COMPACTED)
    fill(broker, 30)
    broker.monotonic_ms = broker.timers[CLEANER_TIMER]
    for _ in range(45):
        broker.step(TimerFired(CLEANER_TIMER))
    left = [n for n in broker.disk.list("keyed-0") if n.endswith(".cleaned")]
    broker.kill()
    assert left
    assert not [n for n in broker.disk.list("keyed-0") if n.endswith(".cleaned")]
    broker.advance(BACKOFF_MS + 100)
    assert len(consume(broker)) < 15
    broker.kill()
    put(broker, ("k0", "after"))
    assert consume(broker)[-1] == (30, "k0")


@pytest.mark.parametrize("checkpoint", ["good", "damaged", "damaged before others"])
def test_a_topic_that_was_compacted_once_may_have_gaps_for_ever(broker, checkpoint):
    fill(broker, 30)
    broker.advance(BACKOFF_MS + 100)
    left = consume(broker)
    assert broker.alter_topic("keyed", "cleanup.policy", "delete") == ErrorCode.NONE
    if checkpoint != "good":
        broker.disk._files[FILE].content[:] = b"?"
    if checkpoint == "damaged before others":
        broker.kill()
        broker.create_topic("other", **COMPACTED)
        fill(broker, 30, topic="other")
        broker.advance(BACKOFF_MS + 100)
        assert b"other 0" in broker.disk.read(FILE, 0, 100)
    for name in broker.disk.list("keyed-0"):
        if name.endswith((".index", "-checkpoint", ".timeindex")):
            broker.disk._files.pop(f"keyed-0/{name}")
    broker.kill()
    assert consume(broker) == left


def test_compact_and_delete_removes_old_segments_from_the_cleaners_timer(broker):
    policy = COMPACTED | {"cleanup_policy": "compact,delete", "retention_ms": "1000"}
    broker.create_topic("both", **policy)
    fill(broker, 30, topic="both")
    broker.advance(2 * BACKOFF_MS)
    log = broker.log("both")
    assert log.log_start_offset == log.log_end_offset == 30


def test_a_fetch_that_waits_is_not_woken_by_cleaning(broker):
    fill(broker, 30)
    broker.advance(BACKOFF_MS + 100)
    assert not broker.parts.replicas.take_changes()


def test_the_checkpoint_says_where_the_next_round_begins(broker):
    fill(broker, 30)
    broker.advance(BACKOFF_MS + 100)
    cleaned = broker.parts.logs.cleaned.offsets["keyed", 0]
    broker.kill()
    assert broker.parts.logs.cleaned.offsets == {("keyed", 0): cleaned}
    fill(broker, 10)
    before = len(broker.operations), len(broker.traced("log-cleaning"))
    broker.advance(BACKOFF_MS + 100)
    (started,) = broker.traced("log-cleaning")[before[1] :]
    assert started.fields["first_dirty"] == cleaned
    writes = [op for op in broker.operations[before[0] :] if isinstance(op, WriteFile)]
    assert FILE in [op.path for op in writes]


def keyed_bomb(count: int, *, key: bool, padding: int = 0) -> bytes:
    """A few hundred bytes of gzip that are so many records; `padding` is of the last value."""
    record = b"\x0e\x00\x00\x00\x02k\x00\x00" if key else b"\x0c\x00\x00\x00\x01\x00\x00"
    plain = record * count
    if padding:
        value = encode_signed(padding) + bytes(padding)
        last = record[1:-2] + value + b"\x00"
        plain += encode_signed(len(last)) + last
        count += 1
    header = records.parse_header(records.encode_batch([records.Record(b"k", b"", 1)]))
    header = header._replace(last_offset_delta=count - 1, record_count=count)
    return packed(records.encode_header(header), records.Compression.GZIP, plain)


def produce_to_all(broker: BrokerOnDisk, batch: bytes) -> list[int]:
    results = broker.produce_bytes({("keyed", p): batch for p in range(4)})
    return [result.error_code for result in results]


@pytest.fixture
def wide(monkeypatch) -> BrokerOnDisk:
    """A compacted topic of four partitions, with limits that a test can reach."""
    monkeypatch.setattr(validation, "KEYED_RECORDS_MAX", 1000)
    monkeypatch.setattr(validation, "DECOMPRESSED_BYTES_MAX", 50_000)
    monkeypatch.setattr(validation, "KEYLESS_NAMED_MAX", 7)
    codecs = Codecs(lambda _codec, data: gzip.decompress(data))
    broker = BrokerOnDisk(codecs=codecs)
    assert broker.create_topic("keyed", 4, cleanup_policy="compact").error_code == 0
    return broker


def test_the_records_whose_keys_are_looked_at_are_limited_for_the_whole_request(wide):
    too_large = ErrorCode.MESSAGE_TOO_LARGE
    assert produce_to_all(wide, keyed_bomb(400, key=True)) == [0, 0, too_large, too_large]
    assert produce_to_all(wide, keyed_bomb(200, key=True)) == [0, 0, 0, 0]
    assert produce_to_all(wide, keyed_bomb(1001, key=True)) == [too_large] * 4


def test_what_is_decompressed_for_one_request_is_limited(wide):
    too_large = ErrorCode.MESSAGE_TOO_LARGE
    batch = keyed_bomb(1, key=True, padding=30_000)
    assert produce_to_all(wide, batch) == [0, 0, too_large, too_large]


def test_of_many_records_without_a_key_the_first_are_named(wide):
    (result,) = wide.produce_bytes({("keyed", 0): keyed_bomb(900, key=False)})
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [e.batch_index for e in result.record_errors] == list(range(7))
