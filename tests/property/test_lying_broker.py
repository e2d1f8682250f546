"""A broker that lies to the connector once: a clean error, and never a commit that is not there.

The test mutates an answer, or replaces it by any answer of the right shape; the request itself was
carried out or not. The connector's claim must be true, its error must be one of its own, and it
must come to an end. Drivers that start afterwards must find the batch done exactly once.
"""

from __future__ import annotations

import random
import struct

import pytest
from support.core.core_broker import CoreBroker
from support.core.message_build import fill
from support.query.commit_plans import build_plan, commit, is_committed, restart_until_done
from support.raw.hostile import INSERTED
from support.sockets.socket_broker import SocketBroker, answer_bytes

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.effects import Calls, Reply, Unanswered
from txnlog_kafka.operations.fetch import fetch_next
from txnlog_kafka.operations.fetch_cursor import FetchCursor
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP, fetch_committed, list_offsets
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.framing import MalformedFrame, decode_response, encode_response
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.errors import CommitStateUnknown, TxnLogError

LIES = 40
ASKED_MAX = 5_000
CASES = [
    (version, key)
    for version, skipped in ((1, ()), (2, (K.ADD_PARTITIONS_TO_TXN, K.ADD_OFFSETS_TO_TXN)))
    for key in (
        K.METADATA, K.FIND_COORDINATOR, K.INIT_PRODUCER_ID, K.OFFSET_FETCH, K.API_VERSIONS,
        K.ADD_PARTITIONS_TO_TXN, K.PRODUCE, K.ADD_OFFSETS_TO_TXN, K.TXN_OFFSET_COMMIT, K.END_TXN,
    )
    if key not in skipped
]  # fmt: skip


def mutated(body: bytes, rng: random.Random) -> bytes:
    """The bytes of an answer with one or some of them changed, put in or taken out."""
    data = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        inserted = rng.choice(INSERTED)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = inserted
        elif kind == 2:
            data[at : at + len(inserted)] = inserted
        else:
            del data[at : at + rng.choice((1, 2, 8, 1000))]
    return bytes(data)


def any_answer(key: ApiKey, version: int, rng: random.Random) -> bytes | None:
    """Every field has some value of its type; None when kafka-python cannot encode it."""
    try:
        return bytes(encode_response(key, version, 1, fill(APIS[key].response, version, rng)))
    except (TypeError, AttributeError):
        return None


def lied(key: ApiKey, version: int, honest, rng: random.Random) -> bytes:
    """A frame in place of that of the honest answer."""
    frame = bytes(encode_response(key, version, 1, honest))
    made_up = any_answer(key, version, rng) if rng.random() < 0.3 else None
    return made_up or frame[:8] + mutated(frame[8:], rng)


def received(key: ApiKey, version: int, frame: bytes) -> Reply | Unanswered:
    """Return the client's result for a response frame: a reply, or the error of a bad frame."""
    try:
        return Reply(decode_response(APIS[key], version, frame[4:]), version)
    except MalformedFrame as error:
        return Unanswered(str(error), sent=True, retriable=False)


class LyingCluster(CoreBroker):
    """Lies in one answer of one kind."""

    def __init__(self, version: int, lie_in: ApiKey, seed: str) -> None:
        super().__init__(version)
        self.lie_in = lie_in
        self.lies: list[bytes] = []
        self._rng = random.Random(seed)
        self._honest_answers = self._rng.choice((0, 0, 1))

    def handle(self, asked):
        assert len(self.asked) < ASKED_MAX, "the connector does not come to an end"
        return super().handle(asked)

    def answer(self, asked, message):
        if asked.api_key is not self.lie_in or self.lies:
            return super().answer(asked, message)
        if self._honest_answers:
            self._honest_answers -= 1
            return super().answer(asked, message)
        lie = lied(asked.api_key, asked.version, message, self._rng)
        self.lies.append(lie)
        return received(asked.api_key, asked.version, lie)


@pytest.mark.invariant(40, 63)
@pytest.mark.parametrize(
    ("version", "key"), CASES, ids=lambda value: str(getattr(value, "name", value))
)
def test_one_lie_of_a_broker_never_makes_a_false_claim(version, key):
    for number in range(LIES):
        cluster = LyingCluster(version, lie_in=key, seed=f"lie/{version}/{key.name}/{number}")
        plan = build_plan()
        try:
            commit(cluster, plan)
        except CommitStateUnknown:
            pass
        except TxnLogError:
            assert not is_committed(cluster, plan), "visible, but reported as failed"
        else:
            assert is_committed(cluster, plan), f"claimed, not visible; the lie: {cluster.lies!r}"
        restart_until_done(cluster, plan)
        assert is_committed(cluster, plan)


class LyingReader(CoreBroker):
    """Lies in answers to readers."""

    def __init__(self, seed: str) -> None:
        super().__init__(2)
        self._rng = random.Random(seed)

    def perform(self, ask):
        assert len(self.asked) + self.waits < ASKED_MAX
        if isinstance(ask, Calls) and ask.calls[0].message.API_KEY in (K.FETCH, K.LIST_OFFSETS):
            self.now_ms += 50
            return tuple(self._lie(ApiKey(call.message.API_KEY)) for call in ask.calls)
        return super().perform(ask)

    def _lie(self, key: ApiKey):
        version = {K.FETCH: 12, K.LIST_OFFSETS: 7}[key]
        return received(key, version, lied(key, version, honest_answer(key), self._rng))


def honest_answer(key: ApiKey):
    response = APIS[key].response
    if key is K.LIST_OFFSETS:
        topic = response.ListOffsetsTopicResponse
        place = topic.ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=7)
        return response(topics=[topic(name="out", partitions=[place])])
    topic = response.FetchableTopicResponse
    records = encode_batch([Record(None, b"v", 1)] * 3) + encode_batch(
        [Record(b"k", b"w", 2)], base_offset=3
    )
    place = topic.PartitionData(
        partition_index=0, error_code=0, high_watermark=100, last_stable_offset=90,
        log_start_offset=0, records=bytes(records),
        aborted_transactions=[
            topic.PartitionData.AbortedTransaction(producer_id=3, first_offset=0)
        ],
    )  # fmt: skip
    return response(responses=[topic(topic="out", partitions=[place])])


@pytest.mark.parametrize("number", range(150))
def test_lies_to_a_reader_are_its_own_errors_or_whole_batches(number):
    cluster = LyingReader(f"reader/{number}")
    session = cluster.session()
    cursor = FetchCursor(("out", 0), 0, 90, True, 1000)
    for operation in (
        fetch_next(session, cursor),
        list_offsets(session, {("out", 0): LATEST_TIMESTAMP}, read_committed=True),
    ):
        try:
            cluster.run(operation)
        except TxnLogError:
            continue
    assert cursor.next_offset >= 0


@pytest.mark.parametrize("number", range(40))
def test_lies_about_committed_offsets_are_errors_or_values(number):
    cluster = LyingCluster(2, lie_in=K.OFFSET_FETCH, seed=f"offsets/{number}")
    cluster.commit_offsets("g", {("in", 0): (5, "meta")})
    try:
        found = cluster.run(fetch_committed(cluster.session(), "g", partitions=[("in", 0)]))
    except TxnLogError:
        return
    assert all(isinstance(each.committed_offset, int) for each in found.values())


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">i", -1), struct.pack(">i", 2**31 - 1) + b"x" * 10, struct.pack(">i", 0),
        b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes.fromhex("15030100020228"),
        struct.pack(">ii", 4, 99), struct.pack(">ii", 300_004, 1) + b"\xff" * 300_000,
        b"\x00\x00",
    ],
    ids=["-1", "2^31-1", "0", "HTTP", "TLS alert", "not asked", "endless varints", "half a length"],
)  # fmt: skip
@pytest.mark.parametrize("at_once", [True, False], ids=["first answer", "later"])
def test_bytes_that_are_no_answer_end_a_call_within_its_deadline(answer, at_once):
    class Liar(SocketBroker):
        def _reaction(self, frame):
            (key,) = struct.unpack_from(">h", frame)
            return answer if at_once or key != K.API_VERSIONS else super()._reaction(frame)

    config = SessionConfig(
        request_timeout_ms=200, operation_timeout_ms=400, bootstrap_timeout_ms=400
    )
    with (
        Liar(lambda header, _message: answer_bytes(header, None)) as broker,
        Client(broker.bootstrap_servers, config=config) as client,
        pytest.raises(TxnLogError),
    ):
        client.run(refresh_metadata(client.session, []))
