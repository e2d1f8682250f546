"""Hostile bytes for a broker: frames that are wrong in every way, and how to see that it held.

Everything comes from one seeded generator, and touches only names that begin with `fuzz` or are
among `message_build.TEXTS`; what a test wants to find unchanged must be named otherwise.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from typing import Any

from support.core.batch_layout import BASE_SEQUENCE_AT, LAST_OFFSET_DELTA_AT
from support.core.message_build import any_request
from support.raw.requests import produce_request, request

from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import APIS, Api, ApiKey
from txnlog_kafka.wire.records import (
    ATTRIBUTES_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    refresh_crc,
)

FUZZ_TOPIC = "fuzz"
NEW_TIMESTAMP = 1_700_000_000_000

INSERTED = (
    b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00",
    b"\xff\xff", b"\x7f\xff", b"\xff\xfe", b"\x00", b"\x01", b"\xff", b"\x80" * 10 + b"\x01",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x01\x63\x05", b"\x05\x63\x00",
)  # fmt: skip
"""Lengths of -1, 0 and 2^31-1, negative counts, long varints, unknown tags."""

NO_REQUEST = (
    struct.pack(">i", -1),
    struct.pack(">i", 0),
    struct.pack(">i", 2**31 - 1) + b"x" * 100,
    struct.pack(">i", 104_857_601) + b"x" * 100,
    bytes.fromhex("16030100c8010000c40303") + b"\x00" * 189,
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x00\x00\x00\x01\x00",
    struct.pack(">ihhih", 10, 9999, 0, 1, -1),
    struct.pack(">ihhih", 10, -5, 0, 1, -1),
    struct.pack(">ihhih", 10, 4, 0, 1, -1),
    struct.pack(">ihhih", 10, 3, 99, 1, -1),
    struct.pack(">ihhih", 10, 18, 99, 1, -1),
    struct.pack(">ihhih", 10, 3, -1, 1, -1),
    struct.pack(">ihhih", 10, 3, 1, 1, 3000),
    struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
)
"""Bytes that no broker accepts as a request. All but ApiVersions 99 close the connection."""


# --------------------------------------------------------------------------- record batches


def good_batch(*values: str, **producer: Any) -> bytearray:
    """A batch that a broker takes."""
    return bytearray(
        encode_batch([Record(None, v.encode(), NEW_TIMESTAMP) for v in values], **producer)
    )


def changed(position: int, data: bytes, *, fix_crc: bool = True) -> bytes:
    """A good batch of two records with some bytes of its header replaced."""
    batch = good_batch("a", "b")
    batch[position : position + len(data)] = data
    if fix_crc:
        refresh_crc(batch, 0, len(batch))
    return bytes(batch)


def with_records(records: bytes, count: int, *, codec: int = 0) -> bytes:
    """A batch of any bytes for records, with a header and a CRC that are right."""
    batch = good_batch(*("x" for _ in range(max(count, 1))))[:61] + records
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[ATTRIBUTES_AT + 1] |= codec
    refresh_crc(batch, 0, len(batch))
    return bytes(batch)


def _number(value: int) -> bytes:
    return struct.pack(">i", value)


REFUSED_BATCHES: dict[str, bytes] = {
    "nothing": b"",
    "half a header": bytes(good_batch("a"))[:30],
    "a cut batch": bytes(good_batch("a", "b"))[:-3],
    "bit rot": changed(65, b"\xff", fix_crc=False),
    "magic 0": changed(MAGIC_AT, b"\x00"),
    "magic 1": changed(MAGIC_AT, b"\x01"),
    "magic 3": changed(MAGIC_AT, b"\x03"),
    "length 0": changed(8, _number(0), fix_crc=False),
    "length -1": changed(8, _number(-1), fix_crc=False),
    "length 2^31-1": changed(8, _number(2**31 - 1), fix_crc=False),
    "base offset 7": changed(0, struct.pack(">q", 7)),
    "count 0": changed(RECORD_COUNT_AT, _number(0)),
    "count -1": changed(RECORD_COUNT_AT, _number(-1)),
    "count 2^31-1": changed(RECORD_COUNT_AT, _number(2**31 - 1)),
    "count too low": changed(RECORD_COUNT_AT, _number(1)),
    "count too high": changed(RECORD_COUNT_AT, _number(3)),
    "negative last offset delta": changed(LAST_OFFSET_DELTA_AT, _number(-1)),
    "huge last offset delta": changed(LAST_OFFSET_DELTA_AT, _number(2**31 - 1)),
    "a control batch": changed(ATTRIBUTES_AT, struct.pack(">h", 32)),
    "a marker": bytes(
        encode_marker(TransactionMarker(7, 0, MarkerType.COMMIT, 0), timestamp=NEW_TIMESTAMP)
    ),
    "transactional without a producer": changed(ATTRIBUTES_AT, struct.pack(">h", 16)),
    "codec 7": changed(ATTRIBUTES_AT, struct.pack(">h", 7)),
    "append time": changed(ATTRIBUTES_AT, struct.pack(">h", 8)),
    "of next year": changed(MAX_TIMESTAMP_AT, struct.pack(">q", 2**62)),
    "a producer without a sequence": changed(PRODUCER_ID_AT, struct.pack(">qhi", 5, 0, -1)),
    "a producer without an epoch": changed(PRODUCER_ID_AT, struct.pack(">qhi", 5, -1, 0)),
    "a sequence in the middle": changed(BASE_SEQUENCE_AT, _number(-7))[:-1],
    "two batches": bytes(good_batch("a") + good_batch("b")),
    "records of no bytes": with_records(b"", 2),
}
"""Kafka refuses each of these, and so must we; nothing is appended."""


def bombs() -> dict[str, bytes]:
    """Small batches that are hundreds of MB when decompressed, one for each codec."""
    import pyarrow as pa

    record = b"\x0c\x00\x00\x00\x01\x01\x00"
    plain = record * (200 * 1024 * 1024 // len(record))
    made = {"gzip": with_records(gzip.compress(plain, 1), 2, codec=1)}
    for codec, name in ((3, "lz4"), (4, "zstd")):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            stream.write(plain)
        made[name] = with_records(sink.getvalue().to_pybytes(), 2, codec=codec)
    made["snappy"] = with_records(b"\xff\xff\xff\xff\x07" + b"\x00" * 40, 2, codec=2)
    return {name: batch for name, batch in made.items() if len(batch) < 1_000_000}


# --------------------------------------------------------------------------- frames


class Hostile:
    """An endless supply of frames, each with its length in front, from one seed."""

    def __init__(self, seed: int | str, apis: list[Api] | None = None) -> None:
        self.rng = random.Random(f"hostile/{seed}")
        self._apis = apis or list(APIS.values())
        self._kinds: tuple[tuple[Callable[[], bytes], int], ...] = (
            (self.valid, 3),
            (self.mutated, 10),
            (self.batch, 4),
            (self.random, 2),
            (lambda: self.rng.choice(NO_REQUEST), 1),
        )

    def frame(self) -> bytes:
        kinds, weights = zip(*self._kinds, strict=True)
        (kind,) = self.rng.choices(kinds, weights)
        return kind()

    def valid(self) -> bytes:
        """Return a frame in which every field has a value of its type, sensible or not."""
        message, version = any_request(self.rng, self.rng.choice(self._apis))
        client_id = self.rng.choice((None, "", "fuzz"))
        correlation_id = self.rng.choice((0, 1, -1, 2**31 - 1))
        return bytes(encode_request(message, version, correlation_id, client_id))

    def mutated(self) -> bytes:
        """A valid request with bytes changed, put in, taken out, or with another header."""
        body = bytearray(self.valid()[4:])
        for _ in range(self.rng.choice((1, 1, 1, 2, 5))):
            self._mutate(body)
        return struct.pack(">i", max(len(body), 1)) + (bytes(body) or b"\x00")

    def batch(self) -> bytes:
        """A Produce of a wrong batch, or of random bytes."""
        choice = self.rng.random()
        if choice < 0.7:
            records = self.rng.choice(list(REFUSED_BATCHES.values()))
        elif choice < 0.9:
            records = bytes(self._rotten_batch())
        else:
            records = self.rng.randbytes(self.rng.randrange(200))
        transactional_id = self.rng.choice((None, None, "fuzz-txn", ""))
        message = produce_request(
            {(FUZZ_TOPIC, self.rng.choice((0, 0, 0, -1, 9))): records},
            self.rng.choice((-1, 1, 0, 2)),
            transactional_id,
        )
        return bytes(encode_request(message, self.rng.randint(3, 12), 5, "fuzz"))

    def random(self) -> bytes:
        body = self.rng.randbytes(self.rng.randrange(1, 200))
        if self.rng.random() < 0.7:
            api = self.rng.choice(self._apis)
            version = self.rng.randint(api.version_min, api.version_max)
            body = struct.pack(">hhih", api.key, version, 1, -1) + body
        return struct.pack(">i", len(body)) + body

    def _mutate(self, body: bytearray) -> None:
        rng = self.rng
        at = rng.randrange(len(body)) if body else 0
        kind = rng.randrange(5)
        if kind == 0 and body:
            body[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            body[at:at] = rng.choice(INSERTED)
        elif kind == 2:
            data = rng.choice(INSERTED)
            body[at : at + len(data)] = data
        elif kind == 3:
            del body[at : at + rng.choice((1, 2, 4, 1000))]
        elif len(body) >= 4:
            api = rng.choice(self._apis)
            version = rng.choice((api.version_min, api.version_max, api.version_max + 1, -1))
            body[:4] = struct.pack(">hh", api.key, version)

    def _rotten_batch(self) -> bytearray:
        """A good batch with a few bytes changed and, mostly, a CRC that is right again."""
        producer = {}
        if self.rng.random() < 0.5:
            producer = {
                "producer_id": self.rng.choice((5, 2**62)),
                "producer_epoch": 0,
                "base_sequence": self.rng.choice((0, 1, 2**31 - 1)),
            }
        batch = good_batch("a", "bb", "ccc", **producer)
        for _ in range(self.rng.choice((1, 2, 4))):
            batch[self.rng.randrange(len(batch))] = self.rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        if self.rng.random() < 0.8:
            refresh_crc(batch, 0, len(batch))
        return batch


# --------------------------------------------------------------------------- state


Ask = Callable[[Any, int], Any]
"""(message, version) -> answer, of any kind of broker."""


def state_digest(
    ask: Ask, topics: list[str], groups: list[str], transactional_ids: list[str]
) -> Any:
    """Return all that the protocol tells of these names, as plain values to compare."""
    return (
        [_topic_state(ask, name) for name in topics],
        [_group_state(ask, name) for name in groups],
        _transaction_state(ask, transactional_ids),
    )


def _topic_state(ask: Ask, name: str) -> Any:
    metadata = request(ApiKey.METADATA, topics=[{"name": name}], allow_auto_topic_creation=False)
    answer = ask(metadata, 12).topics[0]
    ends = []
    for isolation, timestamp in ((0, -1), (1, -1), (0, -2)):
        partitions = [
            {"partition_index": p.partition_index, "current_leader_epoch": -1,
             "timestamp": timestamp}
            for p in answer.partitions
        ]  # fmt: skip
        message = request(
            ApiKey.LIST_OFFSETS,
            replica_id=-1,
            isolation_level=isolation,
            topics=[{"name": name, "partitions": partitions}],
        )
        found = ask(message, 7).topics[0].partitions
        ends.append([(p.partition_index, p.error_code, p.offset) for p in found])
    return name, answer.error_code, str(answer.topic_id), ends


def _group_state(ask: Ask, name: str) -> Any:
    groups = [{"group_id": name, "topics": None}]
    answer = ask(request(ApiKey.OFFSET_FETCH, groups=groups, require_stable=False), 8).groups[0]
    offsets = sorted(
        (t.name, p.partition_index, p.committed_offset, p.metadata)
        for t in answer.topics
        for p in t.partitions
    )
    return name, answer.error_code, offsets


def _transaction_state(ask: Ask, transactional_ids: list[str]) -> Any:
    answer = ask(request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=transactional_ids), 0)
    return [
        (t.transactional_id, t.error_code, t.transaction_state, t.producer_id, t.producer_epoch,
         sorted((each.topic, *sorted(each.partitions)) for each in t.topics))
        for t in answer.transaction_states
    ]  # fmt: skip
