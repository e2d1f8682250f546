"""Fetch (key 1): read record batches by reference, and wait for `min_bytes` of them.

A request names what it wants, or goes on with a fetch session (KIP-227). A long poll keeps its
request delayed and is read again when it completes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from broker_sim.core.controller import Topic
from broker_sim.core.effects import Effects, RecordsField, Request
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
from broker_sim.core.replica.fetch_session import (
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchContext,
    FetchedPartition,
    Key,
)
from broker_sim.core.replica.leader import FetchPosition
from broker_sim.core.replies import answer_to
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition

_Response = APIS[ApiKey.FETCH].response
_Topic = _Response.FetchableTopicResponse
_Partition = _Topic.PartitionData

READ_COMMITTED = 1
CONSUMER = -1
"""Replica id of a fetch by a client."""
KNOWS_RACK_VERSION = 11
"""From here on a consumer may be sent to a follower, and is answered by one (KIP-392)."""
TOPIC_ID_VERSION = 13
"""From here on topics are named by their ids (KIP-516)."""
TELLS_LEADER_VERSION = 16
"""From here on an answer says who leads instead (KIP-951)."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Result of a read for a partition."""

    partition: FetchedPartition
    message: Any
    has_records: bool

    @property
    def is_news(self) -> bool:
        """True if a session's client does not know the answer yet."""
        return self.has_records or self.partition.has_news(self.message)


@dataclass(slots=True)
class _Result:
    """A read of what one request wants."""

    request: Request
    replica_id: int
    """Id of the follower that reads; below 0, a consumer reads."""
    budget_bytes: int
    """Bytes that all partitions together may return."""
    answers: list[_Answer] = field(default_factory=list)
    records: list[RecordsField] = field(default_factory=list)
    partitions: list[TopicPartition] = field(default_factory=list)
    size_bytes: int = 0
    failed: bool = False
    """Something is to be known at once, also where there are no bytes."""
    reports: list[str] = field(default_factory=list)
    """Damage that was met for the first time."""
    replicated: list[tuple[TopicPartition, FetchPosition]] = field(default_factory=list)
    """Positions of a follower in the partitions."""
    leaders: set[int] = field(default_factory=set)
    """Other brokers that the answer names."""

    @property
    def reads_any_replica(self) -> bool:
        """True if a follower may answer, and a leader may name one."""
        return self.replica_id < 0 and self.request.api_version >= KNOWS_RACK_VERSION


@dataclass(frozen=True, slots=True)
class _Found:
    """Topic that a request wants, if it was found, and the error otherwise."""

    topic: Topic | None
    error: ErrorCode
    """Error of all its partitions."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Answer now, or delay until bytes or the deadline come."""
    message = request.message
    replica = _replica(message)
    context = parts.sessions.context(
        message,
        _named(message),
        _forgotten(message),
        _asker(parts, request),
        uses_topic_ids=request.api_version >= TOPIC_ID_VERSION,
        now_ms=effects.monotonic_ms,
    )
    if isinstance(context, ErrorCode):
        _send_answer(
            request, _Response(error_code=int(context), session_id=INVALID_SESSION_ID), (), effects
        )
        return
    result = _read_partitions(parts, request, context)
    if replica[0] >= 0:
        _note_replicated(parts, replica, context, result, effects)
    if _is_enough(result, context) or message.max_wait_ms <= 0:
        _respond_to_fetch(parts, context, result, effects)
        return
    is_for_replica = replica[0] >= 0
    parts.fetches.add(request, context, result.partitions, effects, is_for_replica=is_for_replica)


def _note_replicated(
    parts: BrokerParts,
    replica: tuple[int, int],
    context: FetchContext,
    result: _Result,
    effects: Effects,
) -> None:
    """Note the follower's positions, and the partitions where only its session has advanced."""
    for name, position in result.replicated:
        parts.replication.on_fetch(name, replica, position, context.session, effects)
    read = {name for name, _ in result.replicated}
    looked_at = (each.partition for each in result.answers)
    for partition in (*context.forgotten, *looked_at):
        if partition.name is not None and partition.name not in read:
            parts.replication.on_forgotten(partition.name, replica[0])


def reconsider(parts: BrokerParts, delayed: DelayedFetch, effects: Effects, *, due: bool) -> None:
    """A partition of a delayed fetch changed, or its deadline came: answer if there is enough."""
    result = _read_partitions(parts, delayed.request, delayed.context)
    if due or _is_enough(result, delayed.context):
        parts.fetches.remove(delayed, effects)
        _respond_to_fetch(parts, delayed.context, result, effects)


def _is_enough(result: _Result, context: FetchContext) -> bool:
    """True if there is something to answer at once."""
    wants_nothing = context.session is None and not result.partitions
    enough_bytes = min(result.request.message.min_bytes, result.budget_bytes)
    return wants_nothing or result.failed or result.size_bytes >= enough_bytes


# --------------------------------------------------------------------------- the request


def _replica(message: Any) -> tuple[int, int]:
    """Broker id and broker epoch of the follower that fetches; -1 for a consumer (KIP-903). Ids
    below 0 are those of consumers, -2 of one that looks at what a replica has."""
    state = message.replica_state
    if state is not None and state.replica_id != CONSUMER:
        return state.replica_id, state.replica_epoch
    return message.replica_id, -1


def _asker(parts: BrokerParts, request: Request) -> Hashable:
    """Return the values, besides the partitions, that the answer depends on."""
    message = request.message
    acl_changes = parts.image.acls.change_count
    return (
        request.principal,
        request.client_host,
        request.listener,
        _replica(message),
        message.isolation_level,
        message.rack_id,
        acl_changes,
    )


def _named(message: Any) -> dict[Key, FetchedPartition]:
    """Return the partitions that the request names, by key.

    As in Kafka, the last entry of a partition counts, at the place of the first. So the number of
    existing partitions bounds the cost of a delayed request.
    """
    found = {}
    for topic in message.topics:
        for entry in topic.partitions:
            key = _key(topic, entry.partition)
            found[key] = FetchedPartition(key, topic.topic_id, entry)
    return found


def _key(topic: Any, partition: int) -> Key:
    topic_id = topic.topic_id
    return (topic.topic, 0 if topic_id is None else topic_id.int, partition)


def _forgotten(message: Any) -> Iterable[Key]:
    return (
        _key(topic, partition)
        for topic in message.forgotten_topics_data
        for partition in topic.partitions
    )


# --------------------------------------------------------------------------- the answer


def _respond_to_fetch(
    parts: BrokerParts, context: FetchContext, result: _Result, effects: Effects
) -> None:
    for report in result.reports:
        effects.trace("damaged-file", reason=report)
    session = context.session
    if session is not None and context.is_overtaken:
        error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        answer = _Response(error_code=int(error), session_id=session.session_id)
        _send_answer(result.request, answer, (), effects)
        return
    answered = [each for each in result.answers if session is None or each.is_news]
    session_id = INVALID_SESSION_ID if session is None else session.session_id
    throttle_ms = _throttle_ms(parts, result, answered, effects)
    if throttle_ms > 0:
        # Neither the session nor the client has moved: the same is asked for again.
        answer = _Response(throttle_time_ms=throttle_ms, session_id=session_id)
        _send_answer(result.request, answer, (), effects)
        return
    if session is None:
        session_id = _new_session(parts, context, result, effects)
    for each in answered:
        each.partition.on_answered(each.message)
        if session is not None and each.has_records:
            session.move_to_end(each.partition)
    answer = _Response(session_id=session_id, responses=_by_topic(answered))
    if result.leaders:
        answer.node_endpoints = endpoints_of(
            parts, result.request.listener, result.leaders, _Response.NodeEndpoint
        )
    _send_answer(result.request, answer, tuple(result.records), effects)


def _throttle_ms(
    parts: BrokerParts, result: _Result, answered: list[_Answer], effects: Effects
) -> int:
    """Return how long a consumer that is over its quota has to wait for what was read."""
    if not parts.quotas.is_set or result.replica_id >= 0:
        return 0
    whole = _Response(responses=_by_topic(answered))
    size_bytes = len(encode_message(whole, result.request.api_version)) + result.size_bytes
    return parts.quotas.throttle_fetch(result.request, size_bytes, effects.monotonic_ms)


def _new_session(
    parts: BrokerParts, context: FetchContext, result: _Result, effects: Effects
) -> int:
    """The id of the session that a whole request asks for."""
    if context.epoch != INITIAL_EPOCH:
        return INVALID_SESSION_ID
    return parts.sessions.create(
        context.named,
        _asker(parts, result.request),
        is_privileged=result.replica_id >= 0,
        uses_topic_ids=result.request.api_version >= TOPIC_ID_VERSION,
        now_ms=effects.monotonic_ms,
    )


def _by_topic(answers: list[_Answer]) -> list[Any]:
    """The partitions below their topics, each where it is first."""
    topics: dict[Any, Any] = {}
    for answer in answers:
        name, topic_id, _ = answer.partition.key
        found = topics.get((name, topic_id))
        if found is None:
            found = topics[name, topic_id] = _Topic(
                topic=name, topic_id=answer.partition.topic_id, partitions=[]
            )
        found.partitions.append(answer.message)
    return list(topics.values())


def _send_answer(
    request: Request, answer: Any, records: tuple[RecordsField, ...], effects: Effects
) -> None:
    for_replica = _replica(request.message)[0] >= 0
    effects.responses.append(answer_to(request, answer, records, for_replica=for_replica))


# --------------------------------------------------------------------------- reading


def _read_partitions(parts: BrokerParts, request: Request, context: FetchContext) -> _Result:
    session = context.session
    budget_bytes = min(request.message.max_bytes, parts.config.integer("fetch.max.bytes"))
    replica_id = _replica(request.message)[0]
    if parts.quotas.is_set and replica_id < 0:
        budget_bytes = min(budget_bytes, parts.quotas.fetched_bytes_max(request))
    result = _Result(request, replica_id, budget_bytes)
    topics: dict[Any, _Found] = {}
    for partition in context.wanted():
        name, topic_id, number = partition.key
        found = topics.get((name, topic_id))
        if found is None:
            found = topics[name, topic_id] = _find(parts, result, name, partition.topic_id)
        if found.topic is not None and partition.name is None:
            known = TopicPartition(found.topic.name, number)
            if session is None:
                partition.name = known
            else:
                parts.sessions.watch(session, partition, known)
        log, error = _log_of(parts, found, partition.entry, result)
        if log is None:
            result.failed = True
            topic = name if found.topic is None else found.topic.name
            message = _without_records(number, error)
            if error in TELLS_LEADER and request.api_version >= TELLS_LEADER_VERSION:
                _name_leader(parts, topic, message, result)
        else:
            result.partitions.append(log.name)
            message = _read_log(parts, log, partition.entry, result)
        had_records = bool(result.records) and result.records[-1].target is message
        answer = _Answer(partition, message, had_records)
        result.answers.append(answer)
        if session is not None and log is not None and _is_done(parts, log, answer, result):
            session.settle(partition)
    return result


def _find(parts: BrokerParts, result: _Result, name: str, topic_id: Any) -> _Found:
    known, error = find_topic(parts, name, topic_id)
    topic = name if known is None else known.name
    if known is not None and result.replica_id >= 0:
        allowed = cluster_allowed(parts, result.request)
    else:
        allowed = not topic or topic_allowed(parts, result.request, topic)
    return _Found(known, error if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _log_of(
    parts: BrokerParts, found: _Found, entry: Any, result: _Result
) -> tuple[PartitionLog | None, ErrorCode]:
    """The log to read from, else None and why."""
    if found.topic is None or found.error is not ErrorCode.NONE:
        return None, found.error
    log, error = led_log(
        parts,
        found.topic,
        entry.partition,
        entry.current_leader_epoch,
        or_follower=result.reads_any_replica,
    )
    if log is not None and result.replica_id >= 0:
        error = _check_follower(parts, log, result.replica_id)
    return (log if error is ErrorCode.NONE else None), error


def _read_log(parts: BrokerParts, log: PartitionLog, entry: Any, result: _Result) -> Any:
    preferred = None
    if result.reads_any_replica:
        preferred = preferred_read_replica(parts, result.request, log, entry.fetch_offset)
    if preferred is not None:
        result.failed = True
        return _without_records(log.partition, at=log, read_elsewhere=preferred)
    return _read_partition(log, entry, result)


def _is_done(parts: BrokerParts, log: PartitionLog, answer: _Answer, result: _Result) -> bool:
    """True if the partition needs no further look until it changes.

    Then it has no news, nothing left to read, and nothing that a follower's fetches bring about.
    """
    if answer.is_news:
        return False
    entry, message = answer.partition.entry, result.request.message
    if result.replica_id >= 0 and not log.single_replica:
        leader = parts.replicas.partition(log).leader
        in_sync = leader is not None and result.replica_id in leader.registration.isr
        return in_sync and entry.fetch_offset >= log.log_end_offset
    if message.isolation_level == READ_COMMITTED:
        return bool(entry.fetch_offset >= log.last_stable_offset)
    return bool(entry.fetch_offset >= log.high_watermark)


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


def _read_partition(log: PartitionLog, entry: Any, result: _Result) -> Any:
    isolation_level = result.request.message.isolation_level
    from_follower = not log.single_replica and result.replica_id >= 0
    diverging = None if log.single_replica else _diverging(log, entry)
    if diverging is not None:
        result.failed = True
        answer = _without_records(entry.partition, at=log)
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
    """Return the end of the common history if the fetcher's last batch is not in this log.

    The batch is known by its epoch (KIP-595; Kafka's `Partition.readRecords`). None if the log has
    the batch, or if the fetch has no epoch.
    """
    last_epoch = entry.last_fetched_epoch
    if last_epoch < 0 or entry.fetch_offset < log.log_start_offset:
        return None
    epoch, end_offset = log.end_offset_for_epoch(last_epoch)
    if epoch == last_epoch and end_offset >= entry.fetch_offset:
        return None
    return _Partition.EpochEndOffset(epoch=epoch, end_offset=max(end_offset, 0))


def _answer(partition: int, read: LogRead) -> Any:
    if read.error is not ErrorCode.NONE:
        return _without_records(partition, read.error)
    answer = _without_records(partition, at=read)
    if read.aborted is not None:
        answer.aborted_transactions = [
            _Partition.AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset)
            for a in read.aborted
        ]
    return answer


def _without_records(
    partition: int,
    error: ErrorCode = ErrorCode.NONE,
    *,
    at: LogRead | PartitionLog | None = None,
    read_elsewhere: int = -1,
) -> Any:
    """Return the answer for a partition, with the offsets of a read or a log if there is one."""
    return _Partition(
        partition_index=partition,
        error_code=int(error),
        high_watermark=-1 if at is None else at.high_watermark,
        last_stable_offset=-1 if at is None else at.last_stable_offset,
        log_start_offset=-1 if at is None else at.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=read_elsewhere,
        records=b"",
    )
