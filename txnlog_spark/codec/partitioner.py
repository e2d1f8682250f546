"""Kafka's default partitioner: murmur2 of the key, a column at a time.

Source: Kafka's `Utils.murmur2` and `BuiltInPartitioner.partitionForKey`; so a row goes to the same
partition as from the Java client, and per-key order holds across producers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from txnlog_spark.codec.binary import as_binary, binary_parts

Int32Array = npt.NDArray[np.int32]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF
_VECTOR_ROWS_MIN = 32
"""With fewer rows left, words are hashed one by one: rounds over a huge key would cost more."""


def partition_rows(
    keys: Any,
    partition_count: int | Int32Array,
    *,
    null_key_partition: int | Int32Array = 0,
) -> Int32Array:
    """The partition of each row: `toPositive(murmur2(key)) % partition_count`.

    `keys` is a binary or string Arrow array. Rows with a null key go to `null_key_partition`,
    which the caller picks per batch (Kafka's sticky partitioner). Both may differ row by row.
    """
    hashes = murmur2(keys) & np.uint32(0x7FFFFFFF)
    partitions = (hashes % np.asarray(partition_count, np.uint32)).astype(np.int32)
    if keys.null_count:
        is_null = keys.is_null().to_numpy(zero_copy_only=False)
        partitions = np.where(is_null, np.asarray(null_key_partition, np.int32), partitions)
    return partitions


def murmur2(keys: Any) -> npt.NDArray[np.uint32]:
    """The 32-bit murmur2 hash of each element, null as empty; unsigned where Java's is signed."""
    bounds, bytes_ = binary_parts(as_binary(keys))
    offsets = bounds.astype(np.int64)
    # Four bytes more than any key: a word is read whole even where only its tail counts.
    end = int(offsets[-1])
    data = np.zeros(end + 4, np.uint8)
    data[:end] = bytes_[:end]
    starts = offsets[:-1]
    lengths = offsets[1:] - starts
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    _mix_words(hashes, data, starts, lengths >> 2)
    _mix_tails(hashes, data, starts, lengths)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _words(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]) -> Any:
    """Little-endian words at any positions."""
    word = data[positions].astype(np.uint32)
    for index in (1, 2, 3):
        word |= data[positions + index].astype(np.uint32) << np.uint32(8 * index)
    return word


def _mix_words(
    hashes: npt.NDArray[np.uint32],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    word_counts: npt.NDArray[np.int64],
) -> None:
    rows = np.flatnonzero(word_counts)
    index = 0
    while len(rows) >= _VECTOR_ROWS_MIN:
        word = _words(data, starts[rows] + 4 * index) * np.uint32(_M)
        word = (word ^ (word >> np.uint32(_R))) * np.uint32(_M)
        hashes[rows] = (hashes[rows] * np.uint32(_M)) ^ word
        index += 1
        rows = rows[word_counts[rows] > index]
    for row in rows.tolist():
        start, end = int(starts[row]) + 4 * index, int(starts[row] + 4 * word_counts[row])
        hashes[row] = _mix_scalar(int(hashes[row]), data[start:end].tobytes())


def _mix_scalar(state: int, words: bytes) -> int:
    for position in range(0, len(words), 4):
        word = int.from_bytes(words[position : position + 4], "little") * _M & _MASK
        word = (word ^ word >> _R) * _M & _MASK
        state = (state * _M & _MASK) ^ word
    return state


def _mix_tails(
    hashes: npt.NDArray[np.uint32],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> None:
    rows = np.flatnonzero(lengths & 3)
    if not len(rows):
        return
    tails = _words(data, starts[rows] + (lengths[rows] & ~np.int64(3)))
    bits = ((lengths[rows] & 3) * 8).astype(np.uint32)
    tails &= (np.uint32(1) << bits) - np.uint32(1)
    hashes[rows] = (hashes[rows] ^ tails) * np.uint32(_M)
