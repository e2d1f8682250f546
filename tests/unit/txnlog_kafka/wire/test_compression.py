"""Compressed batches of real clients, looked into by time; hostile ones refused within limits."""

from __future__ import annotations

import contextlib
import gzip
import random
import subprocess
import sys

import pyarrow as pa
import pytest

from broker_sim.server.codecs import CODECS as OF_THE_BROKER
from txnlog_kafka.wire.compression import compress, decompress
from txnlog_kafka.wire.records import Compression, CorruptBatch

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
DATA = b"some records, " * 5000


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("data", [b"", DATA, random.Random(1).randbytes(200_000)])
def test_what_is_compressed_is_read_again(codec, data):
    assert decompress(codec, compress(codec, data)) == data


def test_a_raw_snappy_block_as_librdkafka_writes_it_is_read():
    block = pa.Codec("snappy").compress(DATA, asbytes=True)
    assert decompress(Compression.SNAPPY, block) == DATA


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("data", [b"", b"\x00", b"nonsense" * 10, b"\xff" * 20])
def test_bytes_that_are_not_compressed_are_refused_or_nothing(codec, data):
    with contextlib.suppress(CorruptBatch):
        assert decompress(codec, data) == b""


def test_an_unknown_codec_is_refused():
    with pytest.raises(CorruptBatch):
        decompress(7, b"abc")


def test_a_bomb_is_refused():
    with pytest.raises(CorruptBatch, match="limit of 1000 "):
        decompress(Compression.GZIP, gzip.compress(bytes(100_000)), 1000)
    with pytest.raises(CorruptBatch, match="limit of 1000 "):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x07", 1000)
    with pytest.raises(CorruptBatch, match="claims 100000 bytes"):
        decompress(Compression.SNAPPY, b"\xa0\x8d\x06" + b"\x00" * 20)


def test_the_broker_takes_less_than_a_reader():
    bomb = compress(Compression.ZSTD, bytes(65 * 1024 * 1024))
    assert OF_THE_BROKER.decompress is not None
    with pytest.raises(CorruptBatch, match="limit of 67108864 "):
        OF_THE_BROKER.decompress(Compression.ZSTD, bomb)


def test_pyarrow_is_imported_with_the_first_compressed_batch():
    code = """
import sys
from broker_sim.server.codecs import CODECS
assert "pyarrow" not in sys.modules
CODECS.compress(1, b"x")
assert "pyarrow" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
