"""Bytes written down from Kafka's published layout, not from our own output."""

import struct

import crc32c_rs as crc32c
import numpy as np
import pyarrow as pa
from support.query.encode_rows import encode_batches

from broker_sim.client.writer import partition_of
from txnlog_kafka.wire.compression import compress
from txnlog_kafka.wire.records import Compression
from txnlog_spark.codec.decode import decode_batches
from txnlog_spark.codec.partitioner import murmur2

RECORDS = bytes.fromhex(
    # length 9 -> 0x12; attributes; time delta 0; offset delta 0; key "k"; value "vw"; no headers
    "12 00 00 00 02 6b 04 76 77 00"
    # length 7 -> 0x0e; time delta 3 -> 06; offset delta 1 -> 02; key null -> 01; value "x"
    "0e 00 06 02 01 02 78 00"
    # length 12 -> 0x18; time delta -1 -> 01; offset delta 2 -> 04; key ""; value null; one header
    "18 00 01 04 00 01 02 02 68 06 61 62 63"
)


def golden_batch() -> bytes:
    """The three records above as one plain batch at offset 0, timestamps from 1000 ms."""
    tail = struct.pack(">hiqqqhii", 0, 2, 1000, 1003, -1, -1, -1, 3) + RECORDS
    head = struct.pack(">qiib", 0, 4 + 1 + 4 + len(tail), -1, 2)
    return head + struct.pack(">I", crc32c.crc32c(tail)) + tail


KEYS = pa.array([b"k", None, b""], pa.binary())
VALUES = pa.array([b"vw", b"x", None], pa.binary())
HEADERS = pa.array(
    [[], None, [{"key": "h", "value": b"abc"}]],
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
)


def test_three_records_with_nulls_and_a_header_encode_to_the_published_layout():
    times = np.array([1000, 1003, 999])
    (batch,) = encode_batches(KEYS, VALUES, times, HEADERS, record_batch_bytes_max=1000)
    assert bytes(batch).hex() == golden_batch().hex()


def test_the_published_layout_decodes_to_three_records():
    columns = decode_batches(
        golden_batch(), start_offset=0, end_offset=9, aborted=None, include_headers=True
    )
    assert columns.keys.equals(KEYS)
    assert columns.values.equals(VALUES)
    assert columns.offsets.tolist() == [0, 1, 2]
    assert columns.timestamps.tolist() == [1000, 1003, 999]
    assert columns.headers.to_pylist() == [[], [], [{"key": "h", "value": b"abc"}]]


def test_murmur2_gives_the_values_of_kafkas_own_test():
    # Kafka's UtilsTest.testMurmur2.
    cases = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    hashes = murmur2(pa.array(list(cases), pa.binary()))
    assert hashes.view(np.int32).tolist() == list(cases.values())
    positive = [hashed & 0x7FFFFFFF for hashed in cases.values()]
    assert [partition_of(key, 2**31) for key in cases] == positive
    assert partition_of(b"", 1) == 0


def test_lz4_and_snappy_carry_the_framing_that_kafkas_java_client_reads():
    assert compress(Compression.LZ4, b"abc") == bytes.fromhex(
        "04224d18 60 40 82 03000080 616263 00000000"
    )
    assert compress(Compression.SNAPPY, b"abc") == bytes.fromhex(
        "82534e4150505900 00000001 00000001 00000005 03 08 616263"
    )
