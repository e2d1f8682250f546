"""Steps of one transaction of one producer: initialise, add, commit offsets, end.

Theory of operation. Each transaction begins with InitProducerId and so has an epoch of its own on
both transaction versions: a late request of one transaction cannot hit the next. On version 1
partitions and groups are added by requests of their own; on version 2 (KIP-890) Produce v12 and
TxnOffsetCommit v5 add implicitly.

EndTxn(commit) is a case of its own: see `commit_transaction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from txnlog_kafka.errors import (
    AbortableError,
    CommitStateUnknown,
    ProducerFenced,
    RemoteProtocolError,
    TxnLogError,
)
from txnlog_kafka.operations.calls import (
    GROUP,
    TRANSACTION,
    CoordinatorRequest,
    call,
    call_coordinator,
    call_coordinators,
    find_coordinator,
    partition_codes,
    refuse_if_final,
    top_level_code,
)
from txnlog_kafka.operations.effects import Operation, Reply, Unanswered
from txnlog_kafka.operations.metadata import api_versions_request, confirm_missing
from txnlog_kafka.operations.offsets import (
    CommittedOffset,
    by_topic,
    committed_request,
    fetched_offsets,
    offset_parts,
)
from txnlog_kafka.operations.producer import ProducerIdentity
from txnlog_kafka.operations.retry import (
    EndTxnResult,
    Subject,
    decide,
    decide_end_commit,
    describe_code,
    error_of,
)
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from txnlog_kafka.wire.topic_partition import TopicPartition

TRANSACTION_VERSION = "transaction.version"
"""Finalized feature that decides between transaction versions 1 and 2 (KIP-890)."""
ADD_PARTITIONS_VERSION_MAX = 3
"""Last version for clients; AddPartitionsToTxn from v4 on is for brokers (its schema says so)."""
TXN_OFFSET_COMMIT_VERSION_MAX_V1 = 4
TXN_OFFSET_COMMIT_NAME_VERSION_MAX = 5
"""Last version that names topics; from v6 on they go by their ids (KIP-1319)."""
END_TXN_VERSION_MAX_V1 = 4
PRODUCE_VERSION_MAX_V1 = 11
ABORT_TIMEOUT_MS = 10_000

_INIT = APIS[ApiKey.INIT_PRODUCER_ID]
_ADD_PARTITIONS = APIS[ApiKey.ADD_PARTITIONS_TO_TXN]
_ADD_OFFSETS = APIS[ApiKey.ADD_OFFSETS_TO_TXN]
_TXN_OFFSETS = APIS[ApiKey.TXN_OFFSET_COMMIT]
_END = APIS[ApiKey.END_TXN]


@dataclass(slots=True)
class Transaction:
    """A running transaction. `begun`: a request was sent that may have started it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    """Next base sequence of each partition."""
    begun: bool = False
    record_batch_bytes_max: dict[str, int] = field(default_factory=dict)
    """Limit by topic, if a leader refused a larger record batch as too large."""

    @property
    def who(self) -> str:
        """Ids of the transaction, for messages."""
        return (
            f"transactional id {self.transactional_id!r}, producer id {self.producer_id}, "
            f"epoch {self.producer_epoch}"
        )


def transaction_version(session: Session, transactional_id: str) -> Operation[int]:
    """Return 2 if the coordinator reports transaction.version 2 as finalized (KIP-890), else 1.

    The version may change while a query runs, so it is asked each time. Raises what
    `call_coordinator` raises.
    """
    request = CoordinatorRequest(
        TRANSACTION,
        transactional_id,
        api_versions_request(),
        "reading the cluster's finalized features",
        top_level_code,
    )
    reply = yield from call_coordinator(session, request)
    if reply.version < 3:
        return 1
    for feature in reply.message.finalized_features:
        if feature.name == TRANSACTION_VERSION:
            return 2 if feature.max_version_level >= 2 else 1
    return 1


def init_producer_id(
    session: Session, transactional_id: str, transaction_timeout_ms: int
) -> Operation[ProducerIdentity]:
    """Return a producer id and a new epoch; fences older holders and ends their open transaction.

    Waits while an older transaction is being ended (CONCURRENT_TRANSACTIONS).
    """
    message = _INIT.request(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    doing = f"initialising the producer of transactional id {transactional_id!r}"
    request = CoordinatorRequest(TRANSACTION, transactional_id, message, doing, top_level_code)
    found = (yield from call_coordinator(session, request)).message
    if found.producer_id < 0 or found.producer_epoch < 0:
        raise RemoteProtocolError(
            f"{doing}: the answer has producer id {found.producer_id}, epoch {found.producer_epoch}"
        )
    return ProducerIdentity(transactional_id, found.producer_id, found.producer_epoch)


def add_to_transaction(
    session: Session,
    transaction: Transaction,
    partitions: Iterable[TopicPartition],
    group_ids: Iterable[str],
) -> Operation[None]:
    """Add partitions and groups to a transaction of version 1: AddPartitionsToTxn and
    AddOffsetsToTxn, sent at once.

    Call this before the first Produce to these partitions and the first TxnOffsetCommit of these
    groups.
    """
    wanted = list(partitions)
    requests = [_partitions_request(transaction, wanted)] if wanted else []
    requests += [_group_request(transaction, group_id) for group_id in group_ids]
    transaction.begun = True
    yield from call_coordinators(session, requests)


def _partitions_request(
    transaction: Transaction, partitions: list[TopicPartition]
) -> CoordinatorRequest:
    topic_type = _ADD_PARTITIONS.request.AddPartitionsToTxnTopic
    message = _ADD_PARTITIONS.request(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.producer_id,
        v3_and_below_producer_epoch=transaction.producer_epoch,
        v3_and_below_topics=[
            topic_type(name=topic, partitions=numbers)
            for topic, numbers in by_topic(partitions).items()
        ],
    )
    return CoordinatorRequest(
        TRANSACTION,
        transaction.transactional_id,
        message,
        f"adding partitions to the transaction ({transaction.who})",
        _add_partitions_codes,
        ADD_PARTITIONS_VERSION_MAX,
    )


def _add_partitions_codes(reply: Reply) -> tuple[int, ...]:
    codes = tuple(
        p.partition_error_code
        for t in reply.message.results_by_topic_v3_and_below
        for p in t.results_by_partition
    )
    reasons = tuple(c for c in codes if c != ErrorCode.OPERATION_NOT_ATTEMPTED)
    return reasons if any(reasons) else codes


def _group_request(transaction: Transaction, group_id: str) -> CoordinatorRequest:
    message = _ADD_OFFSETS.request(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        group_id=group_id,
    )
    doing = f"adding group {group_id!r} to the transaction ({transaction.who})"
    return CoordinatorRequest(
        TRANSACTION, transaction.transactional_id, message, doing, top_level_code
    )


def commit_source_offsets(
    session: Session,
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    deadline: Deadline | None = None,
) -> Operation[frozenset[TopicPartition]]:
    """Commit a group's offsets with the transaction (TxnOffsetCommit); return partitions that no
    longer exist.

    Coordinators refuse the offsets of a deleted topic (UNKNOWN_TOPIC_OR_PARTITION, for its
    partitions alone), so a batch that read the topic could never be committed. So this leaves out
    partitions that no longer exist. A broker that does not know a topic yet refuses in the same
    way: the client believes the refusal only when the metadata agrees for a while.
    """
    deadline = deadline or session.deadline()
    remaining = dict(offsets)
    doing = _committing(transaction, group_id)
    transaction.begun = True
    while remaining:
        requests = _offsets_requests(transaction, group_id, remaining)
        replies = yield from call_coordinators(session, requests, deadline=deadline)
        refused = _unknown_in(replies)
        if not refused:
            break
        missing = yield from confirm_missing(session, refused, deadline=deadline)
        for partition in missing:
            remaining.pop(partition, None)
        if refused <= missing:
            break
        yield from deadline.backoff(doing, describe_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    return frozenset(offsets) - frozenset(remaining)


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Outcome of `commit_all_offsets`.

    `missing` partitions no longer exist, and were left out. `behind` are the offsets that each
    group had before, read from its coordinator right behind the transaction's offsets.
    """

    missing: frozenset[TopicPartition]
    behind: Mapping[str, Mapping[TopicPartition, CommittedOffset]]


def commit_all_offsets(
    session: Session,
    transaction: Transaction,
    groups: Mapping[str, Mapping[TopicPartition, CommittedOffset]],
    *,
    may_be_gone: str | None,
    deadline: Deadline | None = None,
) -> Operation[OffsetsCommitted]:
    """Commit the offsets of several groups, sent at once, and right behind them OffsetFetch.

    A group's offsets that are too many for one record batch are sent in parts. The last part of
    each group is sent when the coordinators have accepted the other parts, so that OffsetFetch is
    behind all of them.

    Only partitions of the group `may_be_gone` may be left out, as `commit_source_offsets` says.
    Raises AbortableError if partitions of another group no longer exist.
    """
    deadline = deadline or session.deadline()
    parts = [_offsets_requests(transaction, group_id, groups[group_id]) for group_id in groups]
    first = [request for of_group in parts for request in of_group[:-1]]
    last = [of_group[-1] for of_group in parts]
    reads = [
        replace(committed_request(group_id, None, require_stable=False), behind=number)
        for number, group_id in enumerate(groups)
    ]
    transaction.begun = True
    # Two rounds: a read in the first could overtake a part that its coordinator refused for now.
    replies = yield from call_coordinators(session, first, deadline=deadline)
    replies += yield from call_coordinators(session, last + reads, deadline=deadline)
    requests = first + last
    behind = {
        group_id: fetched_offsets(reply)
        for group_id, reply in zip(groups, replies[len(requests) :], strict=True)
    }
    # A refusal as unknown is not final: the topic may be new to the broker, or deleted.
    missing: frozenset[TopicPartition] = frozenset()
    for group_id, offsets in groups.items():
        of_group = zip(requests, replies, strict=False)
        refused = _unknown_in(reply for request, reply in of_group if request.key == group_id)
        if not refused:
            continue
        del behind[group_id]  # of a broker that does not coordinate the group, too
        left = {p: offsets[p] for p in refused}
        gone = yield from commit_source_offsets(
            session, transaction, group_id, left, deadline=deadline
        )
        if gone and group_id != may_be_gone:
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(gone))
            doing = _committing(transaction, group_id)
            raise AbortableError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{doing} for {names}")
        missing |= gone
    return OffsetsCommitted(missing, behind)


def _codes_of_known(reply: Reply) -> tuple[int, ...]:
    codes = partition_codes(reply)
    return tuple(c for c in codes if c != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _unknown_in(replies: Iterable[Reply]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.name, p.partition_index)
        for reply in replies
        for topic in reply.message.topics
        for p in topic.partitions
        if p.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def _committing(transaction: Transaction, group_id: str) -> str:
    return f"committing offsets of group {group_id!r} in the transaction ({transaction.who})"


def _offsets_requests(
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> list[CoordinatorRequest]:
    """Return a TxnOffsetCommit for each part; parts of one transaction add up."""
    parts = offset_parts(group_id, offsets)
    return [_offsets_request(transaction, group_id, part) for part in parts]


def _offsets_request(
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> CoordinatorRequest:
    topic_type = _TXN_OFFSETS.request.TxnOffsetCommitRequestTopic
    message = _TXN_OFFSETS.request(
        transactional_id=transaction.transactional_id,
        group_id=group_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            topic_type(
                name=topic,
                partitions=[
                    topic_type.TxnOffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[TopicPartition(topic, number)].committed_offset,
                        committed_metadata=offsets[TopicPartition(topic, number)].metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(offsets).items()
        ],
    )
    return CoordinatorRequest(
        GROUP,
        group_id,
        message,
        _committing(transaction, group_id),
        _codes_of_known,
        TXN_OFFSET_COMMIT_VERSION_MAX_V1
        if transaction.version < 2
        else TXN_OFFSET_COMMIT_NAME_VERSION_MAX,
    )


def _end_request(transaction: Transaction, *, committed: bool) -> Message:
    return _END.request(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=committed,
    )


def _end_version_max(transaction: Transaction) -> int | None:
    return END_TXN_VERSION_MAX_V1 if transaction.version < 2 else None


@dataclass(slots=True)
class _CommitTries:
    """Reason why the outcome of EndTxn(commit) is unknown; empty while it is certain."""

    unknown: str = ""


def commit_transaction(
    session: Session, transaction: Transaction, *, batch_id: int = -1
) -> Operation[None]:
    """Commit by EndTxn(commit), asked again until the coordinator reports the outcome.

    Once a request may have been carried out, only success is taken for an answer: every other end
    is CommitStateUnknown, and no abort is ever sent. Raises CommitStateUnknown. Raises
    ProducerFenced, AbortableError or FatalError if the very first answers rule the commit out, and
    DeadlineExceeded if no request ever left.
    """
    tries = _CommitTries()
    try:
        yield from _ask_commit(session, transaction, tries)
    except TxnLogError as error:
        if not tries.unknown:
            raise
        raise CommitStateUnknown(
            f"EndTxn(commit) of batch {batch_id} was sent ({transaction.who}), and it is unknown "
            f"whether the coordinator carried it out ({tries.unknown}; then: {error.text}). The "
            "batch may or may not be committed. Restart the query: it asks the brokers, and skips "
            "or redoes the batch",
            transactional_id=transaction.transactional_id,
            batch_id=batch_id,
        ) from error


def _ask_commit(session: Session, transaction: Transaction, tries: _CommitTries) -> Operation[None]:
    deadline = session.deadline()
    key = (TRANSACTION, transaction.transactional_id)
    doing = f"committing the transaction ({transaction.who})"
    message = _end_request(transaction, committed=True)
    version_max = _end_version_max(transaction)
    while True:
        node = yield from find_coordinator(session, *key, deadline=deadline)
        outcome = yield from call(
            session, node, message, deadline=deadline, version_max=version_max
        )
        if isinstance(outcome, Unanswered):
            if outcome.sent:
                tries.unknown = outcome.reason
            refuse_if_final(outcome, doing)
            session.coordinators.pop(key, None)
            yield from deadline.backoff(doing, outcome.reason)
            continue
        if (yield from _commit_answered(outcome, tries, deadline, doing)):
            return
        if outcome.message.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            session.coordinators.pop(key, None)


def _commit_answered(
    reply: Reply, tries: _CommitTries, deadline: Deadline, doing: str
) -> Operation[bool]:
    """Return True if committed; False, after a wait, if the commit must be asked again. Else
    raise."""
    code = reply.message.error_code
    result = decide_end_commit(code, unknown_before=bool(tries.unknown))
    if result is EndTxnResult.COMMITTED:
        return True
    if result in (EndTxnResult.UNKNOWN, EndTxnResult.REFUSED):
        raise error_of(decide(ApiKey.END_TXN, code), code, doing, Subject(ApiKey.END_TXN))
    if result is EndTxnResult.RETRY_UNKNOWN:
        tries.unknown = f"answered {error_name(code)}"
    yield from deadline.backoff(doing, describe_code(code))
    return False


def abort_transaction(session: Session, transaction: Transaction) -> Operation[bool]:
    """Abort by EndTxn(abort), before any EndTxn(commit) was sent, for at most ABORT_TIMEOUT_MS.

    Return True if the coordinator reports that no transaction is open any more. Return False if it
    did not report so: the next InitProducerId ends the transaction, or its timeout does. Raises
    ProducerFenced: a leader reported a lost epoch, and the cause was another driver, or the
    timeout.
    """
    request = CoordinatorRequest(
        TRANSACTION,
        transaction.transactional_id,
        _end_request(transaction, committed=False),
        f"aborting the transaction ({transaction.who})",
        top_level_code,
        _end_version_max(transaction),
    )
    timeout_ms = min(ABORT_TIMEOUT_MS, session.config.operation_timeout_ms)
    try:
        yield from call_coordinator(session, request, deadline=session.deadline(timeout_ms))
    except AbortableError as error:
        nothing_open = {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        if transaction.version < 2:
            nothing_open.add(ErrorCode.INVALID_TXN_STATE)
        return error.code in nothing_open
    except ProducerFenced:
        raise
    except TxnLogError:
        # The caller has an error to report already. The next InitProducerId aborts, or the timeout.
        return False
    return True
