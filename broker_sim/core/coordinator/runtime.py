"""The ground both coordinators stand on: which partition, how to append, when it is durable.

A coordinator is a replicated state machine over one partition of an internal topic (source: Kafka's
`coordinator-common`). A request becomes a record; the record is appended to its log; only
then does `replay` change state, and the answer is given. At load the same `replay` reads the log.

This module does not know what is in a record.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.effects import Effects, Flush
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.topics import TopicPartition

_UNAVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def java_hash_code(text: str) -> int:
    """Java's `String.hashCode`: signed 32 bits over UTF-16 code units."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for(key: str, partition_count: int) -> int:
    """The coordinator partition of a transactional id or group id.

    Kafka's `Utils.abs(hashCode) % count`, where the abs of the smallest int is 0.
    """
    value = java_hash_code(key)
    return (0 if value == -(2**31) else abs(value)) % partition_count


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """What the client is answered when the append to the coordinator's log gave `error`.

    Source: Kafka's `TransactionStateManager.appendTransactionToLog`, `CoordinatorOperation-
    ExceptionHelper` for groups; both use one mapping.
    """
    if error in _UNAVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in _MOVED:
        return ErrorCode.NOT_COORDINATOR
    if error in _TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error


def flush_logs(
    writer: PartitionWriter, partitions: Iterable[TopicPartition], effects: Effects
) -> None:
    """Make all appends of these partitions durable before the next storage operation.

    One Flush for all of them, so that a host can sync the files side by side. Partitions that
    are not here are skipped.
    """
    logs = [writer.log(topic, partition) for topic, partition in sorted(set(partitions))]
    present = [log for log in logs if log is not None]
    paths = tuple(path for log in present for path in log.flush_paths())
    if not paths:
        return
    effects.storage.append(Flush(paths))
    for log in present:
        log.flushed(effects)
