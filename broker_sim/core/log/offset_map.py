"""The latest offset of each key in the part of a log that is being compacted.

Keys are kept as a hash of 16 bytes (Kafka's `SkimpyOffsetMap` does so, with MD5; here a hash for
which nobody can make two keys that collide). A full map is not a fault: the pass then covers less.
"""

from __future__ import annotations

from hashlib import blake2b

ENTRY_BYTES = 200
"""Bytes that an entry costs in this process: hash, offset and the slots of the dictionary."""


class OffsetMap:
    """Key hashes and offsets, up to a number of keys."""

    def __init__(self, keys_max: int) -> None:
        self.latest_offset = -1
        """Up to here, inclusive, all keys of the log are in the map."""
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}

    def put(self, key: bytes, record_offset: int) -> bool:
        """Remember a later offset of the key; False when there is no space for another key."""
        digest = blake2b(key, digest_size=16).digest()
        if len(self._offsets) >= self._keys_max and digest not in self._offsets:
            return False
        self._offsets[digest] = record_offset
        return True

    def is_latest(self, key: bytes, record_offset: int) -> bool:
        """No later record of the key is known."""
        digest = blake2b(key, digest_size=16).digest()
        return record_offset >= self._offsets.get(digest, -1)
