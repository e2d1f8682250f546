"""The loops that every operation is made of: ask a broker, ask a coordinator until it knows.

`call` sends one request and returns its outcome. `call_coordinator` finds the coordinator, asks,
and follows the table of `retry` until the answer is final or the deadline has passed. The error of
a refusal names its subject, which is read from the request and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from txnlog_kafka.errors import BrokerError, RemoteProtocolError, SecurityRefused
from txnlog_kafka.operations.effects import (
    ANOTHER_NODE,
    ANY_NODE,
    Call,
    Calls,
    Operation,
    Receive,
    Reply,
    Send,
    Ticket,
    Unanswered,
)
from txnlog_kafka.operations.retry import (
    Action,
    Subject,
    decide_all,
    describe_code,
    error_of,
    why_again,
)
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.messages import APIS, ApiKey, Message, api_of

GROUP = 0
"""FindCoordinator's key type for a group."""
TRANSACTION = 1
"""FindCoordinator's key type for a transactional id."""
MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"
LOOKUP_TIMEOUT_MS = 10_000
"""Timeout of a question that any broker can answer; another broker is then asked."""
BROKER = 4
"""DescribeConfigs' resource type for a broker."""
CONFIG_TIMEOUT_MS = 2_000
"""Timeout of the one try. The caller has an error to report, and wants an answer soon."""

_DESCRIBE = APIS[ApiKey.DESCRIBE_CONFIGS]


def call_all(calls: tuple[Call, ...]) -> Operation[tuple[Reply | Unanswered, ...]]:
    """Send several requests at once; return their outcomes in the same order."""
    outcomes: tuple[Reply | Unanswered, ...] = yield Calls(calls)
    check(len(outcomes) == len(calls), "the host answers every call")
    return outcomes


def send(request: Call) -> Operation[Ticket]:
    """Send one request; `receive` waits for its outcome."""
    ticket: Ticket = yield Send(request)
    return ticket


def receive(ticket: Ticket) -> Operation[Reply | Unanswered]:
    """Wait for the outcome of this request."""
    received: tuple[Ticket, Reply | Unanswered] = yield Receive(frozenset({ticket}))
    return received[1]


def call(request: Call) -> Operation[Reply | Unanswered]:
    """Send one request and wait for its outcome."""
    (outcome,) = yield from call_all((request,))
    return outcome


def refuse_if_final(outcome: Unanswered, doing: str) -> None:
    """Raise RemoteProtocolError for an outcome that asking again cannot change."""
    if not outcome.retriable:
        kind = SecurityRefused if outcome.is_security else RemoteProtocolError
        raise kind(f"{doing}: {outcome.reason}")


def call_any(message: Message, *, doing: str, deadline: Deadline) -> Operation[Reply]:
    """Ask any live broker until one answers; after a failure, ask another broker than the last.

    Raises DeadlineExceeded, RemoteProtocolError.
    """
    session = deadline.session
    while True:
        timeout_ms = min(deadline.call_ms, LOOKUP_TIMEOUT_MS)
        node = ANOTHER_NODE if session.asks_another else ANY_NODE
        outcome = yield from call(Call(node, message, timeout_ms))
        if isinstance(outcome, Reply):
            session.asks_another = False
            return outcome
        refuse_if_final(outcome, doing)
        yield from deadline.backoff(doing, outcome.reason)


@dataclass(frozen=True, slots=True)
class CoordinatorRequest:
    """Request to the broker that coordinates `key`.

    `codes` returns every error code of an answer; `doing` is the part of a sentence for error
    messages. `behind` is the index, among the requests, of another request with the same key. The
    broker handles the requests of a connection in their order, so it handles this request after
    that one. If that request is asked again, this request is asked again with it.
    """

    key_type: int
    key: str
    message: Message
    doing: str
    codes: Callable[[Reply], Iterable[int]]
    version_max: int | None = None
    behind: int | None = None

    @property
    def api_key(self) -> ApiKey:
        """Kind of the request."""
        return api_of(self.message).key


def find_coordinator(
    session: Session, key_type: int, key: str, *, deadline: Deadline
) -> Operation[int]:
    """Return the node that coordinates a group or a transactional id; cached until it is wrong."""
    known = session.coordinators.get((key_type, key))
    if known is not None:
        return known
    is_group = key_type == GROUP
    doing = f"finding the coordinator of {'group' if is_group else 'transactional id'} {key!r}"
    subject = Subject(
        ApiKey.FIND_COORDINATOR,
        group_id=key if is_group else "",
        transactional_id="" if is_group else key,
    )
    request = APIS[ApiKey.FIND_COORDINATOR].request
    message = request(key=key, key_type=key_type, coordinator_keys=[key])
    while True:
        reply = yield from call_any(message, doing=doing, deadline=deadline)
        answer = _found(reply, doing)
        again = why_again(answer.error_code, doing, subject)
        if again is None:
            break
        yield from deadline.backoff(doing, again)
    nodes = {**session.cluster.nodes, answer.node_id: (answer.host, answer.port)}
    session.cluster = replace(session.cluster, nodes=nodes)
    session.remember_coordinator(key_type, key, answer.node_id)
    return int(answer.node_id)


def _found(reply: Reply, doing: str) -> Message:
    if reply.version < 4:
        return reply.message
    if len(reply.message.coordinators) != 1:
        raise RemoteProtocolError(f"{doing}: {len(reply.message.coordinators)} answers for one key")
    return reply.message.coordinators[0]


def call_coordinator(
    session: Session, request: CoordinatorRequest, *, deadline: Deadline | None = None
) -> Operation[Reply]:
    """Ask the coordinator until the answer is final.

    Raises the error that `retry.error_of` returns for a refusal, DeadlineExceeded,
    RemoteProtocolError.
    """
    (answer,) = yield from call_coordinators(session, [request], deadline=deadline)
    return answer


def call_coordinators(
    session: Session, requests: Sequence[CoordinatorRequest], *, deadline: Deadline | None = None
) -> Operation[list[Reply]]:
    """Send several requests at once, each to its key's coordinator; return answers in the same
    order.

    Each request is asked until its answer is final. Raises what `call_coordinator` raises for any
    of them.
    """
    deadline = deadline or session.deadline()
    answers: dict[int, Reply] = {}
    while len(answers) < len(requests):
        # Ask what has no final answer yet, all at once.
        asked = [i for i in range(len(requests)) if i not in answers]
        calls = []
        for i in asked:
            key = requests[i].key_type, requests[i].key
            node = yield from find_coordinator(session, *key, deadline=deadline)
            message, version_max = requests[i].message, requests[i].version_max
            calls.append(Call(node, message, deadline.call_ms, version_max))
        outcomes = yield from call_all(tuple(calls))
        # Sort the outcomes. A request behind another counts only if that one has its final answer
        # and both went to one broker: else it may have been carried out first.
        waits, is_soon = [], True
        nodes = {i: each.node for i, each in zip(asked, calls, strict=True)}
        for i, outcome in zip(asked, outcomes, strict=True):
            first = requests[i].behind
            if first is not None and (first not in answers or nodes[first] != nodes[i]):
                continue
            reason = yield from _not_yet(session, requests[i], outcome)
            if reason is not None:
                waits.append((requests[i].doing, reason))
                is_soon = is_soon and _is_soon_over(requests[i], outcome)
            elif isinstance(outcome, Reply):
                answers[i] = outcome
        for i in asked:
            behind = requests[i].behind
            if behind is not None and i not in answers:
                answers.pop(behind, None)  # another broker may answer the next one
        if waits:
            yield from deadline.backoff(*waits[0], is_soon=is_soon)
    return [answers[i] for i in range(len(requests))]


def _is_soon_over(request: CoordinatorRequest, outcome: Reply | Unanswered) -> bool:
    """True if another request for the same transaction, or writing its markers, is in the way."""
    codes = request.codes(outcome) if isinstance(outcome, Reply) else ()
    return ErrorCode.CONCURRENT_TRANSACTIONS in codes


def _not_yet(
    session: Session, request: CoordinatorRequest, outcome: Reply | Unanswered
) -> Operation[str | None]:
    """Return why a request must be sent again, None if its answer is final. Raises a refusal."""
    if isinstance(outcome, Unanswered):
        refuse_if_final(outcome, request.doing)
        forget_coordinator(session, request)
        return outcome.reason
    action, code = decide_all(request.api_key, request.codes(outcome))
    if action is Action.DONE:
        return None
    if action not in (Action.RETRY, Action.REFRESH):
        raise (yield from _refusal(session, request, outcome, action, code))
    if action is Action.REFRESH:
        forget_coordinator(session, request)
    return describe_code(code)


def _refusal(
    session: Session, request: CoordinatorRequest, reply: Reply, action: Action, code: int
) -> Operation[BrokerError]:
    """Return the error of a final answer, with the names and the values that it is about."""
    doing = request.doing
    timeout_ms = getattr(request.message, "transaction_timeout_ms", None)
    if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT and timeout_ms is not None:
        limit = yield from fetch_broker_config(session, MAX_TIMEOUT_CONFIG)
        doing += f" with transaction.timeout.ms={timeout_ms}"
        doing += f" on a broker with {MAX_TIMEOUT_CONFIG}={limit}" if limit is not None else ""
    return error_of(action, code, doing, _subject(request, reply, code))


def fetch_broker_config(session: Session, name: str) -> Operation[str | None]:
    """Return a broker's value of `name`; None if the broker does not tell it. Tries once, never
    raises.

    Often the user is not allowed to see the value: that takes DESCRIBE_CONFIGS on the cluster,
    which no query needs. Any broker can answer for a limit that all brokers share: the client asks
    a known coordinator, because it has answered before.
    """
    node = next(iter(session.coordinators.values()), min(session.cluster.nodes, default=None))
    if node is None:
        return None
    resource = _DESCRIBE.request.DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(node), configuration_keys=[name]
    )
    message = _DESCRIBE.request(resources=[resource])
    timeout_ms = min(CONFIG_TIMEOUT_MS, session.config.request_timeout_ms)
    outcome = yield from call(Call(node, message, timeout_ms))
    if isinstance(outcome, Unanswered):
        return None
    for result in outcome.message.results or ():
        for config in result.configs or ():
            if result.error_code == ErrorCode.NONE and config.name == name:
                return None if config.value is None else str(config.value)
    return None


def _subject(request: CoordinatorRequest, reply: Reply, code: int) -> Subject:
    """Return what the request was about: some requests name a group and a transactional id, and
    `key` is only the name that routes the request."""
    message = request.message
    of_group = request.key_type == GROUP
    return Subject(
        request.api_key,
        topics=refused_topics(message, reply, code),
        group_id=request.key if of_group else getattr(message, "group_id", ""),
        transactional_id=getattr(message, "transactional_id", "") if of_group else request.key,
    )


def topic_names(asked: Message, reply: Reply) -> list[tuple[str, Message]]:
    """Return the topics of an answer to OffsetCommit or TxnOffsetCommit, each with its name.

    From TxnOffsetCommit v6 on an answer names topics by their ids only (KIP-1319).
    """
    by_id = {t.topic_id: t.name for t in asked.topics}
    return [(t.name or by_id.get(t.topic_id, ""), t) for t in reply.message.topics]


def refused_topics(asked: Message, reply: Reply, code: int) -> tuple[str, ...]:
    """Return the topics, sorted, for which a coordinator's answer has this code; () for none."""
    answer = reply.message
    match ApiKey(answer.API_KEY):
        case ApiKey.OFFSET_COMMIT | ApiKey.TXN_OFFSET_COMMIT:
            named = topic_names(asked, reply)
            found = [(name, p.error_code) for name, t in named for p in t.partitions]
        case ApiKey.OFFSET_FETCH:
            owners = answer.groups if reply.version >= 8 else [answer]
            found = [(t.name, p.error_code) for o in owners for t in o.topics for p in t.partitions]
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            found = [
                (t.name, p.partition_error_code)
                for t in answer.results_by_topic_v3_and_below
                for p in t.results_by_partition
            ]
        case _:
            found = []
    return tuple(sorted({name for name, each in found if each == code}))


def forget_coordinator(session: Session, request: CoordinatorRequest) -> None:
    """Find the coordinator again before the next request for its key."""
    session.coordinators.pop((request.key_type, request.key), None)


def top_level_code(reply: Reply) -> tuple[int, ...]:
    """Return the codes of an answer that has a single code."""
    return (reply.message.error_code,)


def partition_codes(reply: Reply) -> tuple[int, ...]:
    """Return the codes of an answer with `topics[].partitions[].error_code`."""
    return tuple(p.error_code for t in reply.message.topics for p in t.partitions)
