"""Chunks of staged bytes, their index and its digest: never other bytes than were staged."""

from __future__ import annotations

import dataclasses

import pytest
from crc32c_rs import crc32c

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.staging.chunks import (
    ChunkList,
    IndexDamaged,
    decode_index,
)


def unread(position: int, size: int) -> bytes:
    raise AssertionError("an index is decoded without its chunks' bytes")


def test_small_batches_share_a_chunk_of_256_kib() -> None:
    chunks = ChunkList()
    for size in [80_000] * 12 + [300_000] * 2:
        chunks.add("out", 0, bytes(size), 1)
    index, summary = chunks.index()
    found = decode_index(index, summary, unread)
    assert [chunk.size_bytes // 10_000 for chunk in found] == [24, 24, 24, 24, 30, 30]
    assert (summary.chunk_count, summary.record_count, summary.size_bytes) == (6, 14, 1_560_000)


def test_the_index_says_where_the_chunks_of_each_partition_are() -> None:
    chunks, staged = ChunkList(), b""
    double = encode_batch([Record(b"k", b"a"), Record(b"k", b"b")])
    single = encode_batch([Record(b"k", b"c")])
    for topic, partition, data, count in [
        ("out", 0, double, 2),
        ("out", 0, single, 1),
        ("other", 0, double, 2),
        ("out", 1, single, 1),
        ("out", 0, double, 2),
    ]:
        chunks.add(topic, partition, data, count)
        staged += data
    found = decode_index(*chunks.index(), unread)
    assert [(c.topic, c.partition, c.record_count) for c in found] == [
        ("out", 0, 3),
        ("other", 0, 2),
        ("out", 1, 1),
        ("out", 0, 2),
    ]
    for chunk in found:
        data = staged[chunk.position : chunk.position + chunk.size_bytes]
        assert crc32c(data) == chunk.checksum


def test_the_index_of_another_attempt_is_refused_however_whole_it_is() -> None:
    one, other = ChunkList(), ChunkList()
    one.add("out", 0, b"abc", 1)
    other.add("out", 0, b"abd", 1)
    with pytest.raises(IndexDamaged, match="another digest"):
        decode_index(other.index()[0], one.index()[1], unread)


def test_an_index_that_does_not_parse_cannot_have_the_digest() -> None:
    chunks = ChunkList()
    chunks.add("out", 0, b"abc", 1)
    index, summary = chunks.index()
    assert len(decode_index(index, summary, unread)) == 1
    with pytest.raises(IndexDamaged):
        decode_index(index[:-1], summary, unread)
    with pytest.raises(IndexDamaged):
        decode_index(index, dataclasses.replace(summary, digest=b""), unread)
