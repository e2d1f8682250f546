"""TxnOffsetCommit (key 28): offsets that become visible with the transaction's COMMIT marker."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import OffsetErrors, OffsetToCommit, TxnOffsetCommit
from broker_sim.core.handlers._offsets import commit_topics, split_known, topic_names
from broker_sim.core.handlers._verification import Producer, is_asked, join_transaction
from broker_sim.core.parts import BrokerParts
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message
from txnlog_spark.wire.records import NO_SEQUENCE
from txnlog_spark.wire.topics import GROUP_METADATA_TOPIC, TopicPartition

_Response = APIS[ApiKey.TXN_OFFSET_COMMIT].response
_Topic = _Response.TxnOffsetCommitResponseTopic

ADD_PARTITIONS_VERSION = 5
"""From here on the offsets partition joins the transaction by this request (KIP-890 part 2)."""
ABORTABLE_VERSION = 4
LOAD_IN_PROGRESS_VERSION = 2
"""Producers before it fail over COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Partitions that do not exist are refused one by one, the others as a whole."""
    message = request.message
    names = topic_names(parts, message.topics, by_id=False)
    known, errors = split_known(parts, message.topics, names)
    if known:
        errors.update(_commit(parts, request, known, effects))
    return _Response(
        throttle_time_ms=0, topics=commit_topics(_Topic, message.topics, names, errors)
    )


def _commit(
    parts: BrokerParts, request: Request, offsets: list[OffsetToCommit], effects: Effects
) -> OffsetErrors:
    message = request.message
    # An empty group id is refused before its offsets partition gets into the transaction.
    error = ErrorCode.NONE if message.group_id else ErrorCode.INVALID_GROUP_ID
    if error is ErrorCode.NONE:
        error = _join_transaction(parts, request, effects)
    if error is not ErrorCode.NONE:
        return {TopicPartition(o.topic, o.partition): error for o in offsets}
    errors = parts.groups.txn_offset_commit(
        TxnOffsetCommit(
            group_id=message.group_id,
            producer_id=message.producer_id,
            producer_epoch=message.producer_epoch,
            offsets=tuple(offsets),
            generation_id=message.generation_id,
            member_id=message.member_id,
            group_instance_id=message.group_instance_id,
        ),
        effects,
    )
    if request.api_version >= LOAD_IN_PROGRESS_VERSION:
        return errors
    return {partition: _old_name(error) for partition, error in errors.items()}


def _old_name(error: ErrorCode) -> ErrorCode:
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


def _join_transaction(parts: BrokerParts, request: Request, effects: Effects) -> ErrorCode:
    """The transaction must hold the group's offsets partition, or gets it now."""
    message = request.message
    if not parts.topics.ensure_internal(GROUP_METADATA_TOPIC, effects):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition = TopicPartition(GROUP_METADATA_TOPIC, parts.groups.partition_for(message.group_id))
    log = parts.logs.get(*partition)
    ids = (message.producer_id, message.producer_epoch)
    adds = request.api_version >= ADD_PARTITIONS_VERSION
    if log is not None:
        if log.has_open_transaction(*ids) or not is_asked(parts, adds=adds):
            return ErrorCode.NONE
        rejection = log.begin_verification(*ids, NO_SEQUENCE, effects, supports_epoch_bump=adds)
        if rejection is not None:
            return rejection.error
    producer = Producer(message.transactional_id, *ids)
    errors = join_transaction(parts, producer, [partition], effects, adds=adds)
    return _coordinator_error(errors[partition], request.api_version)


def _coordinator_error(error: ErrorCode, api_version: int) -> ErrorCode:
    """What the group coordinator makes of the transaction coordinator's error."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and api_version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return error
