"""Access of the commands to a cluster: operations of the client, refusals as Kafka's error names.

Questions are asked again by the rules of `txnlog_kafka.operations`; changes are sent once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TypeVar

from broker_sim.cli.printing import write_error
from txnlog_kafka.errors import BrokerError
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import PLAINTEXT, Security
from txnlog_kafka.host.sign_of_life import SignOfLife
from txnlog_kafka.operations.calls import call, call_any, refuse_if_final
from txnlog_kafka.operations.effects import ANY_NODE, Call, Operation, Reply
from txnlog_kafka.operations.metadata import refresh_metadata, require_leaders
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import Message, api_of
from txnlog_kafka.wire.topic_partition import TopicPartition

_E = ErrorCode
T = TypeVar("T")

REMEDIES: Mapping[int, str] = {
    _E.TOPIC_ALREADY_EXISTS: "choose another --topic, or pass --if-not-exists",
    _E.UNKNOWN_TOPIC_OR_PARTITION: "`topics list` and `topics describe` show the existing names",
    _E.INVALID_TOPIC_EXCEPTION: "use letters, digits, '.', '_' and '-' in --topic",
    _E.INVALID_PARTITIONS: "give more --partitions than there are; a topic never shrinks",
    _E.INVALID_REPLICATION_FACTOR: "give a --replication-factor of at most the number of brokers",
    _E.INVALID_CONFIG: "correct --config NAME=VALUE",
    _E.GROUP_ID_NOT_FOUND: "`groups list` shows the existing groups",
    _E.NON_EMPTY_GROUP: "stop the group's members first",
    _E.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that subscribe to the topic first",
    _E.UNKNOWN_MEMBER_ID: "stop the group's members first",
    _E.TRANSACTIONAL_ID_NOT_FOUND: "`transactions list` shows the existing ids",
    _E.INVALID_PRODUCER_EPOCH: "`transactions describe-producers` shows the present epoch",
    _E.TRANSACTION_COORDINATOR_FENCED: "give the --coordinator-epoch of describe-producers",
    _E.TOPIC_AUTHORIZATION_FAILED: "grant the operation on the topic to this user: describing its "
    "configurations needs DESCRIBE_CONFIGS",
    _E.TOPIC_DELETION_DISABLED: "the broker runs with delete.topic.enable=false",
}
"""Advice in the words of the commands' options."""

SILENCE_S = 3.0
"""Time without any broker's answer after which the user is informed."""

MAY_BE_DONE = "the broker may have done it all the same: check before you repeat the command"


class Refused(Exception):
    """Refusal by a broker, or no answer; the text says what was asked, of what, and what to do."""


def refusal(doing: str, code: int, message: str | None = None) -> str:
    """Return one line about an error code: the action, Kafka's name, its text, the remedy."""
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
    """Client of a cluster, as a context manager."""

    def __init__(
        self,
        bootstrap_servers: str,
        timeout_ms: int,
        security: Security = PLAINTEXT,
        sign: SignOfLife | None = None,
    ) -> None:
        """Prepare the client; connections are opened later.

        Raises OptionError for an invalid address, or a certificate that cannot be used.
        """
        config = SessionConfig(
            request_timeout_ms=timeout_ms,
            operation_timeout_ms=timeout_ms,
            bootstrap_timeout_ms=timeout_ms,
        )
        self.client = Client(
            bootstrap_servers, client_id="broker_sim-cli", config=config, security=security
        )
        self.sign = sign or SignOfLife("")
        """Sign of life; a command of many requests shows its progress there."""
        self._servers = bootstrap_servers
        self._timeout_ms = timeout_ms
        self._silence = threading.Timer(SILENCE_S, self._tell_of_silence)
        self._silence.daemon = True

    def __enter__(self) -> Cluster:
        self._silence.start()
        return self

    def _tell_of_silence(self) -> None:
        """Write a line before the timeout, so that a person at a terminal knows what is going
        on."""
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

    def run(self, operation: Operation[T], doing: str) -> T:
        """Carry the operation to its end. Raises Refused for a refusal by a broker; TxnLogError."""
        try:
            return self.client.run(operation)
        except BrokerError as error:
            raise Refused(refusal(doing, error.code)) from error

    def change(self, message: Message, doing: str, *, node: int = ANY_NODE) -> Message:
        """Send a request that changes something to one broker, once. Raises Refused without an
        answer."""
        deadline = self.client.session.deadline()
        outcome = self.client.run(call(Call(node, message, deadline.call_ms)))
        if isinstance(outcome, Reply):
            return outcome.message
        refuse_if_final(outcome, doing)
        text = f"{doing}: no answer to {api_of(message).name}: {outcome.reason}"
        raise Refused(f"{text}; {MAY_BE_DONE}" if outcome.sent else text)

    def read(self, message: Message, doing: str) -> Message:
        """Ask any broker, until one answers, for what every broker can say."""
        deadline = self.client.session.deadline()
        return self.client.run(call_any(message, doing=doing, deadline=deadline)).message

    def load_topics(self, topics: Iterable[str] | None) -> dict[str, int]:
        """Ask for the metadata of topics, None for all; return the error codes of topics that have
        one."""
        session = self.client.session
        return self.client.run(refresh_metadata(session, topics))

    def topics(self) -> list[str]:
        """Return the topics that are known by now."""
        return sorted(self.client.session.cluster.topics)

    def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the partitions of a topic. Raises Refused for an unknown topic."""
        known = self.client.session.cluster.partitions(topic)
        if not known:
            errors = self.load_topics([topic])
            known = self.client.session.cluster.partitions(topic)
            code = errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not known:
                raise Refused(refusal(f"topic {topic!r}", code))
        return known

    def check_partition(self, partition: TopicPartition) -> None:
        """Raise Refused for a partition that does not exist."""
        topic, number = partition
        known = self.partitions(topic)
        if number not in known:
            raise Refused(f"topic {topic!r} has {len(known)} partitions, no --partition {number}")

    def leader(self, partition: TopicPartition) -> int:
        """Return the leader of a partition, after an election. Raises Refused, DeadlineExceeded."""
        self.check_partition(partition)
        self.client.run(require_leaders(self.client.session, [partition]))
        return self.client.session.cluster.leader(partition)
