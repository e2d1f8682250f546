"""Plain readers of the simulation: a second, slow and obvious, client of the broker.

They share no decoding or filtering with the connector's codec: batches are read one record at a
time, and aborted transactions are dropped by the rule of Kafka's consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_sim.sim.violation import violated
from txnlog_spark.protocol.effects import Call, Calls, Operation, Reply, Sleep
from txnlog_spark.wire.errors import RETRIABLE, ErrorCode, error_name
from txnlog_spark.wire.messages import APIS, ApiKey, Message
from txnlog_spark.wire.records import (
    MarkerType,
    Record,
    check_crc,
    decode_marker,
    decode_records,
    iter_batches,
)

NODE = 0
TIMEOUT_MS = 2_000
RETRY_MS = 200
FETCH_VERSION_MAX = 12
"""The last version that names topics rather than ids."""
OFFSET_FETCH_VERSION_MAX = 9
"""Likewise."""

_FETCH = APIS[ApiKey.FETCH].request
_LIST_OFFSETS = APIS[ApiKey.LIST_OFFSETS].request
_OFFSET_FETCH = APIS[ApiKey.OFFSET_FETCH].request
_CREATE_TOPICS = APIS[ApiKey.CREATE_TOPICS].request
_LIST_TRANSACTIONS = APIS[ApiKey.LIST_TRANSACTIONS].request


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition's ends, exclusive: high watermark and last stable offset."""

    high_watermark: int
    last_stable_offset: int


def ask(message: Message, version_max: int | None = None) -> Operation[Message]:
    """Ask until there is an answer; the simulation ends a reader that asks for ever."""
    while True:
        outcome = yield Calls((Call(NODE, message, TIMEOUT_MS, version_max),))
        answer = outcome[0] if isinstance(outcome, tuple) else None
        if isinstance(answer, Reply):
            return answer.message
        yield Sleep(RETRY_MS)


def create_topics(partitions: dict[str, int]) -> Operation[None]:
    """Create topics; one that is there already is fine."""
    topics = [
        _CREATE_TOPICS.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
        )
        for name, count in partitions.items()
    ]
    while True:
        answer = yield from ask(_CREATE_TOPICS(topics=topics, timeout_ms=TIMEOUT_MS))
        codes = {topic.error_code for topic in answer.topics}
        if codes <= {0, ErrorCode.TOPIC_ALREADY_EXISTS}:
            return
        yield Sleep(RETRY_MS)


def read_partition(
    topic: str, partition: int, start_offset: int, *, read_committed: bool
) -> Operation[tuple[list[Record], int]]:
    """All records from `start_offset` to the present end, and the next offset to read."""
    records: list[Record] = []
    next_offset = start_offset
    while True:
        request = _fetch_request(topic, partition, next_offset, read_committed)
        answer = yield from ask(request, FETCH_VERSION_MAX)
        part = answer.responses[0].partitions[0] if answer.responses else None
        code = answer.error_code or (part.error_code if part is not None else 0)
        if code in RETRIABLE or part is None:
            yield Sleep(RETRY_MS)
            continue
        if code:
            violated(5, "a reader's position is refused", topic=topic, partition=partition,
                     fetch_offset=next_offset, error=error_name(code))  # fmt: skip
        found, after = _visible(part, next_offset, read_committed)
        records += found
        limit = part.last_stable_offset if read_committed else part.high_watermark
        if after == next_offset or after >= limit:
            return records, after
        next_offset = after


def _fetch_request(topic: str, partition: int, start: int, read_committed: bool) -> Message:
    return _FETCH(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=4096,
        isolation_level=int(read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[
            _FETCH.FetchTopic(
                topic=topic,
                partitions=[
                    _FETCH.FetchTopic.FetchPartition(
                        partition=partition,
                        current_leader_epoch=-1,
                        fetch_offset=start,
                        log_start_offset=-1,
                        partition_max_bytes=2048,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def _visible(part: Message, start: int, read_committed: bool) -> tuple[list[Record], int]:
    data = bytes(part.records or b"")
    waiting = sorted(
        ((a.first_offset, a.producer_id) for a in part.aborted_transactions or ()),
        reverse=True,
    )
    aborted: set[int] = set()
    records: list[Record] = []
    next_offset = start
    for header, at in iter_batches(data):
        check_crc(data, at, header)
        while waiting and waiting[-1][0] <= header.last_offset:
            aborted.add(waiting.pop()[1])
        next_offset = max(next_offset, header.next_offset)
        if header.is_control:
            marker = decode_marker(data, at, header)
            if marker is not None and marker.marker_type == MarkerType.ABORT:
                aborted.discard(header.producer_id)
            continue
        hidden = header.is_transactional and header.producer_id in aborted
        if read_committed and hidden:
            continue
        records += [r for r in decode_records(data, at, header) if r.record_offset >= start]
    return records, next_offset


def read_bounds(topic: str, partition: int) -> Operation[Bounds]:
    """High watermark and last stable offset, as ListOffsets tells them."""
    ends = []
    for isolation_level in (0, 1):
        topic_type = _LIST_OFFSETS.ListOffsetsTopic
        wanted = topic_type.ListOffsetsPartition(partition_index=partition, timestamp=-1)
        request = _LIST_OFFSETS(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[topic_type(name=topic, partitions=[wanted])],
        )
        while True:
            answer = yield from ask(request)
            part = answer.topics[0].partitions[0]
            if part.error_code == 0:
                break
            yield Sleep(RETRY_MS)
        ends.append(int(part.offset))
    return Bounds(*ends)


def read_group(group_id: str) -> Operation[dict[tuple[str, int], int]]:
    """All stable committed offsets of a group."""
    request = _OFFSET_FETCH(
        groups=[_OFFSET_FETCH.OffsetFetchRequestGroup(group_id=group_id, topics=None)],
        require_stable=True,
    )
    while True:
        answer = yield from ask(request, OFFSET_FETCH_VERSION_MAX)
        group = answer.groups[0]
        parts = [(t.name, p) for t in group.topics for p in t.partitions]
        codes = {group.error_code, *(p.error_code for _, p in parts)}
        if codes == {0}:
            return {(name, p.partition_index): int(p.committed_offset) for name, p in parts}
        yield Sleep(RETRY_MS)


def read_undecided() -> Operation[list[str]]:
    """Transactional ids with a transaction that is not complete, as ListTransactions tells."""
    request = _LIST_TRANSACTIONS(state_filters=[], producer_id_filters=[])
    while True:
        answer = yield from ask(request)
        if answer.error_code == 0:
            return [
                t.transactional_id
                for t in answer.transaction_states
                if t.transaction_state in ("Ongoing", "PrepareCommit", "PrepareAbort")
            ]
        yield Sleep(RETRY_MS)


def watch_output(
    topic: str,
    partitions: int,
    groups: Callable[[], tuple[str, ...]],
    *,
    on_records: Callable[[int, list[Record]], None],
    on_group: Callable[[str, dict[tuple[str, int], int]], None],
    interval_ms: int,
) -> Operation[None]:
    """For ever: read what is newly committed, and the groups' stable offsets."""
    positions = dict.fromkeys(range(partitions), 0)
    while True:
        for partition, start in positions.items():
            records, positions[partition] = yield from read_partition(
                topic, partition, start, read_committed=True
            )
            on_records(partition, records)
        for group_id in groups():
            on_group(group_id, (yield from read_group(group_id)))
        yield Sleep(interval_ms)
