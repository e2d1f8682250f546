"""State that the operations of one client share: settings, the clock, knowledge of the cluster.

The host makes one Session per client and passes it to every operation that it runs, one after
another. The clock is the host's (the simulator's is virtual): monotonic milliseconds, used for
deadlines alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txnlog_kafka.errors import DeadlineExceeded, WrongCluster, parted
from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.session_knowledge import FetchSizes, PreferredReplicas
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.topic_partition import TopicPartition

BACKOFF_DOUBLINGS_MAX = 10
SOON = 4
"""Divisor of the waits for an obstacle that is over soon."""
COORDINATORS_MAX = 256
"""Coordinators that a client remembers: each batch write has its own transactional id and group."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Time limits, with Kafka's names where Kafka has one (ProducerConfig defaults)."""

    request_timeout_ms: int = 30_000
    """Time limit of one request; without an answer by then the outcome is unknown."""
    operation_timeout_ms: int = 120_000
    """Time limit of one step of an operation with all its retries (`delivery.timeout.ms`)."""
    bootstrap_timeout_ms: int = 30_000
    """Time limit of the first answer of any broker."""
    topic_wait_ms: int = 15_000
    """Time for which a topic that is being created may stay unknown."""
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    rack_id: str | None = None
    """Rack of this client: leaders may name a replica in this rack to read from (`client.rack`)."""
    names_broker: bool = True
    """True if a connection names the broker that is meant (`metadata.cluster.check.enable`)."""
    read_replica_ms: int = 300_000
    """Time for which the client reads from a named replica (`metadata.max.age.ms`)."""


NOTICE_MS = 10_000
"""Duration of fruitless attempts after which the operation reports once that it is still trying."""


def _ignore(_text: str) -> None:
    """Drop a notice: the default of a host that keeps no log."""


@dataclass(slots=True)
class Session:
    """Mutable knowledge of one client. Not safe for use by several operations at once."""

    monotonic_ms: Callable[[], int]
    config: SessionConfig = field(default_factory=SessionConfig)
    cluster: ClusterView = field(default_factory=ClusterView)
    coordinators: dict[tuple[int, str], int] = field(default_factory=dict)
    """Node by (key type, key) as FindCoordinator answered; key type 0 is a group, 1 a transactional
    id."""
    read_replicas: PreferredReplicas = field(default_factory=PreferredReplicas)
    fetch_sizes: FetchSizes = field(default_factory=FetchSizes)
    asks_another: bool = False
    """True if an attempt failed since any broker was asked: the broker that answered last may know
    less than others do."""
    notice: Callable[[str], None] = _ignore
    """Report to a person what an operation notices; the host writes the text to its log."""
    bootstrap_servers: str = ""
    """Addresses by which the host found the brokers, for texts that a person reads."""

    def check_cluster(self, answer: Message) -> None:
        """Raise WrongCluster if a Metadata answer is of another cluster than the answers before.

        The session then forgets what it knows: a new query may use the new cluster.
        """
        before, now = self.cluster.cluster_id, answer.cluster_id
        if before is None or not now or now == before:
            return
        self.cluster, self.coordinators = ClusterView(), {}
        raise WrongCluster(
            f"the brokers at {self.bootstrap_servers} are of cluster {now!r}, and were of cluster "
            f"{before!r} until now. Start the cluster {before!r} again at these addresses"
        )

    def remember_coordinator(self, key_type: int, key: str, node: int) -> None:
        """Cache the coordinator of a key. A full cache evicts its oldest entry, which is then
        looked up again when needed."""
        if len(self.coordinators) >= COORDINATORS_MAX:
            del self.coordinators[next(iter(self.coordinators))]
        self.coordinators[key_type, key] = node

    def deadline(self, timeout_ms: int | None = None) -> Deadline:
        """Return a deadline that starts now; by default it ends after the operation timeout."""
        if timeout_ms is None:
            timeout_ms = self.config.operation_timeout_ms
        return Deadline(self, self.monotonic_ms(), timeout_ms)

    def read_node(self, partition: TopicPartition) -> int:
        """Return the node to fetch a partition from."""
        return self.read_replicas.node(partition, self.cluster, self.monotonic_ms())


@dataclass(slots=True)
class Deadline:
    """Time limit of one step, and the growing waits between its attempts."""

    session: Session
    started_ms: int
    timeout_ms: int
    attempts: int = 0
    has_said: bool = False
    """True if it was reported that this step takes long."""

    @property
    def left_ms(self) -> int:
        """Milliseconds until the deadline; may be negative."""
        return self.started_ms + self.timeout_ms - self.session.monotonic_ms()

    @property
    def call_ms(self) -> int:
        """Timeout in ms for a call now: the request timeout, or less if the deadline is nearer."""
        return max(1, min(self.session.config.request_timeout_ms, self.left_ms))

    def patience_ms(self, wanted_ms: int) -> int:
        """Return for how long an answer has to be repeated to be believed: at most `wanted_ms`.

        A third of a short timeout: one wait may be as long as all waits before it, and there is a
        wait before most brokers are asked.
        """
        return min(wanted_ms, self.timeout_ms // 3)

    def backoff(self, doing: str, error: str, *, is_soon: bool = False) -> Operation[None]:
        """Wait before the next attempt. Raises DeadlineExceeded if the deadline is nearer than the
        wait.

        `is_soon`: the obstacle is over within milliseconds as a rule.
        """
        self.attempts += 1
        yield from self.wait(self.attempts - 1, doing, error, is_soon=is_soon)

    def wait(
        self, failures: int, doing: str, error: str, *, is_soon: bool = False
    ) -> Operation[None]:
        """Wait as after this number of failures in a row. Raises DeadlineExceeded."""
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
