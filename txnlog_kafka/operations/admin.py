"""Operations of administration: topics, groups, transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnlog_kafka.errors import BrokerError
from txnlog_kafka.operations.calls import (
    GROUP,
    TRANSACTION,
    CoordinatorRequest,
    call,
    call_all,
    call_coordinator,
    refuse_if_final,
)
from txnlog_kafka.operations.effects import ANY_NODE, Call, Operation, Reply, Unanswered
from txnlog_kafka.operations.metadata import refresh_metadata, require_leaders
from txnlog_kafka.operations.retry import Subject, why_again
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

DECIDED_STATES = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States of a transactional id whose transaction has its outcome, but not all of its markers."""
_CREATE = APIS[ApiKey.CREATE_TOPICS]
_DELETE_GROUPS = APIS[ApiKey.DELETE_GROUPS]
_DESCRIBE_GROUPS = APIS[ApiKey.DESCRIBE_GROUPS]
_LIST_GROUPS = APIS[ApiKey.LIST_GROUPS]
_LIST_TRANSACTIONS = APIS[ApiKey.LIST_TRANSACTIONS]
_DESCRIBE_TRANSACTIONS = APIS[ApiKey.DESCRIBE_TRANSACTIONS]
_DESCRIBE_PRODUCERS = APIS[ApiKey.DESCRIBE_PRODUCERS]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Entry of ListGroups; `state` in Kafka's words, such as Stable."""

    group_id: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """Entry of ListTransactions; `state` in Kafka's words, such as Ongoing."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """Entry of DescribeTransactions; `start_time_ms` is -1 when no transaction is open."""

    transactional_id: str
    state: str
    timeout_ms: int
    start_time_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


def create_topic(
    session: Session,
    topic: str,
    *,
    partitions: int,
    replication_factor: int = -1,
    config: Mapping[str, str] | None = None,
    exists_ok: bool = False,
) -> Operation[None]:
    """Create a topic and wait for its leaders. Raises FatalError (TOPIC_ALREADY_EXISTS and so on).

    A try without an answer may have created the topic, so a later TOPIC_ALREADY_EXISTS is success.
    """
    topic_type = _CREATE.request.CreatableTopic
    message = _CREATE.request(
        topics=[
            topic_type(
                name=topic,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=[],
                configs=[
                    topic_type.CreatableTopicConfig(name=name, value=value)
                    for name, value in sorted((config or {}).items())
                ],
            )
        ],
        timeout_ms=session.config.request_timeout_ms,
        validate_only=False,
    )
    doing = f"creating topic {topic!r}"
    yield from _create(session, message, doing, exists_ok=exists_ok)
    # The controller knows the topic; the other brokers hear of it a moment later.
    expected = [TopicPartition(topic, number) for number in range(max(partitions, 1))]
    deadline = session.deadline()
    while not session.cluster.partitions(topic):
        yield from refresh_metadata(session, [topic], deadline=deadline)
        if not session.cluster.partitions(topic):
            yield from deadline.backoff(doing, "not in the metadata yet")
    known = set(session.cluster.partitions(topic))
    yield from require_leaders(session, [p for p in expected if p[1] in known], deadline=deadline)


def _create(session: Session, message: Message, doing: str, *, exists_ok: bool) -> Operation[None]:
    """Ask the controller until the topic exists; after a try without an answer it may exist."""
    deadline = session.deadline()
    while True:
        node = session.cluster.controller_id
        node = node if node in session.cluster.nodes else ANY_NODE
        outcome = yield from call(Call(node, message, deadline.call_ms))
        if isinstance(outcome, Unanswered):
            refuse_if_final(outcome, doing)
            exists_ok = exists_ok or outcome.sent
            session.cluster = session.cluster.without_controller()
            yield from deadline.backoff(doing, outcome.reason)
            continue
        (created,) = outcome.message.topics
        code, text = created.error_code, created.error_message
        if exists_ok and code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        subject = Subject(ApiKey.CREATE_TOPICS, topics=(created.name,))
        again = why_again(code, f"{doing} [{text}]" if text else doing, subject)
        if again is None:
            return
        yield from refresh_metadata(session, (), deadline=deadline)
        yield from deadline.backoff(doing, again)


def delete_group(session: Session, group_id: str, *, missing_ok: bool = False) -> Operation[None]:
    """Delete a group with all its offsets. Raises FatalError (NON_EMPTY_GROUP and so on)."""
    request = CoordinatorRequest(
        GROUP,
        group_id,
        _DELETE_GROUPS.request(groups_names=[group_id]),
        f"deleting group {group_id!r}",
        lambda reply: tuple(r.error_code for r in reply.message.results),
    )
    try:
        yield from call_coordinator(session, request)
    except BrokerError as error:
        if not (missing_ok and error.code == ErrorCode.GROUP_ID_NOT_FOUND):
            raise


def describe_group(session: Session, group_id: str) -> Operation[Message]:
    """Return the coordinator's description of a classic group. Raises FatalError.

    The state of a group that does not exist is Dead, and it has no members.
    """
    request = CoordinatorRequest(
        GROUP,
        group_id,
        _DESCRIBE_GROUPS.request(groups=[group_id], include_authorized_operations=False),
        f"describing group {group_id!r}",
        lambda reply: tuple(g.error_code for g in reply.message.groups),
    )
    answer = yield from call_coordinator(session, request)
    (found,) = answer.message.groups
    return found


def group_members(session: Session, group_id: str) -> Operation[tuple[str, ...]]:
    """Return the members of a classic group for a text, as "client id at host". Raises FatalError.

    A group that does not exist has no members.
    """
    found = yield from describe_group(session, group_id)
    return tuple(f"{m.client_id} at {m.client_host}" for m in found.members)


def list_groups(
    session: Session, states: Iterable[str] = ()
) -> Operation[tuple[GroupListing, ...]]:
    """Return all groups on all brokers, sorted; `states` in Kafka's words filters them."""
    message = _LIST_GROUPS.request(states_filter=list(states), types_filter=[])
    replies = yield from _ask_all_nodes(session, message, "listing groups")
    groups = {g.group_id: g for reply in replies for g in reply.message.groups}
    return tuple(
        GroupListing(name, each.group_state, each.protocol_type)
        for name, each in sorted(groups.items())
    )


def list_transactions(
    session: Session, states: Iterable[str] = ()
) -> Operation[tuple[TransactionListing, ...]]:
    """Return all transactional ids on all brokers, sorted; `states` in Kafka's words filters
    them."""
    message = _LIST_TRANSACTIONS.request(
        state_filters=list(states), producer_id_filters=[], duration_filter=-1
    )
    replies = yield from _ask_all_nodes(session, message, "listing transactions")
    found = [
        TransactionListing(s.transactional_id, s.producer_id, s.transaction_state)
        for reply in replies
        for s in reply.message.transaction_states
    ]
    return tuple(sorted(found, key=lambda t: t.transactional_id))


def _ask_all_nodes(session: Session, message: Message, doing: str) -> Operation[list[Reply]]:
    """Ask every broker the same question, until all have answered without a retriable error."""
    deadline = session.deadline()
    while True:
        yield from refresh_metadata(session, (), deadline=deadline)
        outcomes = yield from call_all(
            tuple(Call(node, message, deadline.call_ms) for node in sorted(session.cluster.nodes))
        )
        replies = []
        reason = ""
        for outcome in outcomes:
            if isinstance(outcome, Unanswered):
                refuse_if_final(outcome, doing)
                reason = outcome.reason
                continue
            subject = Subject(ApiKey(message.API_KEY))
            again = why_again(outcome.message.error_code, doing, subject)
            if again is None:
                replies.append(outcome)
            else:
                reason = again
        if not reason:
            return replies
        yield from deadline.backoff(doing, reason)


def describe_transaction(
    session: Session, transactional_id: str
) -> Operation[TransactionDescription | None]:
    """Return the coordinator's description of a transactional id; None if it is unknown there."""
    request = CoordinatorRequest(
        TRANSACTION,
        transactional_id,
        _DESCRIBE_TRANSACTIONS.request(transactional_ids=[transactional_id]),
        f"describing transactional id {transactional_id!r}",
        lambda reply: tuple(s.error_code for s in reply.message.transaction_states),
    )
    try:
        answer = yield from call_coordinator(session, request)
    except BrokerError as error:
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    (state,) = answer.message.transaction_states
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        timeout_ms=state.transaction_timeout_ms,
        start_time_ms=state.transaction_start_time_ms,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        partitions=tuple(
            sorted(TopicPartition(t.topic, p) for t in state.topics for p in t.partitions)
        ),
    )


def describe_decided_transaction(
    session: Session, transactional_id: str
) -> Operation[TransactionDescription | None]:
    """Return the description of a transactional id, after waiting for the markers of a decided
    transaction.

    Apache Kafka writes them soon after it answers EndTxn. Raises DeadlineExceeded.
    """
    deadline = session.deadline()
    while True:
        found = yield from describe_transaction(session, transactional_id)
        if found is None or found.state not in DECIDED_STATES:
            return found
        doing = f"waiting for the markers of transactional id {transactional_id!r}"
        yield from deadline.backoff(doing, f"its state is {found.state}")


def describe_producers(
    session: Session, partition: TopicPartition
) -> Operation[tuple[Message, ...]]:
    """Return the producers that the leader of a partition knows.

    Follows leader changes. Raises UnknownTopic, FatalError, DeadlineExceeded.
    """
    request = _DESCRIBE_PRODUCERS.request
    asked = request.TopicRequest(name=partition.topic, partition_indexes=[partition.partition])
    message = request(topics=[asked])
    doing = f"describing the producers of {partition}"
    subject = Subject(ApiKey.DESCRIBE_PRODUCERS, topics=(partition.topic,))
    deadline = session.deadline()
    while True:
        yield from require_leaders(session, [partition], deadline=deadline)
        leader = session.cluster.leader(partition)
        outcome = yield from call(Call(leader, message, deadline.call_ms))
        if isinstance(outcome, Unanswered):
            refuse_if_final(outcome, doing)
            reason = outcome.reason
        else:
            (found,) = outcome.message.topics[0].partitions
            again = why_again(found.error_code, doing, subject)
            if again is None:
                return tuple(found.active_producers)
            reason = again
        session.cluster = session.cluster.forget_leader(partition)
        yield from deadline.backoff(doing, reason)
