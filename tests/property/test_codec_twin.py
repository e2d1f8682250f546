"""The vectorised codec against its slow obvious twin, the scalar codec of `wire.records`."""

import contextlib
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.query.encode_rows import encode_batches

from txnlog_kafka.wire.compression import COMPRESSIONS, compress, decompress
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    CorruptBatch,
    MarkerType,
    Record,
    TransactionMarker,
    check_crc,
    decode_records,
    encode_batch,
    encode_marker,
    iter_batches,
    refresh_crc,
    stamp_offsets,
)
from txnlog_kafka.wire.varint import decode_signed, encode_signed
from txnlog_spark.codec import encode
from txnlog_spark.codec.decode import FetchedRange, decode_batches, iter_decoded
from txnlog_spark.codec.encode import RecordTooLarge, encode_partitioned, sort_rows
from txnlog_spark.codec.partitioner import murmur2, partition_rows
from txnlog_spark.codec.record_headers import HEADERS_TYPE
from txnlog_spark.codec.varints import pack_varints, read_varints, varint_sizes, zigzag

FIELD = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=60, max_size=140))
HEADER = st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=5)))
TIME = st.one_of(st.integers(0, 200), st.integers(-(2**62), 2**62))
RECORD = st.builds(Record, FIELD, FIELD, TIME, st.lists(HEADER, max_size=3).map(tuple), st.just(0))
RECORDS = st.lists(RECORD, max_size=80)


def columns_of(records):
    keys = pa.array([r.key for r in records], pa.binary())
    values = pa.array([r.value for r in records], pa.binary())
    headers = pa.array(
        [[{"key": k, "value": v} for k, v in r.headers] for r in records], HEADERS_TYPE
    )
    times = np.array([r.timestamp for r in records], np.int64)
    return keys, values, times, headers


def rows_of(columns):
    headers = columns.headers.to_pylist()
    return [
        Record(key, value, time, tuple((h["key"], h["value"]) for h in items), offset)
        for key, value, time, items, offset in zip(
            columns.keys.to_pylist(),
            columns.values.to_pylist(),
            columns.timestamps.tolist(),
            headers,
            columns.offsets.tolist(),
            strict=True,
        )
    ]


def test_varints_of_any_int64_agree_with_the_scalar_codec():
    @given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
    def check(numbers):
        values = zigzag(np.array(numbers, np.int64))
        flat, lengths = pack_varints([values, 7], len(numbers))
        expected = [encode_signed(number) for number in numbers]
        assert flat.tobytes() == b"".join(item + b"\x07" for item in expected)
        assert lengths.tolist() == [len(item) + 1 for item in expected]
        assert varint_sizes(values).tolist() == [len(item) for item in expected]
        starts = np.cumsum(lengths) - lengths
        decoded, after = read_varints(flat, starts)
        assert decoded.tolist() == numbers
        assert decoded.tolist() == [decode_signed(flat.tobytes(), s)[0] for s in starts.tolist()]
        assert after.tolist() == (starts + lengths - 1).tolist()

    check()


@given(RECORDS, st.sampled_from(sorted(COMPRESSIONS)), st.integers(900, 3000))
@settings(max_examples=200)
def test_encoded_batches_read_back_the_same_through_the_twin(records, compression, bytes_max):
    batches = encode_batches(
        *columns_of(records), compression=compression, record_batch_bytes_max=bytes_max
    )
    assert twin_rows(batches, bytes_max) == records


def twin_rows(batches, bytes_max):
    """Return the rows that the scalar codec reads; check that each batch keeps the limit."""
    seen = []
    for batch in batches:
        assert len(batch) <= bytes_max
        ((header, position),) = iter_batches(batch)
        check_crc(batch, position, header)
        plain = decompress(header.compression, memoryview(batch)[HEADER_BYTES:])
        rows = list(decode_records(plain_batch(batch, plain), 0, plain_header(header, plain)))
        assert [row.record_offset for row in rows] == list(range(len(rows)))
        seen += [Record(r.key, r.value, r.timestamp, r.headers) for r in rows]
    return seen


def plain_batch(batch, plain):
    return bytes(batch[:HEADER_BYTES]) + plain


def plain_header(header, plain):
    return header._replace(attributes=0, length=HEADER_BYTES - 12 + len(plain))


@given(st.lists(RECORDS.filter(bool), max_size=5), st.data())
@settings(max_examples=200)
def test_decoded_columns_are_what_the_twin_reads(groups, data):
    offset = data.draw(st.integers(0, 2**40))
    parts, expected = [], []
    for records in groups:
        codec = data.draw(st.sampled_from(sorted(COMPRESSIONS.values())))
        batch = compressed(encode_batch(records), codec)
        stamp_offsets(batch, 0, base_offset=offset, leader_epoch=3)
        parts.append(batch)
        expected += [
            Record(r.key, r.value, r.timestamp, r.headers, offset + i)
            for i, r in enumerate(records)
        ]
        offset += len(records) + data.draw(st.integers(0, 3))
    joined = b"".join(parts)
    start = data.draw(st.integers(0, offset))
    end = data.draw(st.integers(start, offset + 5))
    columns = decode_batches(
        joined, start_offset=start, end_offset=end, aborted=None, include_headers=True
    )
    assert rows_of(columns) == [r for r in expected if start <= r.record_offset < end]
    pieces = list(
        iter_decoded(
            [FetchedRange(joined, start, end, None)], include_headers=True, group_bytes_max=1
        )
    )
    assert [row for piece in pieces for row in rows_of(piece)] == rows_of(columns)
    # Several ranges together: each as by itself, in their order.
    middle = data.draw(st.integers(start, end))
    ranges = [
        FetchedRange(joined, first, last, None)
        for first, last in ((middle, end), (start, middle), (start, end))
    ]
    of_ranges = list(
        iter_decoded(
            ranges, include_headers=True, group_bytes_max=data.draw(st.sampled_from([1, 10_000]))
        )
    )
    found = [row for piece in of_ranges for row in rows_of(piece)]
    numbers = [number for piece in of_ranges for number in piece.ranges.tolist()]
    wanted = [
        (number, row)
        for number, each in enumerate(ranges)
        for row in expected
        if each.start_offset <= row.record_offset < each.end_offset
    ]
    assert list(zip(numbers, found, strict=True)) == wanted


def compressed(batch, codec):
    out = bytearray(batch[:HEADER_BYTES]) + compress(codec, batch[HEADER_BYTES:])
    out[22] |= codec
    out[8:12] = (len(out) - 12).to_bytes(4, "big")
    refresh_crc(out, 0, len(out))
    return out


STORY = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["data", "plain", "commit", "abort"])),
    max_size=25,
)


@pytest.mark.invariant(21, 30)
@given(STORY, st.integers(0, 30))
def test_read_committed_drops_exactly_what_a_dumb_reader_drops(story, start):
    parts, batches, offset, open_at = [], [], 0, {}
    aborted, decided = [], {}
    for producer_id, kind in story:
        if kind in ("commit", "abort"):
            marker = TransactionMarker(producer_id, 0, MarkerType[kind.upper()], 0)
            batch = bytearray(encode_marker(marker, timestamp=1))
            if producer_id in open_at:
                first = open_at.pop(producer_id)
                decided[producer_id, first] = kind
                if kind == "abort" and offset >= start:
                    aborted.append((producer_id, first))
        else:
            is_data = kind == "data"
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
            rows = [Record(None, b"%d" % offset, 1), Record(None, b"%d" % (offset + 1), 1)]
            batch = bytearray(
                encode_batch(rows, transactional=is_data, **fields if is_data else {})
            )
            first = open_at.setdefault(producer_id, offset) if is_data else None
            batches.append((producer_id, first, offset))
        stamp_offsets(batch, 0, base_offset=offset, leader_epoch=0)
        offset += 2 if kind in ("data", "plain") else 1
        parts.append(bytes(batch))
    lso = min(open_at.values(), default=offset)
    expected = [
        number
        for producer_id, first, base in batches
        if first is None or decided.get((producer_id, first)) == "commit"
        for number in (base, base + 1)
        if start <= number < lso
    ]
    columns = decode_batches(b"".join(parts), start_offset=start, end_offset=lso, aborted=aborted)
    assert columns.offsets.tolist() == expected
    assert columns.values.to_pylist() == [b"%d" % number for number in expected]


@given(st.binary(max_size=400), st.data())
@settings(max_examples=300)
def test_any_bytes_decode_or_are_refused_as_corrupt(garbage, data):
    rows = [Record(b"k", b"v" * 9, 5, (("h", b"x"),)), Record(None, None, 6)]
    batch = bytearray(encode_batch(rows))
    body = data.draw(st.sampled_from(["replace", "flip"]))
    if body == "replace":
        batch = batch[:HEADER_BYTES] + garbage
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    else:
        at = data.draw(st.integers(21, len(batch) - 1))
        batch[at] ^= data.draw(st.integers(1, 255))
    refresh_crc(batch, 0, len(batch))
    try:
        columns = decode_batches(
            bytes(batch), start_offset=0, end_offset=2**62, aborted=[], include_headers=True
        )
    except CorruptBatch:
        return
    assert len(columns.keys) == len(columns.values) == len(columns.offsets)
    columns.keys.validate(full=True)
    columns.values.validate(full=True)


@given(st.binary(max_size=300), st.sampled_from(["gzip", "snappy", "lz4", "zstd"]))
def test_compression_round_trips_and_refuses_garbage(content, name):
    codec = COMPRESSIONS[name]
    assert decompress(codec, compress(codec, content)) == content
    with pytest.raises(CorruptBatch, match="limit"):
        decompress(codec, compress(codec, content + b"x"), len(content))
    with contextlib.suppress(CorruptBatch):
        decompress(codec, content)


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 50))
def test_partitions_agree_with_the_scalar_murmur2(keys, partition_count):
    from kafka.partitioner.default import murmur2 as scalar_murmur2

    array = pa.array(keys * 40, pa.binary())
    assert murmur2(array).tolist() == [scalar_murmur2(key) & 0xFFFFFFFF for key in keys] * 40
    expected = [(scalar_murmur2(key) & 0x7FFFFFFF) % partition_count for key in keys]
    assert partition_rows(array, partition_count).tolist() == expected * 40
    assert partition_rows(array.slice(1, len(keys) - 1), partition_count).tolist() == expected[1:]


@given(st.lists(st.one_of(st.integers(0, 6), st.integers(0, 2**31 - 1))))
def test_sorted_rows_keep_their_order_within_each_partition(partitions):
    order = sort_rows(np.array(partitions, np.int32))
    rows = list(range(len(partitions))) if order.rows is None else order.rows.tolist()
    assert order.partitions == sorted(set(partitions))
    assert (order.borders[0], order.borders[-1]) == (0, len(partitions))
    for partition, start, end in zip(
        order.partitions, order.borders, order.borders[1:], strict=False
    ):
        assert rows[start:end] == [i for i, p in enumerate(partitions) if p == partition]


@given(
    st.lists(st.tuples(st.integers(0, 9), RECORD), max_size=60),
    st.sampled_from(sorted(COMPRESSIONS)),
    st.integers(900, 3000),
    st.integers(1, 5000),
)
@settings(max_examples=200)
def test_a_block_encodes_as_each_partition_alone_would(rows, compression, bytes_max, group_bytes):
    partitions = np.array([partition for partition, _ in rows], np.int32)
    columns = columns_of([record for _, record in rows])
    with mock.patch.object(encode, "_GROUP_BYTES", group_bytes):
        encoded = [
            (partition, bytes(batch))
            for partition, batch in encode_partitioned(
                *columns, partitions, compression=compression, record_batch_bytes_max=bytes_max
            )
        ]
    assert [p for p, _ in encoded] == sorted(p for p, _ in encoded)
    for partition in set(partitions.tolist()):
        records = [record for p, record in rows if p == partition]
        batches = [batch for p, batch in encoded if p == partition]
        assert twin_rows(batches, bytes_max) == records
    if compression == "none":
        for _, batch in encoded:
            assert batch == encode_batch(twin_rows([batch], bytes_max))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 120)), min_size=1), st.integers(90, 150)
)
def test_a_row_that_fits_no_batch_is_named_as_it_came(rows, bytes_max):
    partitions = np.array([partition for partition, _ in rows], np.int32)
    values = pa.array([b"v" * size for _, size in rows], pa.binary())
    alone = [len(encode_batch([Record(None, b"v" * size, 1)])) for _, size in rows]
    large = {row for row, size_bytes in enumerate(alone) if size_bytes > bytes_max}
    columns = None, values, np.ones(len(rows), np.int64), None, partitions
    if not large:
        assert list(encode_partitioned(*columns, record_batch_bytes_max=bytes_max))
        return
    with pytest.raises(RecordTooLarge) as caught:
        encode_partitioned(*columns, record_batch_bytes_max=bytes_max)
    assert caught.value.row_index in large
    assert caught.value.size_bytes == alone[caught.value.row_index]


@given(st.integers(0, 400), st.integers(62, 500))
def test_a_record_alone_fits_exactly_when_its_batch_does(value_bytes, bytes_max):
    value = b"v" * value_bytes
    exact = len(encode_batch([Record(None, value, 1)]))
    columns = None, pa.array([value, b"", value], pa.binary()), np.array([1, 1, 10**6]), None
    if exact <= bytes_max:
        batches = encode_batches(*columns, record_batch_bytes_max=bytes_max)
        assert max(len(batch) for batch in batches) <= bytes_max
        joined_rows = sum(next(iter_batches(batch))[0].record_count for batch in batches)
        assert joined_rows == 3
    elif bytes_max >= HEADER_BYTES + 8:
        with pytest.raises(RecordTooLarge) as caught:
            encode_batches(*columns, record_batch_bytes_max=bytes_max)
        assert (caught.value.row_index, caught.value.size_bytes) == (0, exact)
