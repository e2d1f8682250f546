"""What the operations of one client share: settings, the clock, what is known of the cluster.

The host makes one Session per client and passes it to every operation it runs, one after another.
The clock is the host's (the simulator's is virtual): monotonic milliseconds, used for deadlines
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txnlog_kafka.errors import DeadlineExceeded, parted
from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.fetch_sizes import FetchSizes
from txnlog_kafka.operations.preferred_replicas import PreferredReplicas
from txnlog_kafka.wire.topic_partition import TopicPartition

BACKOFF_DOUBLINGS_MAX = 10
SOON = 4
"""By so much the waits are shorter for what is over soon."""
COORDINATORS_MAX = 256
"""So many are remembered: each batch write has a transactional id and a group of its own."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Time limits, with Kafka's names where Kafka has one (ProducerConfig defaults)."""

    request_timeout_ms: int = 30_000
    """One request: no answer by then is an unknown outcome."""
    operation_timeout_ms: int = 120_000
    """One step of an operation with all its retries (`delivery.timeout.ms`)."""
    bootstrap_timeout_ms: int = 30_000
    """The first answer of any broker."""
    topic_wait_ms: int = 15_000
    """How long a topic that is being created may stay unknown."""
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    rack_id: str | None = None
    """Where this client is: leaders may name a replica there to read from (`client.rack`)."""
    read_replica_ms: int = 300_000
    """How long a named replica is read from (`metadata.max.age.ms`)."""


NOTICE_MS = 10_000
"""What is tried for so long without success is said once."""


def _ignore(_text: str) -> None:
    """A host that keeps no log."""


@dataclass(slots=True)
class Session:
    """Mutable knowledge of one client. Not safe for use by several operations at once."""

    monotonic_ms: Callable[[], int]
    config: SessionConfig = field(default_factory=SessionConfig)
    cluster: ClusterView = field(default_factory=ClusterView)
    coordinators: dict[tuple[int, str], int] = field(default_factory=dict)
    """Node by (key type, key) as FindCoordinator answered: 0 a group, 1 a transactional id."""
    read_replicas: PreferredReplicas = field(default_factory=PreferredReplicas)
    fetch_sizes: FetchSizes = field(default_factory=FetchSizes)
    asks_another: bool = False
    """Something failed since any broker was asked: the one that answered may know less than others
    do."""
    notice: Callable[[str], None] = _ignore
    """Where an operation says what a person should know now; the host writes it to its log."""
    bootstrap_servers: str = ""
    """What the host was given to find the brokers by, for what is said to a person."""

    def remember_coordinator(self, key_type: int, key: str, node: int) -> None:
        """Until it is wrong; one too many takes the place of the oldest, which is found again."""
        if len(self.coordinators) >= COORDINATORS_MAX:
            del self.coordinators[next(iter(self.coordinators))]
        self.coordinators[key_type, key] = node

    def deadline(self, timeout_ms: int | None = None) -> Deadline:
        """A deadline from now; by default the operation timeout."""
        if timeout_ms is None:
            timeout_ms = self.config.operation_timeout_ms
        return Deadline(self, self.monotonic_ms(), timeout_ms)

    def read_node(self, partition: TopicPartition) -> int:
        """The node to fetch a partition from."""
        return self.read_replicas.node(partition, self.cluster, self.monotonic_ms())


@dataclass(slots=True)
class Deadline:
    """How long one step may go on trying, and how its waits grow."""

    session: Session
    started_ms: int
    timeout_ms: int
    attempts: int = 0
    has_said: bool = False
    """It was reported that this takes long."""

    @property
    def left_ms(self) -> int:
        """What is left; may be negative."""
        return self.started_ms + self.timeout_ms - self.session.monotonic_ms()

    @property
    def call_ms(self) -> int:
        """The timeout for a call now: the request timeout, less when the deadline is nearer."""
        return max(1, min(self.session.config.request_timeout_ms, self.left_ms))

    def patience_ms(self, wanted_ms: int) -> int:
        """Return for how long an answer has to be repeated to be believed: at most `wanted_ms`.

        A third of a short timeout: a wait may be as long as all before it, and one comes before
        most brokers are asked.
        """
        return min(wanted_ms, self.timeout_ms // 3)

    def backoff(self, doing: str, error: str, *, is_soon: bool = False) -> Operation[None]:
        """Wait before the next attempt. Raises DeadlineExceeded when there is no time for it.

        `is_soon`: what is in the way is over within milliseconds as a rule.
        """
        self.attempts += 1
        yield from self.wait(self.attempts - 1, doing, error, is_soon=is_soon)

    def wait(
        self, failures: int, doing: str, error: str, *, is_soon: bool = False
    ) -> Operation[None]:
        """Wait as after so many failures in a row before this one. Raises DeadlineExceeded."""
        config = self.session.config
        doublings = min(failures, BACKOFF_DOUBLINGS_MAX)
        first_ms = config.retry_backoff_ms // SOON if is_soon else config.retry_backoff_ms
        wait_ms = min(first_ms << doublings, config.retry_backoff_max_ms)
        if self.left_ms <= wait_ms:
            raise DeadlineExceeded(doing, self.timeout_ms, error)
        if not self.has_said and self.timeout_ms - self.left_ms >= NOTICE_MS:
            self.has_said = True
            text, commands = parted(error)
            notice = f"{doing}: goes on for at most {self.left_ms // 1000} s: {text}"
            self.session.notice("; ".join([notice, *commands]))
        yield Sleep(wait_ms)
        self.session.asks_another = True
