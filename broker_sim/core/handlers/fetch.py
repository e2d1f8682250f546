"""Fetch (key 1): read record batches by reference, and wait for `min_bytes` of them.

Fetch sessions (KIP-227) are refused by answering with session id 0: clients then send whole
requests. A long poll keeps its request delayed and is read again when it completes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker_sim.core.effects import Effects, RecordsField, Request, Respond
from broker_sim.core.handlers._access import topic_allowed
from broker_sim.core.handlers._lookup import check_leader_epoch, find_log, find_topic
from broker_sim.core.log import LogRead, PartitionLog
from broker_sim.core.parts import BrokerParts
from broker_sim.core.replica.delayed_fetch import DelayedFetch
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey
from txnlog_spark.wire.topics import TopicPartition

_Response = APIS[ApiKey.FETCH].response
_Topic = _Response.FetchableTopicResponse
_Partition = _Topic.PartitionData

READ_COMMITTED = 1
SESSION_EPOCH_INITIAL = 0


@dataclass(slots=True)
class _Result:
    """A read of all partitions of one request."""

    topics: list[Any]
    records: list[RecordsField]
    partitions: list[TopicPartition]
    size_bytes: int = 0
    failed: bool = False
    reports: list[str] = field(default_factory=list)
    """Damage that was met for the first time."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Answer now, or delay until bytes or the deadline come."""
    message = request.message
    if message.session_epoch > SESSION_EPOCH_INITIAL:
        _respond_error(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, effects)
        return
    message.topics = _each_once(message.topics)
    result = _read(parts, request)
    enough = result.size_bytes >= message.min_bytes or result.failed or not result.partitions
    if enough or message.max_wait_ms <= 0:
        _respond(request, result, effects)
        return
    parts.fetches.add(request, result.partitions, message.max_wait_ms, effects)


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
    for topic, entries in merged.values():
        topic.partitions = list(entries.values())
    return [topic for topic, _ in merged.values()]


def reconsider(parts: BrokerParts, delayed: DelayedFetch, effects: Effects, *, due: bool) -> None:
    """A partition of a delayed fetch changed, or its deadline came: answer if there is enough."""
    result = _read(parts, delayed.request)
    if due or result.failed or result.size_bytes >= delayed.request.message.min_bytes:
        parts.fetches.remove(delayed, effects)
        _respond(delayed.request, result, effects)


def _respond_error(request: Request, error: ErrorCode, effects: Effects) -> None:
    answer = _Response(throttle_time_ms=0, error_code=int(error), session_id=0, responses=[])
    _send(request, answer, (), effects)


def _respond(request: Request, result: _Result, effects: Effects) -> None:
    for report in result.reports:
        effects.trace("damaged-file", reason=report)
    answer = _Response(throttle_time_ms=0, error_code=0, session_id=0, responses=result.topics)
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
        )
    )


def _read(parts: BrokerParts, request: Request) -> _Result:
    message = request.message
    budget = min(message.max_bytes, parts.config.integer("fetch.max.bytes"))
    result = _Result([], [], [])
    for topic in message.topics:
        partitions = []
        known, _ = find_topic(parts, topic.topic, topic.topic_id)
        name = topic.topic if known is None else known.name
        allowed = not name or topic_allowed(parts, request, name)
        for entry in topic.partitions:
            log, error = find_log(parts, topic.topic, topic.topic_id, entry.partition)
            if not allowed:
                log, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if log is None:
                result.failed = True
                partitions.append(_error(entry.partition, error))
                continue
            result.partitions.append(TopicPartition(log.topic, log.partition))
            partitions.append(_read_partition(log, entry, message, budget, result))
        result.topics.append(
            _Topic(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions)
        )
    return result


def _read_partition(
    log: PartitionLog, entry: Any, message: Any, budget: int, result: _Result
) -> Any:
    error = check_leader_epoch(log, entry.current_leader_epoch)
    if error is not ErrorCode.NONE:
        result.failed = True
        return _error(entry.partition, error)
    read = log.read(
        entry.fetch_offset,
        max_bytes=max(0, min(entry.partition_max_bytes, budget - result.size_bytes)),
        read_committed=message.isolation_level == READ_COMMITTED,
        at_least_one_batch=result.size_bytes == 0,
    )
    if read.error is not ErrorCode.NONE:
        result.failed = True
    if read.report:
        result.reports.append(read.report)
    answer = _answer(entry.partition, read)
    if read.slices:
        result.size_bytes += read.size_bytes
        result.records.append(RecordsField(answer, read.slices))
    return answer


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
        aborted_transactions=aborted,
        preferred_read_replica=-1,
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
