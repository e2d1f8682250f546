"""Hostile frames against the core: refused or answered, and nothing changes that was not asked."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, produce_request, request
from support.core.message_build import fill
from support.raw.hostile import (
    FUZZ_TOPIC,
    INSERTED,
    NO_REQUEST,
    REFUSED_BATCHES,
    Hostile,
    bombs,
    good_batch,
    state_digest,
    with_records,
)

from broker_sim.core.effects import Disconnected, Request
from txnlog_kafka.wire.compression import decompress
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import (
    FrameDecoder,
    MalformedFrame,
    UnsupportedVersion,
    decode_request,
)
from txnlog_kafka.wire.messages import APIS, ApiKey

SPOKEN = [*APIS.values()]
HARMLESS = {
    ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
}  # fmt: skip
FRAMES = 6000


class Target:
    """A broker with something to lose, and the frames that it is sent."""

    def __init__(self) -> None:
        self.broker = BrokerOnDisk()
        self.broker.create_topic("safe", 2)
        self.broker.create_topic(FUZZ_TOPIC, 1)
        self.broker.produce("safe", "a", "b")
        self._open_transaction()
        self._connection_id = 100

    def _open_transaction(self) -> None:
        """Open the transaction "safe", with a record and an offset, by a producer id that is hard
        to guess."""
        ask = self.broker.ask
        for key_type in (0, 1):
            ask(request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["safe"]), 4)
        init = APIS[ApiKey.INIT_PRODUCER_ID].request
        for _ in range(1000):
            ask(init(transactional_id=None, transaction_timeout_ms=1000), 1)
        made = ask(init(transactional_id="safe", transaction_timeout_ms=900_000), 1)
        batch = good_batch("c", producer_id=made.producer_id, producer_epoch=0, base_sequence=0,
                           transactional=True)  # fmt: skip
        (result,) = self.broker.produce_bytes(
            {("safe", 1): bytes(batch)}, transactional_id="safe", version=12
        )
        commit = request(ApiKey.OFFSET_COMMIT, group_id="safe", generation_id_or_member_epoch=-1,
                         member_id="")  # fmt: skip
        topic = commit.OffsetCommitRequestTopic
        place = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=2, committed_metadata="m"
        )
        commit.topics = [topic(name="safe", partitions=[place])]
        code = ask(commit, 7).topics[0].partitions[0].error_code
        assert (made.error_code, result.error_code, code) == (0, 0, 0)

    def digest(self) -> Any:
        """Through the protocol."""
        return state_digest(self.broker.ask, ["safe"], ["safe"], ["safe"])

    def send(self, framed: bytes) -> str:
        """Send the frame; return "answered" or the reason of the refusal, and check the rules."""
        try:
            (frame,) = FrameDecoder().feed(framed)
            header, message = decode_request(frame)
        except (MalformedFrame, UnsupportedVersion) as refusal:
            return str(refusal)
        except ValueError as no_frame:
            return str(no_frame)
        self._connection_id += 1
        step = self.broker.step(
            Request(self._connection_id, header.correlation_id, header.api_key,
                    header.api_version, header.client_id, "h", message)
        )  # fmt: skip
        failed = [trace.fields for trace in step.traces if trace.kind == "request-failed"]
        assert not failed, failed
        if header.api_key in HARMLESS and header.api_key is not ApiKey.FIND_COORDINATOR:
            assert step.storage == (), "a question wrote something"
        self.broker.step(Disconnected(self._connection_id))
        return "answered"


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.mark.parametrize("seed", range(3))
def test_hostile_frames_change_nothing_else_and_leave_nothing_parked(target, seed):
    hostile = Hostile(seed, SPOKEN)
    before = target.digest()
    answered = 0
    for _ in range(FRAMES):
        answered += target.send(hostile.frame()) == "answered"
        if hostile.rng.random() < 0.01:
            target.broker.advance(hostile.rng.choice((10, 1000, 6_000)))
    assert FRAMES // 10 < answered < FRAMES
    assert target.digest() == before
    assert len(target.broker.broker.parts.fetches) == 0
    target.broker.kill()
    assert target.digest() == before


@pytest.mark.parametrize("api", SPOKEN, ids=lambda api: api.name)
def test_every_byte_of_a_request_replaced_by_every_wrong_length(target, api):
    before = target.digest()
    rng = Hostile(api.name).rng
    for version in sorted({api.version_min, api.version_max, rng.randint(3, 6)}):
        if not api.version_min <= version <= api.version_max:
            continue
        body = encode_message(fill(api.request, version, rng), version)
        head = struct.pack(">hhih", api.key, version, 1, -1)
        head += b"\x00" if api.request.SCHEMA.is_flexible(version) else b""
        positions = list(range(len(body) + 1))
        for at in rng.sample(positions, min(len(positions), 25)):
            for data in INSERTED:
                for wrong in (
                    body[:at] + data + body[at + len(data) :],
                    body[:at] + data + body[at:],
                ):
                    target.send(struct.pack(">i", len(head + wrong)) + head + wrong)
    assert target.digest() == before


@pytest.mark.invariant(67)
@pytest.mark.parametrize("frame", NO_REQUEST, ids=lambda frame: frame[:14].hex())
def test_what_is_no_request_never_reaches_the_core(target, frame):
    assert target.send(frame + bytes(4)) != "answered"


@pytest.mark.parametrize("version", [3, 9, 12])
@pytest.mark.parametrize("name", REFUSED_BATCHES)
def test_a_wrong_batch_is_refused_and_takes_neither_offset_nor_sequence(target, name, version):
    broker = target.broker
    (result,) = broker.produce_bytes({(FUZZ_TOPIC, 0): REFUSED_BATCHES[name]}, version=version)
    assert result.error_code in {
        ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }  # fmt: skip
    assert broker.fetch(FUZZ_TOPIC).high_watermark == 0
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    batches = {(FUZZ_TOPIC, 0): bytes(good_batch("a", **producer))}
    (result,) = broker.produce_bytes(batches, version=version)
    assert (result.error_code, result.base_offset) == (0, 0)


def test_bombs_are_stored_as_they_are_and_cost_a_lookup_by_time_little(target):
    broker = target.broker
    broker.broker.parts.decompress = decompress
    for name, batch in bombs().items():
        (result,) = broker.produce_bytes({(FUZZ_TOPIC, 0): batch})
        assert result.error_code == 0, name
        listing = request(ApiKey.LIST_OFFSETS, replica_id=-1, isolation_level=0)
        topic = listing.ListOffsetsTopic
        place = topic.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=-1, timestamp=1_700_000_000_000
        )
        listing.topics = [topic(name=FUZZ_TOPIC, partitions=[place])]
        answer = broker.ask(listing, 7).topics[0].partitions[0]
        assert (answer.error_code, answer.offset) == (0, 0), name


@pytest.mark.invariant(70)
@pytest.mark.parametrize(
    "records",
    [b"\xff" * 30, b"\x80" * 20, b"\x02\x00", b"\x0c\x00\x00\x00\x01\x01\x00" * 3,
     b"\x0c\x00\x00\x0e\x01\x01\x00" * 2],
    ids=["varint without end", "long varint", "cut", "one too many", "gap of offsets"],
)  # fmt: skip
def test_records_that_are_nonsense_hurt_only_their_own_readers(target, records):
    """The broker does not look into batches: their header and CRC are right."""
    broker = target.broker
    batches = {(FUZZ_TOPIC, 0): with_records(records, 2)}
    (result,) = broker.produce_bytes(batches)
    assert result.error_code in (0, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    broker.produce(FUZZ_TOPIC, "after")
    broker.kill()
    assert broker.fetch(FUZZ_TOPIC).error_code == 0


def test_a_produce_of_two_wrong_and_one_right_entry_appends_the_right_one(target):
    batches = {
        (FUZZ_TOPIC, 0): REFUSED_BATCHES["bit rot"],
        ("safe", 0): bytes(good_batch("c")),
        ("safe", 9): bytes(good_batch("d")),
    }
    answer = target.broker.ask(produce_request(batches), 9)
    codes = [p.error_code for t in answer.responses for p in t.partition_responses]
    assert codes == [
        ErrorCode.CORRUPT_MESSAGE, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
