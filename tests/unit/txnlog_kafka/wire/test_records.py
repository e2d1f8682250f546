"""The record batch layout, against an independent reader and against itself; and its division."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from txnlog_kafka.wire import records as wire
from txnlog_kafka.wire.compression import compress
from txnlog_kafka.wire.dividing import divide_batch, plain_batch
from txnlog_kafka.wire.records import Compression, MarkerType, Record, TransactionMarker
from txnlog_kafka.wire.varint import decode_signed, encode_signed

nullable = st.none() | st.binary(max_size=60)
record = st.builds(
    Record,
    key=nullable,
    value=nullable,
    timestamp=st.integers(0, 2**42),
    headers=st.lists(st.tuples(st.text(max_size=8), nullable), max_size=3).map(tuple),
)


def fields(record: Record) -> tuple:
    """Return the content of a record, without its place."""
    return record.key, record.value, record.timestamp, record.headers


@settings(max_examples=100)
@given(batch=st.lists(record, min_size=1, max_size=8))
def test_what_is_encoded_is_read_back_by_us_and_by_kafka_python(batch):
    data = wire.encode_batch(batch, base_offset=100)
    header = wire.parse_header(data)
    wire.check_crc(data, 0, header)
    ours = list(wire.decode_records(data, 0, header))
    assert [fields(r) for r in ours] == [fields(r) for r in batch]
    assert [r.record_offset for r in ours] == list(range(100, 100 + len(batch)))

    theirs = DefaultRecordBatch(memoryview(data))
    assert theirs.validate_crc()
    assert [(r.key, r.value, r.timestamp, tuple(r.headers)) for r in theirs] == [
        fields(r) for r in batch
    ]
    assert header.max_timestamp == max(r.timestamp for r in batch)


def test_stamping_a_producer_makes_a_valid_transactional_batch():
    data = bytearray(wire.encode_batch([Record(b"k", b"v", 5), Record(b"k", b"w", 6)]))
    wire.stamp_producer(data, 0, producer_id=7, producer_epoch=3, base_sequence=2**31 - 1)
    header = wire.parse_header(data)
    wire.check_crc(data, 0, header)
    assert (header.producer_id, header.producer_epoch) == (7, 3)
    assert header.is_transactional
    assert not header.is_control
    assert (header.base_sequence, header.last_sequence) == (2**31 - 1, 0)


def test_offsets_are_stamped_outside_the_crc():
    data = bytearray(wire.encode_batch([Record(None, b"v", 5)]))
    wire.stamp_offsets(data, 0, base_offset=2**40, leader_epoch=9)
    header = wire.parse_header(data)
    wire.check_crc(data, 0, header)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (2**40, 9, 2**40 + 1)


@pytest.mark.parametrize("marker_type", list(MarkerType))
def test_a_marker_is_one_control_record_that_carries_the_coordinator_epoch(marker_type):
    marker = TransactionMarker(5, 2, marker_type, 11)
    data = wire.encode_marker(marker, timestamp=1000)
    header = wire.parse_header(data)
    assert header.is_control
    assert header.is_transactional
    assert header.record_count == 1
    assert header.base_sequence == wire.NO_SEQUENCE
    assert wire.decode_marker(data, 0, header) == marker


def test_every_flipped_bit_after_the_magic_is_noticed():
    data = wire.encode_batch([Record(b"k", b"v", 5)])
    for bit in range(wire.CRC_AT * 8, len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(wire.CorruptBatch):
            wire.check_crc(flipped, 0, wire.parse_header(flipped))


def test_a_torn_last_batch_ends_the_walk_without_an_error():
    one, two = (wire.encode_batch([Record(None, value, 1)]) for value in (b"a", b"b"))
    for cut in range(len(two)):
        assert [at for _, at in wire.iter_batches(one + two[:cut])] == [0]
    assert [at for _, at in wire.iter_batches(one + two)] == [0, len(one)]


@settings(max_examples=200)
@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints_are_kafkas_zig_zag(value):
    data = encode_signed(value)
    assert decode_signed(data, 0) == (value, len(data))


@settings(max_examples=200)
@given(body=st.binary(max_size=120), count=st.integers(-1, 2**31 - 1))
def test_random_record_bytes_are_decoded_or_refused_and_nothing_else(body, count):
    data = bytearray(wire.encode_batch([Record(b"k", b"v", 5)])[: wire.HEADER_BYTES] + body)
    data[8:12] = (len(data) - wire.LENGTH_END).to_bytes(4, "big")
    data[wire.RECORD_COUNT_AT : wire.HEADER_BYTES] = count.to_bytes(4, "big", signed=True)
    with contextlib.suppress(wire.CorruptBatch):
        list(wire.decode_records(data, 0, wire.parse_header(data)))


def test_sequences_wrap_from_the_largest_to_zero():
    assert wire.increment_sequence(2**31 - 1, 1) == 0
    assert wire.increment_sequence(2**31 - 2, 5) == 3


def stamped(records: list[Record], codec: Compression, base_sequence: int = 7) -> bytearray:
    """A transactional batch in this codec."""
    plain = wire.encode_batch(
        records, producer_id=9, producer_epoch=3, base_sequence=base_sequence, transactional=True
    )
    packed = compress(codec, plain[wire.HEADER_BYTES :])
    header = wire.parse_header(plain)
    header = header._replace(
        length=header.length - len(plain) + wire.HEADER_BYTES + len(packed),
        attributes=header.attributes | codec,
    )
    batch = bytearray(wire.encode_header(header) + packed)
    wire.refresh_crc(batch, 0, len(batch))
    return batch


@settings(max_examples=150)
@given(
    records=st.lists(record, min_size=1, max_size=40),
    codec=st.sampled_from(Compression),
    bytes_max=st.integers(1, 3_000),
    base_sequence=st.sampled_from([0, 7, wire.SEQUENCE_MAX - 3]),
)
def test_the_parts_hold_the_same_records_in_order_and_fit(records, codec, bytes_max, base_sequence):
    batch = stamped(records, codec, base_sequence)
    parts = divide_batch(batch, bytes_max)
    found, sequence = [], base_sequence
    for part in parts:
        header = wire.parse_header(part)
        wire.check_crc(part, 0, header)
        assert header.size_bytes == len(part)
        assert header.record_count == header.last_offset_delta + 1
        assert len(part) <= bytes_max or header.record_count == 1
        assert header.compression in (codec, Compression.NONE)
        assert (header.producer_id, header.producer_epoch) == (9, 3)
        assert header.is_transactional
        assert header.base_sequence == sequence
        sequence = wire.increment_sequence(sequence, header.record_count)
        plain = plain_batch(part)
        inside = list(wire.decode_records(plain, 0, wire.parse_header(plain)))
        assert [r.record_offset for r in inside] == list(range(header.record_count))
        assert header.max_timestamp == max(r.timestamp for r in inside)
        found += inside
    assert [fields(r) for r in found] == [fields(r) for r in records]


@pytest.mark.parametrize("codec", Compression)
def test_another_reader_takes_the_parts(codec):
    records = [Record(b"%d" % n, b"%07d" % n * 14, 5 + n) for n in range(500)]
    theirs = [
        DefaultRecordBatch(memoryview(part)) for part in divide_batch(stamped(records, codec), 900)
    ]
    assert all(batch.validate_crc() for batch in theirs)
    assert [r.value for batch in theirs for r in batch] == [r.value for r in records]


def test_the_parts_are_few_and_alike():
    records = [Record(None, b"v" * 100, 5 + n) for n in range(2_001)]
    batch = stamped(records, Compression.NONE)
    sizes = [len(part) for part in divide_batch(batch, len(batch) * 9 // 16)]
    assert len(sizes) == 2
    assert max(sizes) - min(sizes) < 1_000


def test_a_batch_that_fits_is_left_as_it_is():
    batch = stamped([Record(None, b"v", 1)] * 3, Compression.GZIP)
    assert divide_batch(batch, len(batch)) == [batch]
