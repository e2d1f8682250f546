"""Compressed batches of real clients, looked into by time; hostile ones refused within limits."""

from __future__ import annotations

import contextlib
import gzip
import random

import pyarrow as pa
import pytest

from broker_sim.server import codecs
from broker_sim.server.codecs import compress, decompress
from txnlog_spark.codec import compression
from txnlog_spark.wire.records import Compression, CorruptBatch

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
DATA = b"some records, " * 5000


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_the_connector_compresses_is_read(codec):
    assert decompress(codec, compression.compress(codec, DATA)) == DATA


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


def test_a_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(codecs, "DECOMPRESSED_BYTES_MAX", 1000)
    with pytest.raises(CorruptBatch, match="over 1000"):
        decompress(Compression.GZIP, gzip.compress(bytes(100_000)))
    with pytest.raises(CorruptBatch, match="over 1000"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x07")


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("data", [b"", DATA, random.Random(1).randbytes(200_000)])
def test_what_the_broker_compresses_again_is_what_the_connector_writes(codec, data):
    compressed = compress(codec, data)
    assert compression.decompress(codec, compressed) == data
    if codec in (Compression.SNAPPY, Compression.LZ4):
        assert compressed == compression.compress(codec, data)
