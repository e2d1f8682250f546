"""Produce (key 0): append record batches, without looking into their records.

A batch of a transaction is appended only where its producer's transaction is known to be: there
is an open one on the partition, or the coordinator says that the partition was added (version 11
and below, KIP-890 part 1), or is asked to add it now (version 12 and transaction.version 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker_sim.core.effects import Close, Effects, NoResponse, Request
from broker_sim.core.handlers._access import topic_allowed, transactional_id_allowed
from broker_sim.core.handlers._lookup import ZERO_ID, endpoints_of, find_led, leader_of
from broker_sim.core.handlers._verification import Producer, join_transaction, needs_verification
from broker_sim.core.log import AppendOrigin, AppendResult, PartitionLog
from broker_sim.core.log.producer_state import NO_GUARD
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.replica.replica_manager import ALL_REPLICAS, NOT_LEADER, STORAGE_FULL
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    Compression,
    parse_header,
)
from txnlog_kafka.wire.topic_partition import INTERNAL_TOPICS, TopicPartition

_Response = APIS[ApiKey.PRODUCE].response
_TopicResponse = _Response.TopicProduceResponse
_PartitionResponse = _TopicResponse.PartitionProduceResponse
_RecordError = _PartitionResponse.BatchIndexAndErrorMessage

ADD_PARTITIONS_VERSION = 12
"""From here on Produce adds its partitions to the transaction itself (KIP-890 part 2)."""
TOPIC_ID_VERSION = 13
"""From here on topics are named by id (KIP-516)."""
ZSTD_VERSION = 7
"""Clients with older versions may not use zstd (KIP-110)."""
ABORTABLE_VERSION = 11
"""From here on clients know TRANSACTION_ABORTABLE."""
ACKS = (-1, 0, 1)
INTERNAL_CLIENT_ID = "__admin_client"
"""A client of this id may write to internal topics, as in Kafka."""

_UNAUTHORIZED = AppendResult(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "a transactional batch without a transactional id that may be used",
)

_NOT_THE_LOGS = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
)
"""Refusals of an append that do not tell where the log starts (Kafka's `ReplicaManager`)."""

_MIXED_PRODUCERS = AppendResult(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional batches of more than one producer"
)
_NO_TOPIC = "/"
_NOT_REPLICATED = "The replicas have not all got the batch; it may still be committed."
_NOT_IN_TRANSACTION = "The partition is not in a transaction that the coordinator knows."

_TO_NOT_ENOUGH_REPLICAS = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The client retries these later with the same batch (Kafka's `ReplicaManager`)."""


@dataclass(slots=True)
class _Target:
    """Partition of the request, before its append."""

    topic: str
    partition: int
    records: bytes
    log: PartitionLog | None
    header: BatchHeader | None
    refused: AppendResult | None = None
    guard: int | None = None
    """Guard of a batch that must be in a transaction, for `PartitionLog.append_as_leader`."""


_Targets = dict[TopicPartition, _Target]


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Append each partition's batch on its own, in the order of the request, once the transaction
    coordinator has answered for those that it must verify or add.

    Of a partition that is named twice only the last batch counts, as in Kafka.
    """
    targets = _targets(parts, request)
    transactional = [
        t for t in targets.values() if t.header is not None and t.header.is_transactional
    ]
    asked: _Targets = {}
    if transactional and not _may_write_transactions(parts, request):
        for target in targets.values():
            target.refused = _UNAUTHORIZED
    else:
        _refuse_targets(parts, request, targets.values())
        if transactional:
            asked = _to_verify(parts, request, targets.values(), effects)

    def append(verdicts: dict[TopicPartition, ErrorCode], effects: Effects) -> None:
        for key, result in verdicts.items():
            if result is not ErrorCode.NONE:
                error = _verification_error(result, request.api_version)
                asked[key].refused = AppendResult(error, _NOT_IN_TRANSACTION)
        results = {
            key: target.refused or _append_target(parts, target, request.message.acks, effects)
            for key, target in targets.items()
        }
        _finish_request(parts, request, targets, results, effects)

    if not asked:
        return append({}, effects)
    header = next(target.header for target in asked.values() if target.header is not None)
    producer = Producer(request.message.transactional_id, header.producer_id, header.producer_epoch)
    adds = request.api_version >= ADD_PARTITIONS_VERSION
    ask = partial(join_transaction, parts, producer, list(asked), adds=adds)
    return parts.add_retries.ask(ask, append, effects) if adds else ask(append, effects)


def _finish_request(
    parts: BrokerParts,
    request: Request,
    targets: _Targets,
    results: dict[TopicPartition, AppendResult],
    effects: Effects,
) -> None:
    """Answer, with acks=all when all replicas that are in sync have what was appended."""
    if request.message.acks == 0:
        return _answer_without_acks(request, results, effects)

    def answer(outcomes: dict[TopicPartition, ErrorCode], effects: Effects) -> None:
        for key, error in outcomes.items():
            if error is not ErrorCode.NONE:
                results[key] = AppendResult(error, _NOT_REPLICATED)
        respond(request, _answer(parts, request, results), effects)

    waits = _to_wait_for(parts, request, targets, results)
    if not waits:
        return answer({}, effects)
    timeout_ms = request.message.timeout_ms
    return parts.replicas.when_all_committed(waits, timeout_ms, answer, effects)


def _to_wait_for(
    parts: BrokerParts,
    request: Request,
    targets: _Targets,
    results: dict[TopicPartition, AppendResult],
) -> dict[TopicPartition, tuple[PartitionLog, int]]:
    """The appends that are to be on all replicas before the answer, each with its last offset."""
    if request.message.acks != ALL_REPLICAS:
        return {}
    return {
        key: (target.log, results[key].last_offset)
        for key, target in targets.items()
        if target.log is not None
        and results[key].ok
        and parts.replicas.partition(target.log).leader is not None
    }


def _answer(
    parts: BrokerParts, request: Request, results: dict[TopicPartition, AppendResult]
) -> Message:
    """Each topic once, each partition once."""
    partitions: dict[str, list[Any]] = {}
    leaders: set[int] = set()
    for (name, partition), result in results.items():
        response = _partition_response(partition, result)
        held = leader_of(parts, name, partition)
        if held is not None and result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leaders.add(held.leader)
            response.current_leader = _PartitionResponse.LeaderIdAndEpoch(
                leader_id=held.leader, leader_epoch=held.leader_epoch
            )
        partitions.setdefault(name, []).append(response)
    by_id = request.api_version >= TOPIC_ID_VERSION
    ids = {_name(parts, request, t): t.topic_id for t in request.message.topic_data if by_id}
    responses = [
        _TopicResponse(
            name="" if by_id else name, topic_id=ids.get(name, ZERO_ID), partition_responses=members
        )
        for name, members in partitions.items()
    ]
    endpoints = endpoints_of(parts, request.listener, leaders, _Response.NodeEndpoint)
    return _Response(responses=responses, node_endpoints=endpoints)


def _answer_without_acks(
    request: Request, results: dict[TopicPartition, AppendResult], effects: Effects
) -> None:
    """With acks=0 the only way to tell of an error is to close the connection, as Kafka does."""
    failed = [(k, r) for k, r in results.items() if r.error is not ErrorCode.NONE]
    if not failed:
        effects.responses.append(NoResponse(request.connection_id, request.correlation_id))
        return
    (topic, partition), result = failed[0]
    reason = f"acks=0 and {topic}-{partition} gave {result.error.name}"
    effects.responses.append(Close(request.connection_id, reason))


def _partition_response(index: int, result: AppendResult) -> Any:
    if result.error is ErrorCode.NONE:
        # With all fields: the encoder finds an empty slot only after an AttributeError, and these
        # would be four for each partition of each request.
        return _PartitionResponse(
            index=index,
            error_code=0,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
            record_errors=[],
            error_message=None,
            current_leader=None,
        )
    return _PartitionResponse(
        index=index,
        error_code=int(result.error),
        base_offset=-1,
        log_start_offset=-1 if result.error in _NOT_THE_LOGS else result.log_start_offset,
        record_errors=[
            _RecordError(batch_index=at, batch_index_error_message=result.message)
            for at in result.record_indexes
        ],
        error_message=result.message or None,
    )


# --------------------------------------------------------------------------- checks


def _name(parts: BrokerParts, request: Request, topic: Any) -> str:
    """The topic's name; for an id that is not known any more, a name that no topic can have."""
    if request.api_version < TOPIC_ID_VERSION:
        return str(topic.name)
    known = parts.image.topic_of_id(topic.topic_id)
    return f"{_NO_TOPIC}{topic.topic_id}" if known is None else known.name


def _targets(parts: BrokerParts, request: Request) -> _Targets:
    """The partitions, in the order in which they are first named."""
    targets: _Targets = {}
    for topic in request.message.topic_data:
        name = _name(parts, request, topic)
        for entry in topic.partition_data:
            index, records = entry.index, entry.records or b""
            log, _ = find_led(parts, name, None, index)
            header = None
            if len(records) >= HEADER_BYTES and records[MAGIC_AT] == MAGIC:
                header = parse_header(records)
            targets[TopicPartition(name, index)] = _Target(name, index, records, log, header)
    return targets


def _refuse_targets(parts: BrokerParts, request: Request, targets: Iterable[_Target]) -> None:
    """Refuse the targets that can be refused before a batch adds its partition to a transaction."""
    acks = request.message.acks
    for target in targets:
        is_known = not target.topic.startswith(_NO_TOPIC)
        if is_known and not topic_allowed(parts, request, target.topic):
            target.refused = AppendResult(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The topic may not be written to."
            )
        elif acks not in ACKS:
            target.refused = AppendResult(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}")
        elif target.log is None:
            target.refused = _not_here(parts, target)
        elif target.topic in INTERNAL_TOPICS and request.client_id != INTERNAL_CLIENT_ID:
            target.refused = AppendResult(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {target.topic}"
            )
        elif parts.space.is_low:
            target.refused = STORAGE_FULL
        else:
            target.refused = _batch_refused(request, target.records, target.header)
        if target.refused is not None:
            target.header = None


def _may_write_transactions(parts: BrokerParts, request: Request) -> bool:
    """Without an id there is nobody to be authorized."""
    transactional_id = request.message.transactional_id
    return transactional_id is not None and transactional_id_allowed(
        parts, request, transactional_id
    )


def _not_here(parts: BrokerParts, target: _Target) -> AppendResult:
    elsewhere = leader_of(parts, target.topic, target.partition) is not None
    return NOT_LEADER if elsewhere else _no_partition(target.topic)


def _no_partition(name: str) -> AppendResult:
    if name.startswith(_NO_TOPIC):
        return AppendResult(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic of id {name[1:]}")
    return AppendResult(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    )


def _batch_refused(
    request: Request, records: bytes, header: BatchHeader | None
) -> AppendResult | None:
    """Produce 3+ allows exactly one batch in a partition."""
    if header is None or header.size_bytes > len(records):
        return _no_whole_batch(records)
    if request.api_version < ZSTD_VERSION and header.compression == Compression.ZSTD:
        return AppendResult(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {ZSTD_VERSION} of Produce"
        )
    if header.size_bytes < len(records):
        return AppendResult(ErrorCode.INVALID_RECORD, "more than one record batch in the partition")
    if header.is_transactional and not header.has_producer_id:
        text = "a transactional batch without a producer id"
        return AppendResult(ErrorCode.INVALID_RECORD, text)
    return None


def _no_whole_batch(records: bytes) -> AppendResult:
    """Refuse data without a whole batch: an incomplete batch does not count, as in Kafka."""
    if len(records) <= MAGIC_AT:
        return AppendResult(ErrorCode.INVALID_RECORD, "no record batch in the partition")
    magic = records[MAGIC_AT]
    if magic > MAGIC:
        return AppendResult(ErrorCode.CORRUPT_MESSAGE, f"magic {magic} is not known")
    if magic < MAGIC:
        return AppendResult(ErrorCode.INVALID_RECORD, f"magic {magic} is not {MAGIC}")
    return AppendResult(ErrorCode.INVALID_RECORD, f"no whole batch in {len(records)} bytes")


# --------------------------------------------------------------------------- transactions


def _to_verify(
    parts: BrokerParts, request: Request, targets: Iterable[_Target], effects: Effects
) -> _Targets:
    """Return the targets whose transaction is not open here: the coordinator must answer for them.

    Refuses batches of several producers, and batches with an older epoch than the partition knows.
    """
    members = [t for t in targets if t.header is not None and t.header.is_transactional]
    producers = {(t.header.producer_id, t.header.producer_epoch) for t in members if t.header}
    asked: _Targets = {}
    if len(producers) > 1:
        for target in targets:
            target.refused = _MIXED_PRODUCERS
        return asked
    adds = request.api_version >= ADD_PARTITIONS_VERSION
    if not needs_verification(parts, adds=adds):
        return asked
    for target in members:
        header, log = target.header, target.log
        if header is None or log is None:
            continue
        ids = (header.producer_id, header.producer_epoch)
        target.guard = NO_GUARD
        if log.has_open_transaction(*ids):
            continue
        rejection = log.verification.begin(
            *ids, header.base_sequence, effects.now_ms, supports_epoch_bump=adds
        )
        if rejection is not None:
            target.refused = AppendResult(rejection.error, rejection.message)
        else:
            target.guard = log.verification.guard(header.producer_id)
            asked[TopicPartition(target.topic, target.partition)] = target
    return asked


def _verification_error(error: ErrorCode, api_version: int) -> ErrorCode:
    """Return the coordinator's error as a Produce answer names it."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error in _TO_NOT_ENOUGH_REPLICAS:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and api_version < ADD_PARTITIONS_VERSION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.TRANSACTION_ABORTABLE and api_version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _append_target(
    parts: BrokerParts, target: _Target, acks: int, effects: Effects
) -> AppendResult:
    log = target.log
    if log is None or parts.logs.get(target.topic, target.partition) is not log:
        return _not_here(parts, target)  # it may have gone while the coordinator was asked
    return parts.replicas.append(
        log, target.records, effects, origin=AppendOrigin.CLIENT, acks=acks, guard=target.guard
    )
