"""Rules for topics: names, partition counts, configurations. Pure decisions, no state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from broker_sim.core.config import (
    BrokerConfig,
    ConfigError,
    ConfigValue,
    check_topic_configs,
    parse_topic_config,
)
from txnlog_kafka.wire.error_codes import ErrorCode

TOPIC_NAME_LENGTH_MAX = 249
"""A directory name, topic plus "-" and a number, must fit a file name (Kafka's `Topic`)."""
PARTITION_COUNT_MAX = 10_000
"""A limit against typing errors: each partition is a directory and open files."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class TopicRefused(Exception):
    """A change of topics or configurations that is not allowed: code and text of the answer."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def check_topic_name(name: str) -> None:
    """Raise TopicRefused(INVALID_TOPIC_EXCEPTION) unless Kafka allows the name."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = "'.' and '..' are not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        reason = f"it has {len(name)} characters, more than {TOPIC_NAME_LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        reason = "only ASCII alphanumerics, '.', '_' and '-' are allowed"
    if reason is not None:
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name {name[:300]!r} is illegal: {reason}"
        )


def check_no_collision(name: str, existing: Iterable[str]) -> None:
    """Refuse a name that differs from another only in '.' and '_': metric names would collide."""
    folded = name.replace(".", "_")
    if "_" not in folded:
        return
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise TopicRefused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic {name!r} differs from {other!r}, which exists, only in '.' and '_'",
            )


def check_partition_count(count: int) -> None:
    """Raise TopicRefused(INVALID_PARTITIONS) for a count that cannot be."""
    if not 1 <= count <= PARTITION_COUNT_MAX:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} partitions are not possible; 1 to {PARTITION_COUNT_MAX} are",
        )


def check_replicas(replicas: Sequence[int], node_id: int) -> None:
    """Raise TopicRefused(INVALID_REPLICA_ASSIGNMENT) unless the only broker is the one replica."""
    reason = None
    unknown = [broker for broker in replicas if broker != node_id]
    if not replicas:
        reason = "an assignment names no broker"
    elif unknown:
        reason = f"an assignment names broker {unknown[0]}, and the only one is {node_id}"
    elif len(replicas) > 1:
        reason = f"an assignment names broker {node_id} more than once"
    if reason is not None:
        raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def assigned_count(assignments: Sequence[tuple[int, Sequence[int]]], alone: int | None) -> int:
    """Return the number of partitions that (number, replicas) pairs make. Raises TopicRefused.

    `alone` is the broker that must have all replicas, None in a cluster.
    """
    numbers: set[int] = set()
    for number, replicas in assignments:
        if number in numbers:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {number} is assigned twice"
            )
        numbers.add(number)
        if alone is not None:
            check_replicas(replicas, alone)
    if numbers != set(range(len(numbers))):
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "the assigned partitions are not numbered from 0 without gaps",
        )
    return len(numbers)


def parse_topic_configs(
    configs: Mapping[str, str | None], config: BrokerConfig
) -> dict[str, ConfigValue]:
    """Typed topic configurations. Raises TopicRefused(INVALID_CONFIG) for the first wrong one."""
    parsed: dict[str, ConfigValue] = {}
    for name, text in configs.items():
        if text is None:
            raise TopicRefused(ErrorCode.INVALID_CONFIG, f"{name[:300]!r} has no value")
    try:
        for name, text in configs.items():
            parsed[name] = parse_topic_config(name, text or "")
        check_topic_configs(parsed, config)
    except ConfigError as error:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
    return parsed
