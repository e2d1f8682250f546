"""What both coordinators share: partitioning, appending, flushing, timers, and a record codec."""

from broker_sim.core.coordinator.runtime import (
    GROUP_TOPIC,
    TRANSACTION_TOPIC,
    AppendOutcome,
    CoordinatorHost,
    CoordinatorLog,
    TopicPartition,
    coordinator_error,
    flush_logs,
    java_hash_code,
    partition_for,
)
from broker_sim.core.coordinator.timers import KeyedTimers

__all__ = [
    "GROUP_TOPIC",
    "TRANSACTION_TOPIC",
    "AppendOutcome",
    "CoordinatorHost",
    "CoordinatorLog",
    "KeyedTimers",
    "TopicPartition",
    "coordinator_error",
    "flush_logs",
    "java_hash_code",
    "partition_for",
]
