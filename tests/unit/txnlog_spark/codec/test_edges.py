"""Edges of the codec that examples say better than properties."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from support.query.encode_rows import encode_batches

from txnlog_kafka.wire.compression import COMPRESSIONS, compress
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    CorruptBatch,
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    iter_batches,
    parse_header,
    refresh_crc,
    stamp_offsets,
)
from txnlog_kafka.wire.varint import encode_signed
from txnlog_spark.codec.decode import (
    CorruptRange,
    FetchedRange,
    decode_batches,
    iter_decoded,
)
from txnlog_spark.codec.encode import RecordTooLarge
from txnlog_spark.codec.partitioner import murmur2, partition_rows
from txnlog_spark.codec.record_headers import HEADERS_TYPE, key_texts
from txnlog_spark.codec.record_walk import TOGETHER_MIN

TIMES = np.array([1, 2, 3], np.int64)
VALUES = pa.array([b"a", b"b", b"c"], pa.binary())


def encode(values=VALUES, times=TIMES, keys=None, headers=None, **options):
    options.setdefault("record_batch_bytes_max", 1000)
    return encode_batches(keys, values, times, headers, **options)


def test_no_rows_make_no_batch():
    assert encode(VALUES.slice(0, 0), TIMES[:0]) == []


def test_an_oversized_row_is_named_by_its_index_and_nothing_is_returned():
    values = pa.array([b"a", b"x" * 2000, b"c"], pa.binary())
    with pytest.raises(RecordTooLarge, match="row 1 takes a record batch of 2070 bytes"):
        encode(values)


def test_string_columns_and_slices_encode_as_their_bytes():
    words = pa.array(["-", "é", None, "b", "-"]).slice(1, 3)
    (batch,) = encode(words, keys=pa.chunked_array([["k"], [None, ""]]))
    columns = decode_batches(batch, start_offset=0, end_offset=3, aborted=None)
    assert columns.values.to_pylist() == ["é".encode(), None, b"b"]
    assert columns.keys.to_pylist() == [b"k", None, b""]


def test_a_null_header_key_and_an_unknown_compression_are_refused():
    headers = pa.array([[{"key": None, "value": b"x"}], None, None], HEADERS_TYPE)
    with pytest.raises(ValueError, match="header's key is null"):
        encode(headers=headers)
    with pytest.raises(ValueError, match="compression 'brotli' is not one of none, gzip"):
        encode(compression="brotli")


def test_a_header_key_that_is_no_utf8_is_read_as_java_reads_it():
    # Clients in C write any bytes; a reader that stopped there could never get past them.
    data = bytearray(
        encode_batch([Record(None, b"v", 1, (("kkkk", b"x"),)), Record(None, b"w", 1)])
    )
    at = data.index(b"kkkk")
    data[at : at + 4] = b"a\xff\xc3z"
    refresh_crc(data, 0, len(data))
    columns = decode_batches(data, start_offset=0, end_offset=2, aborted=None, include_headers=True)
    assert columns.headers.to_pylist() == [[{"key": "a\ufffd\ufffdz", "value": b"x"}], []]


# As new String(bytes, UTF_8) of Java has them: compared on 37,655 sequences of bytes.
KEYS = {
    b"\xff": "\ufffd",
    "größe".encode("latin-1"): "gr\ufffd\ufffde",
    "größe".encode()[:3]: "gr\ufffd",
    b"a\xed\xa0\x80b": "a\ufffdb",
    b"\xed\xbf": "\ufffd",
    b"\xc0\x80": "\ufffd\ufffd",
    "größe".encode(): "größe",
    b"": "",
}


def test_a_header_key_becomes_the_text_that_java_makes_of_it():
    assert key_texts(pa.array([*KEYS], pa.binary())).to_pylist() == [*KEYS.values()]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        encode(times=TIMES[:2])


def test_a_batch_that_compression_would_grow_is_kept_plain():
    (batch,) = encode(compression="gzip")
    assert parse_header(batch).compression == 0


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_say_their_codec_and_keep_the_limit(name):
    values = pa.array([b"abcdefgh" * 50] * 100, pa.binary())
    times = np.arange(100, dtype=np.int64)
    batches = encode(values, times, compression=name, record_batch_bytes_max=5000)
    assert len(batches) > 1
    assert {parse_header(batch).compression for batch in batches} == {COMPRESSIONS[name]}
    assert sum(parse_header(batch).record_count for batch in batches) == 100


def test_log_append_time_gives_every_record_the_batchs_timestamp():
    (batch,) = encode()
    batch[22] |= 0x08
    refresh_crc(batch, 0, len(batch))
    columns = decode_batches(batch, start_offset=0, end_offset=3, aborted=None)
    assert columns.timestamps.tolist() == [3, 3, 3]
    assert columns.timestamp_types.tolist() == [1, 1, 1]


def test_a_torn_last_batch_is_left_for_the_next_fetch():
    first, second = bytearray(encode()[0]), bytearray(encode()[0])
    stamp_offsets(second, 0, base_offset=3, leader_epoch=0)
    data = bytes(first + second[:-1])
    columns = decode_batches(data, start_offset=1, end_offset=9, aborted=None)
    assert columns.offsets.tolist() == [1, 2]
    nothing = decode_batches(data[:40], start_offset=7, end_offset=9, aborted=None)
    assert not len(nothing.keys)


def test_a_wrong_crc_names_the_batch():
    (batch,) = encode()
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match=r"CRC .* of the batch at base offset 0"):
        decode_batches(batch, start_offset=0, end_offset=3, aborted=None)


@pytest.mark.parametrize("record_count", [2, 4, -1, 2**31 - 1])
def test_a_lie_about_the_record_count_is_corruption(record_count):
    (batch,) = encode()
    batch[57:61] = record_count.to_bytes(4, "big", signed=True)
    refresh_crc(batch, 0, len(batch))
    with pytest.raises(CorruptBatch, match="batch at 0 has"):
        decode_batches(batch, start_offset=0, end_offset=3, aborted=None)


def corrupt(body: bytes, count: int, *, attributes: int = 0) -> bytes:
    """A batch with this body and a right checksum."""
    batch = bytearray(encode_batch([Record(None, b"x")])[:61] + body)
    batch[22] |= attributes
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    refresh_crc(batch, 0, len(batch))
    return bytes(batch)


@pytest.mark.parametrize("length", [2**63 - 1, 2**62, 2**31])
@pytest.mark.parametrize("count", [1, 2])
def test_a_lie_about_the_length_of_a_record_is_corruption(length, count):
    batch = corrupt(encode_signed(length) + bytes(20), count)
    with pytest.raises(CorruptBatch, match="go beyond them"):
        decode_batches(batch, start_offset=0, end_offset=3, aborted=None)


def test_records_too_short_to_be_any_are_refused_before_they_take_the_memory():
    body = compress(COMPRESSIONS["zstd"], bytes(16 * 1024 * 1024))
    batch = corrupt(body, 16 * 1024 * 1024, attributes=COMPRESSIONS["zstd"])
    with pytest.raises(CorruptBatch, match="its 16777216 records do not fit"):
        decode_batches(batch, start_offset=0, end_offset=3, aborted=None)


@pytest.mark.parametrize("count", [-1, -(2**31)])
def test_a_control_batch_of_fewer_than_no_records_is_corruption(count):
    batch = bytearray(encode_marker(TransactionMarker(7, 0, MarkerType.ABORT, 0), timestamp=0))
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    refresh_crc(batch, 0, len(batch))
    with pytest.raises(CorruptBatch, match=f"control batch at offset 0 has {count} records"):
        decode_batches(bytes(batch), start_offset=0, end_offset=3, aborted=[])


def test_many_batches_that_lie_about_their_records_are_refused_before_it_takes_the_memory():
    """Many are walked together, in an array with a place for each record."""
    data = bytearray()
    for number in range(2 * TOGETHER_MIN):
        (batch,) = encode()
        batch[57:61] = (2**31 - 1).to_bytes(4, "big")
        stamp_offsets(batch, 0, base_offset=3 * number, leader_epoch=0)
        refresh_crc(batch, 0, len(batch))
        data += batch
    with pytest.raises(CorruptBatch, match="its 2147483647 records do not fit"):
        decode_batches(data, start_offset=0, end_offset=1000, aborted=None)


def test_a_compression_bomb_is_refused_before_it_takes_the_memory():
    bomb = compress(COMPRESSIONS["zstd"], bytes(300 * 1024 * 1024))
    batch = corrupt(bomb, 1, attributes=COMPRESSIONS["zstd"])
    with pytest.raises(CorruptBatch, match="more than the limit"):
        decode_batches(batch, start_offset=0, end_offset=3, aborted=None)


def test_a_long_answer_is_decoded_in_bounded_memory():
    values = pa.array([b"v" * 1000] * 20_000, pa.binary())
    batches = encode(values, np.arange(20_000), record_batch_bytes_max=100_000)
    offset = 0
    for batch in batches:
        stamp_offsets(batch, 0, base_offset=offset, leader_epoch=0)
        offset += parse_header(batch).record_count
    data = b"".join(batches)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    rows = 0
    for columns in iter_decoded([FetchedRange(data, 0, 20_000, None)]):
        rows += len(columns.keys)
        assert pa.total_allocated_bytes() - before < 16_000_000
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()
    assert rows == 20_000


def test_rows_with_a_null_key_go_to_the_given_partition():
    keys = pa.array([b"21", None, b"foobar", b""], pa.binary())
    partitions = partition_rows(keys, 7, null_key_partition=5)
    assert partitions.tolist() == [
        (-973932308 & 0x7FFFFFFF) % 7,
        5,
        (-790332482 & 0x7FFFFFFF) % 7,
        int(murmur2(keys)[3] & 0x7FFFFFFF) % 7,
    ]


def test_one_huge_key_among_many_is_hashed_without_a_round_per_word():
    keys = pa.array([b"x" * 100_000] + [b"k"] * 100, pa.binary())
    alone = murmur2(keys.slice(0, 1))
    assert murmur2(keys)[0] == alone[0]


def test_every_batch_starts_at_delta_zero_of_its_own_first_timestamp():
    times = np.arange(100, dtype=np.int64) * 1000
    batches = encode(pa.array([b"v" * 50] * 100, pa.binary()), times, record_batch_bytes_max=700)
    first = 0
    for batch in batches:
        ((header, _),) = iter_batches(batch)
        assert header.base_timestamp == first * 1000
        assert header.max_timestamp == (first + header.record_count - 1) * 1000
        first += header.record_count


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_of_several_ranges_the_corrupt_one_is_named(damaged: int) -> None:
    """The error names the range also if the checksum is right and the records are corrupt."""
    for is_checksum_right in (False, True):
        parts = [bytearray(encode_batch([Record(None, b"value", 1)] * 3)) for _ in range(3)]
        parts[damaged][HEADER_BYTES] ^= 2
        if is_checksum_right:
            refresh_crc(parts[damaged], 0, len(parts[damaged]))
        with pytest.raises(CorruptRange) as caught:
            list(iter_decoded([FetchedRange(each, 0, 3, None) for each in parts]))
        assert caught.value.range_index == damaged
