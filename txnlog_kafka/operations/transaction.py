"""Steps of one transaction of one producer: initialise, add, commit offsets, end.

Theory of operation. Each transaction begins with InitProducerId and so has an epoch of its own on
both transaction versions: a late request of one transaction cannot hit the next. On version 1
partitions and groups are added by requests of their own; on version 2 (KIP-890) Produce v12 and
TxnOffsetCommit v5 add implicitly. `transaction_offsets` has the group's offsets.

EndTxn(commit) is a case of its own: see `commit_transaction`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from txnlog_kafka.errors import (
    AbortableError,
    CommitStateUnknown,
    ProducerFenced,
    RemoteProtocolError,
    TxnLogError,
)
from txnlog_kafka.operations.calls import (
    TRANSACTION,
    CoordinatorRequest,
    call,
    call_coordinator,
    call_coordinators,
    find_coordinator,
    refuse_if_final,
    top_level_code,
)
from txnlog_kafka.operations.effects import Call, Operation, Reply, Unanswered
from txnlog_kafka.operations.metadata import api_versions_request
from txnlog_kafka.operations.offsets import by_topic
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
END_TXN_VERSION_MAX_V1 = 4
PRODUCE_VERSION_MAX_V1 = 11
ABORT_TIMEOUT_MS = 10_000

_INIT = APIS[ApiKey.INIT_PRODUCER_ID]
_ADD_PARTITIONS = APIS[ApiKey.ADD_PARTITIONS_TO_TXN]
_ADD_OFFSETS = APIS[ApiKey.ADD_OFFSETS_TO_TXN]
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
        outcome = yield from call(Call(node, message, deadline.call_ms, version_max))
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
    """Return True if committed; False, after a wait, if it must be asked again. Else raise."""
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
