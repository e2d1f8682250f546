"""Decisions about error codes, and the texts that explain them to a person: pure tables.

Rules for this file: nothing is sent and nothing is waited for here. Sources: the handlers of
Kafka's `TransactionManager` and `Sender` (Java client 4.x) and KIP-1050's classes of errors. There
are two deliberate differences. INVALID_PRODUCER_ID_MAPPING is abortable: if a producer id expired
while a query was idle, the next InitProducerId assigns a new id, and also shows whether another
driver took over. EndTxn(commit) has a decision of its own, because its error codes may hide an
outcome.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnlog_kafka.errors import (
    BROKERS,
    AbortableError,
    BrokerError,
    FatalError,
    ProducerFenced,
    RecordRefused,
    RetriableError,
    UnknownTopic,
    do_this,
)
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode, error_name
from txnlog_kafka.wire.messages import APIS, ApiKey


class Action(enum.IntEnum):
    """Next step of the caller, from harmless to final: of several actions the largest counts."""

    DONE = 0
    RETRY = 1
    """Ask the same broker again after a wait."""
    REFRESH = 2
    """Find the right broker again, then ask after a wait."""
    ABORT = 3
    """This transaction is lost; a new one may work."""
    FATAL = 4
    """Asking again cannot help."""
    FENCED = 5
    """A newer producer epoch exists: stop."""


_E = ErrorCode
_A = Action

_COORDINATOR: dict[int, Action] = {
    _E.COORDINATOR_NOT_AVAILABLE: _A.REFRESH,
    _E.NOT_COORDINATOR: _A.REFRESH,
    _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
    _E.REQUEST_TIMED_OUT: _A.RETRY,
    _E.CONCURRENT_TRANSACTIONS: _A.RETRY,
}

_TRANSACTION: dict[int, Action] = {
    **_COORDINATOR,
    _E.PRODUCER_FENCED: _A.FENCED,
    _E.INVALID_PRODUCER_EPOCH: _A.FENCED,
    _E.INVALID_PRODUCER_ID_MAPPING: _A.ABORT,
    _E.UNKNOWN_PRODUCER_ID: _A.ABORT,
    _E.TRANSACTION_ABORTABLE: _A.ABORT,
    _E.INVALID_TXN_STATE: _A.ABORT,
    _E.UNKNOWN_TOPIC_OR_PARTITION: _A.RETRY,
}

ACTIONS: Mapping[ApiKey, Mapping[int, Action]] = {
    ApiKey.FIND_COORDINATOR: {
        _E.COORDINATOR_NOT_AVAILABLE: _A.RETRY,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
    },
    ApiKey.INIT_PRODUCER_ID: {
        **_TRANSACTION,
        _E.INVALID_TXN_STATE: _A.FATAL,
        _E.INVALID_PRODUCER_ID_MAPPING: _A.FATAL,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        **_TRANSACTION,
        _E.OPERATION_NOT_ATTEMPTED: _A.RETRY,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: _TRANSACTION,
    ApiKey.TXN_OFFSET_COMMIT: {
        **_TRANSACTION,
        _E.UNKNOWN_MEMBER_ID: _A.FATAL,
        _E.ILLEGAL_GENERATION: _A.FATAL,
        _E.FENCED_INSTANCE_ID: _A.FATAL,
    },
    ApiKey.END_TXN: _TRANSACTION,
    ApiKey.PRODUCE: {
        _E.DUPLICATE_SEQUENCE_NUMBER: _A.DONE,
        _E.CONCURRENT_TRANSACTIONS: _A.RETRY,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
        _E.COORDINATOR_NOT_AVAILABLE: _A.RETRY,
        _E.NOT_COORDINATOR: _A.RETRY,
        _E.NOT_ENOUGH_REPLICAS: _A.RETRY,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _A.RETRY,
        _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _A.ABORT,
        _E.UNKNOWN_PRODUCER_ID: _A.ABORT,
        _E.INVALID_PRODUCER_EPOCH: _A.ABORT,
        _E.INVALID_PRODUCER_ID_MAPPING: _A.ABORT,
        _E.INVALID_TXN_STATE: _A.ABORT,
        _E.TRANSACTION_ABORTABLE: _A.ABORT,
        _E.UNKNOWN_SERVER_ERROR: _A.ABORT,
        _E.PRODUCER_FENCED: _A.FENCED,
    },
    ApiKey.OFFSET_FETCH: {
        **_COORDINATOR,
        _E.UNSTABLE_OFFSET_COMMIT: _A.RETRY,
        _E.GROUP_ID_NOT_FOUND: _A.DONE,
    },
    ApiKey.OFFSET_COMMIT: {**_COORDINATOR, _E.UNKNOWN_TOPIC_OR_PARTITION: _A.RETRY},
    ApiKey.OFFSET_DELETE: _COORDINATOR,
    ApiKey.DELETE_GROUPS: _COORDINATOR,
    ApiKey.DESCRIBE_GROUPS: {**_COORDINATOR, _E.GROUP_ID_NOT_FOUND: _A.DONE},
    ApiKey.LIST_GROUPS: _COORDINATOR,
    ApiKey.LIST_TRANSACTIONS: _COORDINATOR,
    ApiKey.DESCRIBE_TRANSACTIONS: _COORDINATOR,
}
"""Action by request and error code. Other codes: REFRESH if retriable, else FATAL."""

RECORD_REFUSALS = frozenset(
    {
        _E.MESSAGE_TOO_LARGE,
        _E.RECORD_LIST_TOO_LARGE,
        _E.INVALID_RECORD,
        _E.INVALID_TIMESTAMP,
        _E.CORRUPT_MESSAGE,
        _E.UNSUPPORTED_COMPRESSION_TYPE,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        _E.POLICY_VIOLATION,
    }
)


SIZE_REFUSALS = frozenset({_E.MESSAGE_TOO_LARGE, _E.RECORD_LIST_TOO_LARGE})
"""Refusals after which a smaller batch may be accepted."""


def decide(api_key: ApiKey, code: int) -> Action:
    """Return the action for one error code in the answer to `api_key`."""
    if code == ErrorCode.NONE:
        return Action.DONE
    action = ACTIONS.get(api_key, {}).get(code)
    if action is not None:
        return action
    return Action.REFRESH if code in RETRIABLE else Action.FATAL


def decide_all(api_key: ApiKey, codes: Iterable[int]) -> tuple[Action, int]:
    """Return the gravest action over several codes, and the code that asks for it."""
    gravest, reason = Action.DONE, int(ErrorCode.NONE)
    for code in codes:
        action = decide(api_key, code)
        if action > gravest:
            gravest, reason = action, code
    return gravest, reason


_SHOW_TRANSACTIONS = do_this(
    f"python -m broker_sim transactions list {BROKERS} --state Ongoing", "to see open transactions"
)

_HINTS: dict[int, str] = {
    _E.INVALID_TRANSACTION_TIMEOUT: (
        "set kafka.transaction.timeout.ms to at most the broker's transaction.max.timeout.ms, or "
        "raise that"
    ),
    _E.MESSAGE_TOO_LARGE: (
        "the topic's max.message.bytes is smaller: raise it to at least this size, or leave the "
        "record out"
    ),
    _E.RECORD_LIST_TOO_LARGE: (
        "the topic's segment.bytes is smaller: raise it to at least this size, or leave the record "
        "out"
    ),
    _E.INVALID_TXN_STATE: (
        "the transaction is not open any more: it may have run into transaction.timeout.ms, and "
        "the coordinator aborted it"
    ),
    _E.OFFSET_METADATA_TOO_LARGE: "raise the broker's offset.metadata.max.bytes",
}
"""Advice about a refusal."""

_TRANSACTION_APIS = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.PRODUCE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
_LOWERED_HINT = (
    "the cluster's feature transaction.version was lowered below the version that this "
    "transactional id has used, and Apache Kafka cannot store that: raise it again, restart the "
    "brokers one by one, and start the query"
    + do_this(f"kafka-features.sh {BROKERS} upgrade --feature transaction.version=2")
)

_OFFSET_COMMITS = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT})
_OFFSETS_TOO_LARGE = frozenset(
    {
        _E.UNKNOWN_SERVER_ERROR,
        _E.INVALID_COMMIT_OFFSET_SIZE,
        _E.MESSAGE_TOO_LARGE,
        _E.RECORD_LIST_TOO_LARGE,
    }
)
"""A coordinator could not append the offsets: Apache Kafka 4 answers the first code, 3 the second.
"""
_OFFSETS_HINT = (
    "the broker could not append these offsets to __consumer_offsets, and its log says why; one "
    "reason is their size: raise message.max.bytes of the brokers, and max.message.bytes of the "
    "topic __consumer_offsets if it has its own, to 1048588 at least, or remove group.id"
)

_WAIT_HINTS: dict[int, str] = {
    _E.KAFKA_STORAGE_ERROR: (
        "the broker's disk is full, or its log directory is offline: see the broker's log, free "
        "space or mend the disk, and restart the broker if it does not go on by itself"
    ),
    _E.UNSTABLE_OFFSET_COMMIT: (
        "an open transaction, maybe of another transactional id, holds offsets of this group "
        "pending until it ends, at the latest after its own transaction.timeout.ms"
        f"{_SHOW_TRANSACTIONS}"
    ),
    _E.CONCURRENT_TRANSACTIONS: (
        "the last transaction of this transactional id is still being ended, which waits for the "
        f"leader of each of its partitions{_SHOW_TRANSACTIONS}"
    ),
}
"""Advice for a wait that ran out on an error that usually passes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Request and the resources that it names, so that its refusal can name them too.

    `topics` are the refused topics, as far as the answer names them.
    """

    api_key: ApiKey
    topics: tuple[str, ...] = ()
    group_id: str = ""
    transactional_id: str = ""


OPERATIONS: Mapping[int, Mapping[ApiKey, str]] = {
    _E.TOPIC_AUTHORIZATION_FAILED: {
        ApiKey.METADATA: "DESCRIBE",
        ApiKey.LIST_OFFSETS: "DESCRIBE",
        ApiKey.OFFSET_FETCH: "DESCRIBE",
        ApiKey.FETCH: "READ",
        ApiKey.OFFSET_COMMIT: "READ",
        ApiKey.TXN_OFFSET_COMMIT: "READ",
        ApiKey.PRODUCE: "WRITE",
        ApiKey.ADD_PARTITIONS_TO_TXN: "WRITE",
        ApiKey.CREATE_TOPICS: "CREATE",
        ApiKey.DELETE_TOPICS: "DELETE",
    },
    _E.GROUP_AUTHORIZATION_FAILED: {
        ApiKey.FIND_COORDINATOR: "DESCRIBE (READ includes it)",
        ApiKey.OFFSET_FETCH: "DESCRIBE (READ includes it)",
        ApiKey.DESCRIBE_GROUPS: "DESCRIBE",
        ApiKey.OFFSET_COMMIT: "READ",
        ApiKey.TXN_OFFSET_COMMIT: "READ",
        ApiKey.ADD_OFFSETS_TO_TXN: "READ",
        ApiKey.DELETE_GROUPS: "DELETE",
    },
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: {
        ApiKey.FIND_COORDINATOR: "DESCRIBE (WRITE includes it)",
        ApiKey.DESCRIBE_TRANSACTIONS: "DESCRIBE (WRITE includes it)",
        ApiKey.INIT_PRODUCER_ID: "WRITE",
        ApiKey.ADD_PARTITIONS_TO_TXN: "WRITE",
        ApiKey.ADD_OFFSETS_TO_TXN: "WRITE",
        ApiKey.PRODUCE: "WRITE",
        ApiKey.TXN_OFFSET_COMMIT: "WRITE",
        ApiKey.END_TXN: "WRITE",
    },
    _E.CLUSTER_AUTHORIZATION_FAILED: {
        ApiKey.INIT_PRODUCER_ID: "IDEMPOTENT_WRITE",
        ApiKey.PRODUCE: "IDEMPOTENT_WRITE",
        ApiKey.CREATE_TOPICS: "CREATE",
        ApiKey.LIST_GROUPS: "DESCRIBE",
        ApiKey.DESCRIBE_CONFIGS: "DESCRIBE_CONFIGS",
    },
}
"""Operations, by code and request, that `KafkaApis` of Kafka 4 checks before it answers the code.

Kafka's authorizer takes READ, WRITE, DELETE and ALTER for DESCRIBE as well.
"""

NAMES_SHOWN_MAX = 5


def authorization_hint(code: int, subject: Subject | None) -> str | None:
    """Return the operation and the resource to grant; None for other than authorization codes."""
    operations = OPERATIONS.get(code)
    if operations is None:
        return None
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        resource = _named("topic", () if subject is None else subject.topics)
    elif code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        resource = _named("group", () if subject is None else (subject.group_id,))
    elif code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        resource = _named(
            "transactional id", () if subject is None else (subject.transactional_id,)
        )
    else:
        resource = "the cluster"
    if subject is None:
        return f"grant the needed operation on {resource} to this user"
    needed = f"the operation that {APIS[subject.api_key].name} needs"
    hint = f"grant {operations.get(subject.api_key, needed)} on {resource} to this user"
    if subject.api_key is ApiKey.METADATA:
        hint += "; if it does not exist yet, create it, or grant CREATE on it"
    return hint


def _named(kind: str, names: tuple[str, ...]) -> str:
    """Return such as "topics 'a', 'b'"; "the topic" if the name is not known."""
    names = tuple(name for name in names if name)
    if not names:
        return f"the {kind}"
    shown = ", ".join(repr(name) for name in names[:NAMES_SHOWN_MAX])
    if len(names) > NAMES_SHOWN_MAX:
        shown += f" and {len(names) - NAMES_SHOWN_MAX} others"
    return f"{kind}{'s' if len(names) > 1 else ''} {shown}"


FENCED_HINT = (
    "another driver initialised the same transactional id, or the transaction ran into its timeout "
    "and the coordinator aborted it. No record of this transaction is visible. Make sure that only "
    "one query uses the transactional id; if no other query uses it, raise transaction.timeout.ms"
)


def error_of(action: Action, code: int, doing: str, subject: Subject | None = None) -> BrokerError:
    """Return the exception for `doing`, refused with `code`; `subject` names the resource."""
    hint = authorization_hint(code, subject) or _HINTS.get(code)
    if code == _E.UNSUPPORTED_VERSION and subject and subject.api_key in _TRANSACTION_APIS:
        hint = _LOWERED_HINT
    if code in _OFFSETS_TOO_LARGE and subject and subject.api_key in _OFFSET_COMMITS:
        hint = _OFFSETS_HINT
    text = f"{doing} was refused" + (f" ({hint})" if hint else "")
    if action is Action.FENCED:
        return ProducerFenced(code, f"{doing} was refused: {FENCED_HINT}")
    if action is Action.ABORT:
        return AbortableError(code, text)
    if action in (Action.RETRY, Action.REFRESH):
        return RetriableError(code, text)
    if code in RECORD_REFUSALS:
        return RecordRefused(code, text)
    if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
        return UnknownTopic(code, text)
    return FatalError(code, text)


def why_again(code: int, doing: str, subject: Subject) -> str | None:
    """Return why a request must be sent again, None if it is done. Raises a refusal's error."""
    action = decide(subject.api_key, code)
    if action is Action.DONE:
        return None
    if action in (Action.RETRY, Action.REFRESH):
        return describe_code(code)
    raise error_of(action, code, doing, subject)


def describe_code(code: int) -> str:
    """Return a code for the text of a wait that ran out, with advice if there is any."""
    hint = _WAIT_HINTS.get(code)
    return f"{error_name(code)} ({int(code)})" + (f": {hint}" if hint else "")


class EndTxnResult(enum.Enum):
    """Meanings of an answer to EndTxn(commit)."""

    COMMITTED = "committed"
    RETRY = "this request did nothing; ask again"
    RETRY_UNKNOWN = "this request may have been carried out; ask again"
    REFUSED = "not committed, for ever"
    UNKNOWN = "may be committed, and asking again cannot tell"


_END_TXN_DID_NOTHING = frozenset({_E.COORDINATOR_LOAD_IN_PROGRESS, _E.CONCURRENT_TRANSACTIONS})
_END_TXN_DEFINITE = frozenset(
    {
        _E.PRODUCER_FENCED,
        _E.INVALID_PRODUCER_EPOCH,
        _E.INVALID_PRODUCER_ID_MAPPING,
        _E.INVALID_TXN_STATE,
        _E.TRANSACTION_ABORTABLE,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _E.CLUSTER_AUTHORIZATION_FAILED,
        _E.UNSUPPORTED_VERSION,
        _E.INVALID_REQUEST,
    }
)


def decide_end_commit(code: int, *, unknown_before: bool) -> EndTxnResult:
    """Return the meaning of an answer to EndTxn(commit), for both transaction versions.

    `unknown_before`: an earlier EndTxn(commit) of this transaction may have been carried out. The
    coordinator's checks run before its append, so their codes are definite for *this* request.
    They say nothing about an earlier request, whose commit may have been followed by another
    driver's InitProducerId. All other codes may come from the append of PREPARE_COMMIT itself
    (`TransactionStateManager.appendTransactionToLog` maps its errors to COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR and UNKNOWN_SERVER_ERROR), which may yet be replicated.
    """
    if code == ErrorCode.NONE:
        return EndTxnResult.COMMITTED
    if code in _END_TXN_DID_NOTHING:
        return EndTxnResult.RETRY
    if code in _END_TXN_DEFINITE:
        return EndTxnResult.UNKNOWN if unknown_before else EndTxnResult.REFUSED
    return EndTxnResult.RETRY_UNKNOWN
