"""Fetch (key 1): read record batches by reference, and wait for `min_bytes` of them.

Fetch sessions (KIP-227) are refused by answering with session id 0: clients then send whole
requests. A long poll keeps its request delayed and is read again when it completes.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from broker_sim.core.effects import Effects, RecordsField, Request, Respond
from broker_sim.core.handlers._access import cluster_allowed, topic_allowed
from broker_sim.core.handlers._lookup import (
    TELLS_LEADER,
    endpoints_of,
    find_topic,
    leader_of,
    led_log,
)
from broker_sim.core.handlers._preferred_replica import preferred_read_replica
from broker_sim.core.log import LogRead, PartitionLog
from broker_sim.core.parts import BrokerParts
from broker_sim.core.replica.delayed_fetch import DelayedFetch
from broker_sim.core.replica.leader import FetchPosition
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition

_Response = APIS[ApiKey.FETCH].response
_Topic = _Response.FetchableTopicResponse
_Partition = _Topic.PartitionData

READ_COMMITTED = 1
SESSION_EPOCH_INITIAL = 0
CONSUMER = -1
"""As the replica id of a fetch: it is a client's."""
KNOWS_RACK_VERSION = 11
"""From here on a consumer may be sent to a follower, and is answered by one (KIP-392)."""
TELLS_LEADER_VERSION = 16
"""From here on an answer says who leads instead (KIP-951)."""


@dataclass(slots=True)
class _Result:
    """A read of all partitions of one request."""

    replica_id: int
    """Of the follower that reads; below 0 a consumer does."""
    budget_bytes: int
    """What all partitions may give."""
    topics: list[Any] = field(default_factory=list)
    records: list[RecordsField] = field(default_factory=list)
    partitions: list[TopicPartition] = field(default_factory=list)
    size_bytes: int = 0
    failed: bool = False
    """Something is to be known at once, also where there are no bytes."""
    reports: list[str] = field(default_factory=list)
    """Damage that was met for the first time."""
    replicated: list[tuple[TopicPartition, FetchPosition]] = field(default_factory=list)
    """What a follower has of the partitions."""
    leaders: set[int] = field(default_factory=set)
    """Other brokers that the answer names."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Answer now, or delay until bytes or the deadline come."""
    message = request.message
    if message.session_epoch > SESSION_EPOCH_INITIAL:
        _respond_error(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, effects)
        return
    topics = _each_once(message.topics)
    if topics is not message.topics:
        message = copy(message)
        message.topics = topics
        request = replace(request, message=message)
    result = _read(parts, request)
    replica = _replica(message)
    for name, position in result.replicated:
        parts.replication.on_fetch(name, replica, position, effects)
    enough = result.size_bytes >= message.min_bytes or result.failed or not result.partitions
    if enough or message.max_wait_ms <= 0:
        _respond(parts, request, result, effects)
        return
    parts.fetches.add(request, result.partitions, message.max_wait_ms, effects)


def _replica(message: Any) -> tuple[int, int]:
    """Broker id and broker epoch of the follower that fetches; -1 for a consumer (KIP-903)."""
    state = message.replica_state
    if state is not None and state.replica_id != CONSUMER:
        return state.replica_id, state.replica_epoch
    return message.replica_id, -1


def _is_replica(message: Any) -> bool:
    """Whether a broker fetches: ids below 0 are those of consumers, -2 of one that looks at what a
    replica has."""
    return _replica(message)[0] >= 0


def _each_once(topics: list[Any]) -> list[Any]:
    """Of a partition that is named twice the last entry counts, in the first one's place, as in
    Kafka. So what a delayed request costs is bounded by the partitions that there are."""
    named = [(t.topic, t.topic_id, entry.partition) for t in topics for entry in t.partitions]
    if len(set(named)) == len(named):
        return topics
    merged: dict[Any, tuple[Any, dict[int, Any]]] = {}
    for topic in topics:
        _, entries = merged.setdefault((topic.topic, topic.topic_id), (topic, {}))
        entries.update((entry.partition, entry) for entry in topic.partitions)
    return [
        type(topic)(topic=topic.topic, topic_id=topic.topic_id, partitions=[*each.values()])
        for topic, each in merged.values()
    ]


def reconsider(parts: BrokerParts, delayed: DelayedFetch, effects: Effects, *, due: bool) -> None:
    """A partition of a delayed fetch changed, or its deadline came: answer if there is enough."""
    result = _read(parts, delayed.request)
    if due or result.failed or result.size_bytes >= delayed.request.message.min_bytes:
        parts.fetches.remove(delayed, effects)
        _respond(parts, delayed.request, result, effects)


def _respond_error(request: Request, error: ErrorCode, effects: Effects) -> None:
    answer = _Response(throttle_time_ms=0, error_code=int(error), session_id=0, responses=[])
    _send(request, answer, (), effects)


def _respond(parts: BrokerParts, request: Request, result: _Result, effects: Effects) -> None:
    for report in result.reports:
        effects.trace("damaged-file", reason=report)
    answer = _Response(throttle_time_ms=0, error_code=0, session_id=0, responses=result.topics)
    if result.leaders:
        answer.node_endpoints = endpoints_of(
            parts, request.listener, result.leaders, _Response.NodeEndpoint
        )
    _send(request, answer, tuple(result.records), effects)


def _send(
    request: Request, answer: Any, records: tuple[RecordsField, ...], effects: Effects
) -> None:
    effects.responses.append(
        Respond(
            request.connection_id,
            request.correlation_id,
            request.api_key,
            request.api_version,
            answer,
            records,
            for_replica=_is_replica(request.message),
        )
    )


def _read(parts: BrokerParts, request: Request) -> _Result:
    message = request.message
    budget_bytes = min(message.max_bytes, parts.config.integer("fetch.max.bytes"))
    result = _Result(_replica(message)[0], budget_bytes)
    for topic in message.topics:
        partitions = []
        known, unknown = find_topic(parts, topic.topic, topic.topic_id)
        name = topic.topic if known is None else known.name
        from_follower = known is not None and result.replica_id >= 0
        allowed = not name or (
            cluster_allowed(parts, request)
            if from_follower
            else topic_allowed(parts, request, name)
        )
        or_follower = not from_follower and request.api_version >= KNOWS_RACK_VERSION
        for entry in topic.partitions:
            epoch = entry.current_leader_epoch
            log: PartitionLog | None = None
            error = unknown
            if not allowed:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif known is not None:
                log, error = led_log(parts, known, entry.partition, epoch, or_follower=or_follower)
            if log is not None and from_follower:
                error = _check_follower(parts, log, result.replica_id)
            if log is None or error is not ErrorCode.NONE:
                result.failed = True
                answer = _error(entry.partition, error)
                if error in TELLS_LEADER and request.api_version >= TELLS_LEADER_VERSION:
                    _name_leader(parts, name, answer, result)
                partitions.append(answer)
                continue
            result.partitions.append(log.name)
            preferred = None
            if or_follower:
                preferred = preferred_read_replica(parts, request, log, entry.fetch_offset)
            if preferred is not None:
                result.failed = True
                partitions.append(_elsewhere(log, preferred))
                continue
            partitions.append(_read_partition(log, entry, message.isolation_level, result))
        result.topics.append(
            _Topic(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions)
        )
    return result


def _check_follower(parts: BrokerParts, log: PartitionLog, replica_id: int) -> ErrorCode:
    """A broker without a replica of the partition may not say how far it has it."""
    leader = parts.replicas.partition(log).leader
    is_follower = leader is not None and replica_id in leader.followers
    return ErrorCode.NONE if is_follower else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _name_leader(parts: BrokerParts, topic: str, answer: Any, result: _Result) -> None:
    held = leader_of(parts, topic, answer.partition_index)
    if held is not None:
        result.leaders.add(held.leader)
        answer.current_leader = _Partition.LeaderIdAndEpoch(
            leader_id=held.leader, leader_epoch=held.leader_epoch
        )


def _read_partition(log: PartitionLog, entry: Any, isolation_level: int, result: _Result) -> Any:
    from_follower = not log.single_replica and result.replica_id >= 0
    diverging = None if log.single_replica else _diverging(log, entry)
    if diverging is not None:
        result.failed = True
        answer = _error(entry.partition, ErrorCode.NONE)
        answer.high_watermark = log.high_watermark
        answer.last_stable_offset = log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        answer.diverging_epoch = diverging
        return answer
    read = log.read(
        entry.fetch_offset,
        max_bytes=max(0, min(entry.partition_max_bytes, result.budget_bytes - result.size_bytes)),
        read_committed=isolation_level == READ_COMMITTED and not from_follower,
        at_least_one_batch=result.size_bytes == 0,
        to_log_end=from_follower,
    )
    if read.error is not ErrorCode.NONE:
        result.failed = True
    elif from_follower:
        position = FetchPosition(entry.fetch_offset, entry.log_start_offset)
        result.replicated.append((log.name, position))
    if read.report:
        result.reports.append(read.report)
    answer = _answer(entry.partition, read)
    if read.slices:
        result.size_bytes += read.size_bytes
        result.records.append(RecordsField(answer, read.slices))
    return answer


def _diverging(log: PartitionLog, entry: Any) -> Any:
    """Where the histories part when the fetcher's last batch, by its epoch, is not in this log
    (KIP-595; Kafka's `Partition.readRecords`); None when it is, or says no epoch."""
    last_epoch = entry.last_fetched_epoch
    if last_epoch < 0 or entry.fetch_offset < log.log_start_offset:
        return None
    epoch, end_offset = log.end_offset_for_epoch(last_epoch)
    if epoch == last_epoch and end_offset >= entry.fetch_offset:
        return None
    return _Partition.EpochEndOffset(epoch=epoch, end_offset=max(end_offset, 0))


def _answer(partition: int, read: LogRead) -> Any:
    failed = read.error is not ErrorCode.NONE
    aborted = None
    if read.aborted is not None:
        aborted = [
            _Partition.AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset)
            for a in read.aborted
        ]
    return _Partition(
        partition_index=partition,
        error_code=int(read.error),
        high_watermark=-1 if failed else read.high_watermark,
        last_stable_offset=-1 if failed else read.last_stable_offset,
        log_start_offset=-1 if failed else read.log_start_offset,
        diverging_epoch=None,
        current_leader=None,
        snapshot_id=None,
        aborted_transactions=aborted,
        preferred_read_replica=-1,
        records=b"",
    )


def _elsewhere(log: PartitionLog, replica: int) -> Any:
    """Read from that replica: no records, but how far this one is."""
    return _Partition(
        partition_index=log.partition,
        error_code=0,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=replica,
        records=b"",
    )


def _error(partition: int, error: ErrorCode) -> Any:
    return _Partition(
        partition_index=partition,
        error_code=int(error),
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
    )
