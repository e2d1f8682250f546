"""A record batch is divided into smaller ones with the same records, sequences and codec."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from txnlog_kafka.wire.compression import compress
from txnlog_kafka.wire.dividing import divide_batch, plain_batch
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    SEQUENCE_MAX,
    Compression,
    Record,
    check_crc,
    decode_records,
    encode_batch,
    encode_header,
    increment_sequence,
    parse_header,
    refresh_crc,
)

nullable = st.none() | st.binary(max_size=60)
record = st.builds(
    Record,
    key=nullable,
    value=nullable,
    timestamp=st.integers(0, 2**42),
    headers=st.lists(st.tuples(st.text(max_size=8), nullable), max_size=3).map(tuple),
)


def stamped(records: list[Record], codec: Compression, base_sequence: int = 7) -> bytearray:
    """A transactional batch in this codec."""
    plain = encode_batch(
        records, producer_id=9, producer_epoch=3, base_sequence=base_sequence, transactional=True
    )
    packed = compress(codec, plain[HEADER_BYTES:])
    header = parse_header(plain)
    header = header._replace(
        length=header.length - len(plain) + HEADER_BYTES + len(packed),
        attributes=header.attributes | codec,
    )
    batch = bytearray(encode_header(header) + packed)
    refresh_crc(batch, 0, len(batch))
    return batch


def fields(record: Record) -> tuple:
    """Return the content of a record, without its place."""
    return record.key, record.value, record.timestamp, record.headers


@settings(max_examples=150)
@given(
    records=st.lists(record, min_size=1, max_size=40),
    codec=st.sampled_from(Compression),
    bytes_max=st.integers(1, 3_000),
    base_sequence=st.sampled_from([0, 7, SEQUENCE_MAX - 3]),
)
def test_the_parts_hold_the_same_records_in_order_and_fit(records, codec, bytes_max, base_sequence):
    batch = stamped(records, codec, base_sequence)
    parts = divide_batch(batch, bytes_max)
    found, sequence = [], base_sequence
    for part in parts:
        header = parse_header(part)
        check_crc(part, 0, header)
        assert header.size_bytes == len(part)
        assert header.record_count == header.last_offset_delta + 1
        assert len(part) <= bytes_max or header.record_count == 1
        assert header.compression in (codec, Compression.NONE)
        assert (header.producer_id, header.producer_epoch) == (9, 3)
        assert header.is_transactional
        assert header.base_sequence == sequence
        sequence = increment_sequence(sequence, header.record_count)
        plain = plain_batch(part)
        inside = list(decode_records(plain, 0, parse_header(plain)))
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
