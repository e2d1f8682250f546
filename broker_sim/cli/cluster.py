"""The commands' way to a cluster: one question, one answer, refusals as Kafka's error names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from broker_sim.cli.printing import write_error
from txnlog_kafka.errors import RemoteProtocolError
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import PLAINTEXT, Security
from txnlog_kafka.host.sign_of_life import SignOfLife
from txnlog_kafka.operations.calls import CoordinatorRequest, call_all, call_coordinator
from txnlog_kafka.operations.cluster_view import NO_LEADER
from txnlog_kafka.operations.effects import ANY_NODE, Call, Operation, Reply, Unanswered
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import Message, api_of
from txnlog_kafka.wire.topic_partition import TopicPartition

_E = ErrorCode

REMEDIES: Mapping[int, str] = {
    _E.TOPIC_ALREADY_EXISTS: "choose another --topic, or pass --if-not-exists",
    _E.UNKNOWN_TOPIC_OR_PARTITION: "see `topics list` and `topics describe` for what there is",
    _E.INVALID_TOPIC_EXCEPTION: "use letters, digits, '.', '_' and '-' in --topic",
    _E.INVALID_PARTITIONS: "give more --partitions than there are; a topic never shrinks",
    _E.INVALID_REPLICATION_FACTOR: "give a --replication-factor that the brokers suffice for",
    _E.INVALID_CONFIG: "correct --config NAME=VALUE",
    _E.GROUP_ID_NOT_FOUND: "see `groups list` for what there is",
    _E.NON_EMPTY_GROUP: "stop the group's members first",
    _E.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that subscribe to the topic first",
    _E.UNKNOWN_MEMBER_ID: "stop the group's members first",
    _E.TRANSACTIONAL_ID_NOT_FOUND: "see `transactions list` for what there is",
    _E.INVALID_PRODUCER_EPOCH: "see `transactions describe-producers` for the present epoch",
    _E.TRANSACTION_COORDINATOR_FENCED: "give the --coordinator-epoch of describe-producers",
    _E.TOPIC_AUTHORIZATION_FAILED: "grant the operation on the topic to this user: to describe its "
    "configurations it is DESCRIBE_CONFIGS",
    _E.TOPIC_DELETION_DISABLED: "the broker runs with delete.topic.enable=false",
}

READ_AGAIN_S = 0.1
"""Between two tries of a question whose broker has gone."""
SILENCE_S = 3.0
"""After so long without any broker's answer the user is informed."""

MAY_BE_DONE = "it may have been done all the same: look before you repeat it"

NOT_READY = frozenset(
    {_E.COORDINATOR_LOAD_IN_PROGRESS, _E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR}
)
"""A coordinator says these for a moment: it is asked again."""


class Refused(Exception):
    """The broker said no, or nothing; the text says what was asked, of what, and what to do."""


class NoLeader(Refused):
    """The partition has none now; others may be about to elect one."""


def refusal(doing: str, code: int, message: str | None = None) -> str:
    """One line about an error code: what was done, Kafka's name, its text, the remedy."""
    parts = [f"{doing}: {error_name(code)}"]
    if message:
        parts.append(f"({message})")
    if code in REMEDIES:
        parts.append(f"- {REMEDIES[code]}")
    return " ".join(parts)


def check_code(doing: str, code: int, message: str | None = None) -> None:
    """Raise Refused for any code but NONE."""
    if code != ErrorCode.NONE:
        raise Refused(refusal(doing, code, message))


class Cluster:
    """A client and what it knows. A context manager."""

    def __init__(
        self,
        bootstrap_servers: str,
        timeout_ms: int,
        security: Security = PLAINTEXT,
        sign: SignOfLife | None = None,
    ) -> None:
        """Raises OptionError for an address that cannot be, or a certificate that cannot be used.
        Nothing is connected yet."""
        config = SessionConfig(
            request_timeout_ms=timeout_ms,
            operation_timeout_ms=timeout_ms,
            bootstrap_timeout_ms=timeout_ms,
        )
        self.client = Client(
            bootstrap_servers, client_id="broker_sim-cli", config=config, security=security
        )
        self.sign = sign or SignOfLife("")
        """A command of many requests says there how far it is."""
        self._servers = bootstrap_servers
        self._timeout_ms = timeout_ms
        self._silence = threading.Timer(SILENCE_S, self._tell_of_silence)
        self._silence.daemon = True

    def __enter__(self) -> Cluster:
        self._silence.start()
        return self

    def _tell_of_silence(self) -> None:
        """A person at a terminal should not wonder for the whole timeout what is going on."""
        if not self.client.session.cluster.nodes:
            total_s = self._timeout_ms / 1000
            write_error(f"no answer yet from {self._servers}, trying for {total_s:g} s in all")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._silence.cancel()
        self.client.close()

    def ask(self, message: Message, doing: str, *, node: int = ANY_NODE) -> Message:
        """One request to one broker, once: it may change something. Raises Refused without an
        answer."""
        outcome = self.client.run(_ask(message, node, self._timeout_ms))
        if isinstance(outcome, Unanswered):
            refused = _unanswered(message, doing, outcome)
            raise Refused(f"{refused}; {MAY_BE_DONE}") if outcome.sent else refused
        return outcome.message

    def read(
        self, message: Message, doing: str, node: int | Callable[[], int] = ANY_NODE
    ) -> Message:
        """A request that changes nothing: asked again when its broker has gone; `node` may say of
        which one by then, or that there is no leader yet. Raises Refused when the time is over."""
        until_s = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                asked = node() if callable(node) else node
                outcome = self.client.run(_ask(message, asked, self._timeout_ms))
                if isinstance(outcome, Reply):
                    return outcome.message
                refused = _unanswered(message, doing, outcome)
            except NoLeader as error:
                refused = error
            if time.monotonic() > until_s:
                raise refused
            threading.Event().wait(READ_AGAIN_S)
            self.load_topics(self.topics())

    def ask_all(self, message: Message, doing: str) -> list[Message]:
        """The same question, which changes nothing, to every broker."""
        self.load_topics([])
        return [self.read(message, doing, node) for node in self.nodes]

    def ask_coordinator(
        self,
        message: Message,
        doing: str,
        *,
        key_type: int,
        key: str,
        codes: Callable[[Message], Iterable[int]],
    ) -> Message:
        """The question to the broker that coordinates a group, until that one can answer.

        `codes` are the error codes of an answer. Raises Refused, TxnLogError without an answer.
        """

        def waiting(reply: Reply) -> tuple[int, ...]:
            return tuple(code for code in codes(reply.message) if code in NOT_READY)

        request = CoordinatorRequest(key_type, key, message, doing, waiting)
        answer = self.client.run(call_coordinator(self.client.session, request))
        return answer.message

    @property
    def nodes(self) -> list[int]:
        """The ids of the brokers."""
        return sorted(self.client.session.cluster.nodes)

    def load_topics(self, topics: Iterable[str] | None) -> dict[str, int]:
        """Ask for the metadata of topics, None for all; error codes of those that have one."""
        session = self.client.session
        return self.client.run(refresh_metadata(session, topics))

    def topics(self) -> list[str]:
        """All topics that are known by now."""
        return sorted(self.client.session.cluster.topics)

    def partitions(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic that was asked for. Raises Refused for an unknown one."""
        known = self.client.session.cluster.partitions(topic)
        if not known:
            errors = self.load_topics([topic])
            known = self.client.session.cluster.partitions(topic)
            code = errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not known:
                raise Refused(refusal(f"topic {topic!r}", code))
        return known

    def leader(self, partition: TopicPartition) -> int:
        """The leader of a partition. Raises NoLeader, or Refused where there is no such one."""
        topic, number = partition
        if number not in self.partitions(topic):
            count = len(self.partitions(topic))
            raise Refused(f"topic {topic!r} has {count} partitions, no --partition {number}")
        node = self.client.session.cluster.leader(partition)
        if node == NO_LEADER:
            raise NoLeader(f"partition {number} of topic {topic!r} has no leader now")
        return node


def _unanswered(message: Message, doing: str, outcome: Unanswered) -> Refused:
    return Refused(f"{doing}: no answer to {api_of(message).name}: {outcome.reason}")


def _ask(message: Message, node: int, timeout_ms: int) -> Operation[Reply | Unanswered]:
    (outcome,) = yield from call_all((Call(node, message, timeout_ms),))
    if isinstance(outcome, Unanswered) and not outcome.retriable:
        raise RemoteProtocolError(outcome.reason)
    return outcome
