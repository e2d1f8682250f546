"""Options of the brokers of a run."""

from __future__ import annotations

from simulation.checkers.sync_oracle import MIN_INSYNC
from simulation.scenario import BrokerSettings

TRANSACTION_PARTITIONS = 2
BROKER_OPTIONS: dict[str, int | str | bool] = {
    "transaction.state.log.num.partitions": TRANSACTION_PARTITIONS,
    "auto.create.topics.enable": False,
    "log.retention.ms": -1,
    "listeners": "PLAINTEXT://127.0.0.1:9092",
}
"""Few internal partitions, so that a start is cheap; no retention, since rows carry batch ids for
timestamps; the rest are the broker's defaults."""

CONSUMER_GROUP_OPTIONS: dict[str, int | str | bool] = {
    "group.consumer.min.session.timeout.ms": 1_500,
    "group.consumer.session.timeout.ms": 1_500,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.assignment.interval.ms": 0,
}
"""Members of consumer groups are missed after a time as short as that of the classic ones. With an
interval a group would wait, as Kafka's does, until a clock that jumped back has caught up."""

COMPACTION_OPTIONS: dict[str, int | str | bool] = {
    "transaction.state.log.segment.bytes": 1024,
    "offsets.topic.segment.bytes": 1024,
    "log.cleaner.backoff.ms": 300,
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": 2_000,
    "log.cleaner.io.buffer.size": 700,
}
"""A segment holds a few records, and a round of the cleaner takes several steps."""


def broker_options(settings: BrokerSettings) -> dict[str, int | str | bool]:
    """Return the options that a scenario sets for every broker."""
    options = (
        BROKER_OPTIONS
        | CONSUMER_GROUP_OPTIONS
        | {"transaction.version": settings.transaction_version or 2}
    )
    options["offsets.topic.num.partitions"] = settings.group_partitions
    return options | COMPACTION_OPTIONS if settings.compaction else options


SESSION_MS = 3_000
MIN_INSYNC_REPLICAS = 2
"""Value of min.insync.replicas for topics that do not set it."""
CLUSTER_OPTIONS: dict[str, int | str | bool] = {
    "registry.connect": "registry:2181",
    "registry.session.timeout.ms": SESSION_MS,
    "registry.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 2_000,
    "replica.fetch.backoff.ms": 200,
    "replica.fetch.wait.max.ms": 1_000,
    MIN_INSYNC: MIN_INSYNC_REPLICAS,
    "leader.imbalance.check.interval.seconds": 5,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 1_000,
}
"""Options of a cluster: every topic has all replicas, and timeouts pass several times a minute."""

SMALL_SEGMENTS: dict[str, int | str | bool] = {
    "transaction.state.log.segment.bytes": 1024,
    "offsets.topic.segment.bytes": 1024,
}
"""Options that let logs roll, and be truncated in segments before the last one.

For other topics see `world.SMALL_SEGMENTS_OF_TOPICS`.
"""


def cluster_options(settings: BrokerSettings) -> dict[str, int | str | bool]:
    """Return the options that a scenario sets for every broker of a cluster."""
    options = broker_options(settings) | CLUSTER_OPTIONS
    options |= {"log.cleaner.enable": settings.compaction}
    if settings.small_segments:
        options |= SMALL_SEGMENTS
    return options | {"log.flush.interval.messages": 1} if settings.flushes_all else options
