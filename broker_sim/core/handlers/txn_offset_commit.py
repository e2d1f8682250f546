"""TxnOffsetCommit (key 28): offsets that become visible with the transaction's COMMIT marker.

Topics by name, from version 6 on by id (KIP-1319).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import OffsetErrors, OffsetToCommit, TxnOffsetCommit
from broker_sim.core.handlers._access import group_allowed, transactional_id_allowed
from broker_sim.core.handlers._lookup import find_led
from broker_sim.core.handlers._offsets import (
    all_partitions,
    commit_topics,
    split_known,
    topic_names,
)
from broker_sim.core.handlers._verification import Producer, join_transaction, needs_verification
from broker_sim.core.log.producer_state import NO_GUARD
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import NO_SEQUENCE
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC, TopicPartition

_Response = APIS[ApiKey.TXN_OFFSET_COMMIT].response
_Topic = _Response.TxnOffsetCommitResponseTopic

ADD_PARTITIONS_VERSION = 5
"""From here on the offsets partition joins the transaction by this request (KIP-890 part 2)."""
ABORTABLE_VERSION = 4
TOPIC_ID_VERSION = 6
"""From here on a group that does not exist is GROUP_ID_NOT_FOUND, too."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Partitions that do not exist are refused one by one, the others as a whole."""
    message = request.message
    by_id = request.api_version >= TOPIC_ID_VERSION
    names = topic_names(parts, message.topics, by_id=by_id)
    known, errors = split_known(parts, request, names, by_id=by_id)

    def answer(committed: OffsetErrors, effects: Effects) -> None:
        topics = commit_topics(_Topic, message.topics, names, errors | committed)
        respond(request, _Response(topics=topics), effects)

    refused = _refused(parts, request)
    if refused is not ErrorCode.NONE:
        return answer(all_partitions(message.topics, names, refused), effects)
    if not known:
        return answer({}, effects)
    if not message.group_id:
        # Refused before its offsets partition gets into the transaction.
        return answer(_all(known, ErrorCode.INVALID_GROUP_ID), effects)

    def commit(joined: ErrorCode | _Joined, effects: Effects) -> None:
        if isinstance(joined, ErrorCode):
            return answer(_all(known, joined), effects)
        return _commit_offsets(parts, request, known, joined, answer, effects)

    return _join_transaction(parts, request, commit, effects)


@dataclass(frozen=True, slots=True)
class _Joined:
    """The offsets partition is in the transaction."""

    guard: int | None
    """Guard of the commit, for `PartitionLog.append_as_leader`."""


def _refused(parts: BrokerParts, request: Request) -> ErrorCode:
    if not transactional_id_allowed(parts, request, request.message.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not group_allowed(parts, request, request.message.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _commit_offsets(
    parts: BrokerParts,
    request: Request,
    offsets: list[OffsetToCommit],
    joined: _Joined,
    reply: Reply[OffsetErrors],
    effects: Effects,
) -> None:
    message = request.message
    commit = TxnOffsetCommit(
        group_id=message.group_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        offsets=tuple(offsets),
        generation_id=message.generation_id_or_member_epoch,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        knows_group_id_not_found=request.api_version >= TOPIC_ID_VERSION,
        guard=joined.guard,
    )
    parts.groups.txn_offset_commit(commit, reply, effects)


def _all(offsets: list[OffsetToCommit], error: ErrorCode) -> OffsetErrors:
    return {TopicPartition(offset.topic, offset.partition): error for offset in offsets}


def _join_transaction(
    parts: BrokerParts, request: Request, reply: Reply[ErrorCode | _Joined], effects: Effects
) -> None:
    """The transaction must hold the group's offsets partition, or gets it now."""
    message = request.message
    if not parts.topics.ensure_internal(GROUP_METADATA_TOPIC, effects):
        return reply(ErrorCode.COORDINATOR_NOT_AVAILABLE, effects)
    partition = TopicPartition(GROUP_METADATA_TOPIC, parts.groups.partition_for(message.group_id))
    log, _ = find_led(parts, partition.topic, None, partition.partition)
    if log is None:
        return reply(ErrorCode.NOT_COORDINATOR, effects)
    ids = (message.producer_id, message.producer_epoch)
    adds = request.api_version >= ADD_PARTITIONS_VERSION
    if not needs_verification(parts, adds=adds):
        return reply(_Joined(None), effects)
    if log.has_open_transaction(*ids):
        return reply(_Joined(NO_GUARD), effects)
    rejection = log.verification.begin(*ids, NO_SEQUENCE, effects.now_ms, supports_epoch_bump=adds)
    if rejection is not None:
        return reply(rejection.error, effects)
    joined = _Joined(log.verification.guard(message.producer_id))

    def on_verified(verdicts: OffsetErrors, effects: Effects) -> None:
        error = _coordinator_error(verdicts[partition], request.api_version)
        reply(joined if error is ErrorCode.NONE else error, effects)

    producer = Producer(message.transactional_id, *ids)
    return join_transaction(parts, producer, [partition], on_verified, effects, adds=adds)


def _coordinator_error(error: ErrorCode, api_version: int) -> ErrorCode:
    """Return the group coordinator's error for an error of the transaction coordinator."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and api_version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.NETWORK_EXCEPTION:
        # Old clients do not retry that; this they do, without looking for the coordinator again.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error
