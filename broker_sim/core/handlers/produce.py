"""Produce (key 0): append record batches, without looking into their records.

A batch of a transaction is appended only where its producer's transaction is known to be: there
is an open one on the partition, or the coordinator says that the partition was added (version 11
and below, KIP-890 part 1), or is asked to add it now (version 12 and transaction.version 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker_sim.core.effects import Close, Effects, NoResponse, Request
from broker_sim.core.handlers.transactional import (
    Producer,
    is_asked,
    join_transaction,
)
from broker_sim.core.log import AppendOrigin, AppendResult, PartitionLog
from broker_sim.core.partitions import NO_ROOM, TopicPartition
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message
from txnlog_spark.wire.records import HEADER_BYTES, MAGIC, MAGIC_AT, BatchHeader, parse_header

_Response = APIS[ApiKey.PRODUCE].response
_RecordError = _Response.TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage

ADD_PARTITIONS_VERSION = 12
"""From here on Produce adds its partitions to the transaction itself (KIP-890 part 2)."""
TOPIC_ID_VERSION = 13
"""From here on topics are named by id (KIP-516)."""
ABORTABLE_VERSION = 11
"""From here on clients know TRANSACTION_ABORTABLE."""
ACKS = (-1, 0, 1)
INTERNAL_CLIENT_ID = "__admin_client"
"""Who says so may write to internal topics, as in Kafka."""

_UNAUTHORIZED = AppendResult(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "a transactional batch in a request without a transactional id",
)

_MIXED_PRODUCERS = AppendResult(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional batches of more than one producer"
)
_NO_TOPIC = "/"
_NOT_IN_TRANSACTION = "The partition is not in a transaction that the coordinator knows."

_TO_NOT_ENOUGH_REPLICAS = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The client retries these later with the same batch (Kafka's `ReplicaManager`)."""


@dataclass(frozen=True, slots=True)
class _Target:
    """One partition of the request, before its append."""

    topic: str
    partition: int
    records: bytes
    log: PartitionLog | None
    header: BatchHeader | None
    refused: AppendResult | None


def handle(state: BrokerState, request: Request, effects: Effects) -> Message | None:
    """Append each partition's batch on its own, in the order of the request."""
    message = request.message
    results: dict[TopicPartition, AppendResult] = {}
    unauthorized = _is_unauthorized(message)
    names = [_name(state, request, topic) for topic in message.topic_data]
    targets = [
        _target(state, request, name, entry, unauthorized)
        for name, topic in zip(names, message.topic_data, strict=True)
        for entry in topic.partition_data
    ]
    mixed = len(_producers(targets)) > 1
    refused = {} if mixed else _verify(state, request, targets, effects)
    for target in targets:
        key = (target.topic, target.partition)
        refusal = _MIXED_PRODUCERS if mixed else refused.get(key)
        results[key] = refusal or _append(state, target, effects)
    if message.acks == 0:
        _answer_without_acks(request, results, effects)
        return None
    return _Response(
        responses=[
            _Response.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _partition_response(entry.index, results[name, entry.index])
                    for entry in topic.partition_data
                ],
            )
            for name, topic in zip(names, message.topic_data, strict=True)
        ],
        throttle_time_ms=0,
    )


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
    ok = result.error is ErrorCode.NONE
    return _Response.TopicProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=int(result.error),
        base_offset=result.base_offset if ok else -1,
        log_append_time_ms=result.log_append_time_ms if ok else -1,
        log_start_offset=result.log_start_offset if ok else -1,
        record_errors=[
            _RecordError(batch_index=at, batch_index_error_message=result.message)
            for at in result.record_indexes
        ],
        error_message=None if ok else (result.message or None),
    )


# --------------------------------------------------------------------------- checks


def _name(state: BrokerState, request: Request, topic: Any) -> str:
    """The topic's name; for an id that is not known any more, a name that no topic can have."""
    if request.api_version < TOPIC_ID_VERSION:
        return str(topic.name)
    known = state.image.topic_of_id(topic.topic_id)
    return f"{_NO_TOPIC}{topic.topic_id}" if known is None else known.name


def _target(
    state: BrokerState, request: Request, name: str, entry: Any, unauthorized: bool
) -> _Target:
    records = entry.records or b""
    log = state.partitions.get(name, entry.index)
    if unauthorized:
        return _Target(name, entry.index, records, log, None, _UNAUTHORIZED)
    header, refused = None, _request_refused(state, request, name, log)
    if refused is None:
        header, refused = _single_batch(records)
    return _Target(name, entry.index, records, log, header, refused)


def _request_refused(
    state: BrokerState, request: Request, name: str, log: PartitionLog | None
) -> AppendResult | None:
    acks = request.message.acks
    if acks not in ACKS:
        return AppendResult(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}")
    if name.startswith(_NO_TOPIC):
        return AppendResult(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic of id {name[1:]}")
    if log is None:
        return AppendResult(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    topic = state.image.topics[name]
    if topic.is_internal and request.client_id != INTERNAL_CLIENT_ID:
        return AppendResult(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}"
        )
    # Before the batch gets its partition into a transaction.
    return NO_ROOM if state.partitions.is_full else None


def _single_batch(records: bytes) -> tuple[BatchHeader | None, AppendResult | None]:
    """The header of the one batch that Produce 3+ allows in a partition."""
    if not records:
        return None, AppendResult(ErrorCode.INVALID_RECORD, "no record batch in the partition")
    if len(records) > MAGIC_AT and records[MAGIC_AT] != MAGIC:
        text = f"magic {records[MAGIC_AT]} is not {MAGIC}"
        return None, AppendResult(ErrorCode.INVALID_RECORD, text)
    if len(records) < HEADER_BYTES:
        return None, AppendResult(ErrorCode.CORRUPT_MESSAGE, f"a batch of {len(records)} bytes")
    header = parse_header(records)
    if header.size_bytes < len(records):
        return None, AppendResult(
            ErrorCode.INVALID_RECORD, "more than one record batch in the partition"
        )
    if header.is_control:
        return None, AppendResult(ErrorCode.INVALID_RECORD, "clients write no control batches")
    if header.is_transactional and not header.has_producer_id:
        text = "a transactional batch without a producer id"
        return None, AppendResult(ErrorCode.INVALID_RECORD, text)
    return header, None


def _is_unauthorized(message: Message) -> bool:
    """A transactional batch, but no transactional id to be authorized for: all is refused."""
    if message.transactional_id is not None:
        return False
    return any(
        _is_transactional(entry.records)
        for topic in message.topic_data
        for entry in topic.partition_data
    )


def _is_transactional(records: bytes | None) -> bool:
    if records is None or len(records) < HEADER_BYTES or records[MAGIC_AT] != MAGIC:
        return False
    return parse_header(records).is_transactional


# --------------------------------------------------------------------------- transactions


def _producers(targets: list[_Target]) -> set[tuple[int, int]]:
    """(producer id, epoch) of all transactional batches."""
    headers = [target.header for target in targets if target.header is not None]
    return {(h.producer_id, h.producer_epoch) for h in headers if h.is_transactional}


def _verify(
    state: BrokerState, request: Request, targets: list[_Target], effects: Effects
) -> dict[TopicPartition, AppendResult]:
    """Refusals of partitions where no transaction of the producer is open: the epoch is older than
    what the partition knows, or the coordinator says no."""
    refused: dict[TopicPartition, AppendResult] = {}
    adds = request.api_version >= ADD_PARTITIONS_VERSION
    asked: list[TopicPartition] = []
    for target in targets:
        header, log, key = target.header, target.log, (target.topic, target.partition)
        if target.refused is not None or header is None or log is None:
            continue
        ids = (header.producer_id, header.producer_epoch)
        if not header.is_transactional or log.has_open_transaction(*ids):
            continue
        if not is_asked(state, adds=adds):
            continue
        rejection = log.begin_verification(
            *ids, header.base_sequence, effects, supports_epoch_bump=adds
        )
        if rejection is not None:
            refused[key] = AppendResult(rejection.error, rejection.message)
            continue
        asked.append(key)
    if not asked:
        return refused
    ((producer_id, producer_epoch),) = _producers(targets)
    producer = Producer(request.message.transactional_id, producer_id, producer_epoch)
    verdicts = join_transaction(state, producer, asked, effects, adds=adds)
    for key, verdict in verdicts.items():
        if verdict is not ErrorCode.NONE:
            error = _verification_error(verdict, request.api_version)
            refused[key] = AppendResult(error, _NOT_IN_TRANSACTION)
    return refused


def _verification_error(error: ErrorCode, api_version: int) -> ErrorCode:
    """How the coordinator's error reads in a Produce answer."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error in _TO_NOT_ENOUGH_REPLICAS:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and api_version < ADD_PARTITIONS_VERSION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.TRANSACTION_ABORTABLE and api_version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _append(state: BrokerState, target: _Target, effects: Effects) -> AppendResult:
    if target.refused is not None or target.log is None:
        return target.refused or AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return state.partitions.append(target.log, target.records, effects, origin=AppendOrigin.CLIENT)
