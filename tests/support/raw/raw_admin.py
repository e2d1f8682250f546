"""Requests of administration by hand: what no client builds, answers as error names."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from support.brokers.probe import wait_for
from support.raw.raw import Connection
from support.raw.requests import request

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
ZERO_ID = uuid.UUID(int=0)


def node_ids(connection: Connection) -> list[int]:
    found = connection.ask(request(ApiKey.METADATA, topics=[]), 9).brokers
    return sorted(each.node_id for each in found)


def new_topic(
    name: str,
    partitions: int = -1,
    replication_factor: int = -1,
    *,
    assignments: Mapping[int, Sequence[int]] | Sequence[tuple[int, Sequence[int]]] = (),
    configs: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Return a topic of a CreateTopics request."""
    pairs = assignments.items() if isinstance(assignments, Mapping) else assignments
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": [*brokers]} for index, brokers in pairs
        ],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


def create_topics(
    connection: Connection, *topics: dict[str, Any], validate_only: bool = False, version: int = 7
) -> dict[str, Any]:
    """CreateTopics of what `new_topic` made: the results by name."""
    message = request(
        ApiKey.CREATE_TOPICS, topics=[*topics], timeout_ms=30_000, validate_only=validate_only
    )
    return {each.name: each for each in connection.ask(message, version).topics}


def make_topic(
    connection: Connection,
    name: str,
    partitions: int = 1,
    *,
    replication_factor: int = -1,
    **configs: str,
) -> uuid.UUID:
    """Create a topic, wait for its leaders, return its id. `_` stands for `.` in config names."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    lost = connection.lost_answers
    new = new_topic(name, partitions, replication_factor, configs=named)
    result = create_topics(connection, new)[name]
    # A broker, too, asks the controller again when that one has gone with the answer, as in Kafka.
    may_be_there = connection.has_kill or connection.lost_answers > lost
    error = error_name(result.error_code)
    assert error == "NONE" or (may_be_there and error == "TOPIC_ALREADY_EXISTS"), (
        result.error_message
    )
    wait_until_served([connection], name, partitions)
    return _topic(connection, name).topic_id


def wait_until_served(connections: Sequence[Connection], name: str, partitions: int) -> None:
    """Return when this topic takes requests that are sent once, without a client's retries.

    Each partition is led by one of the brokers that are asked.

    Apache Kafka lists a new leader in Metadata a moment before it acts as one.
    """

    def is_led(partition: int) -> bool:
        return any(lookup_error(each, name, partition) == "NONE" for each in connections)

    for partition in range(partitions):
        wait_for(lambda partition=partition: is_led(partition), True)


def lookup_error(connection: Connection, name: str, partition: int) -> str:
    """Return the error that a client gets when it asks for the partition's first offset."""
    return error_name(list_offset(connection, name, partition, timestamp=-2).error_code)


def stable_end(connection: Connection, name: str) -> int:
    """The last stable offset of partition 0."""
    return list_offset(connection, name, 0, timestamp=-1, isolation=1).offset


def list_offset(
    connection: Connection,
    name: str,
    partition: int,
    *,
    timestamp: int,
    isolation: int = 0,
    version: int = 7,
) -> Any:
    place = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
    message = request(
        ApiKey.LIST_OFFSETS,
        replica_id=-1,
        isolation_level=isolation,
        topics=[{"name": name, "partitions": [place]}],
    )
    return connection.ask(message, version).topics[0].partitions[0]


def wait_until_gone(connection: Connection, name: str) -> None:
    """Return when the broker does not know this topic any more.

    DeleteTopics is answered when the controller has decided it, a moment before the broker heard.
    """
    wait_for(lambda: error_name(_topic(connection, name).error_code), "UNKNOWN_TOPIC_OR_PARTITION")


def leaders(connection: Connection, name: str) -> int:
    """Return how many partitions of the topic have a leader, as far as the broker knows."""
    return sum(each.error_code == 0 for each in _topic(connection, name).partitions)


def topic_id(connection: Connection, name: str) -> uuid.UUID:
    """Return the id of a topic that exists."""
    return _topic(connection, name).topic_id


def _topic(connection: Connection, name: str) -> Any:
    """Return the topic in a Metadata answer; the request does not create it."""
    message = request(ApiKey.METADATA, topics=[{"name": name}], allow_auto_topic_creation=False)
    (found,) = connection.ask(message, 12).topics
    return found


def delete_topics(
    connection: Connection, *topics: tuple[str | None, uuid.UUID], version: int = 6
) -> list[tuple[str | None, uuid.UUID, str]]:
    """DeleteTopics of (name, id) pairs: (name, id, error), sorted, for Kafka shuffles them."""
    message = request(
        ApiKey.DELETE_TOPICS,
        topics=[{"name": name, "topic_id": topic_id} for name, topic_id in topics],
        topic_names=[name for name, _ in topics],
        timeout_ms=30_000,
    )
    answer = connection.ask(message, version).responses
    found = [(each.name, each.topic_id or ZERO_ID, error_name(each.error_code)) for each in answer]
    return sorted(found, key=str)


def create_partitions(
    connection: Connection,
    *topics: tuple[str, int, Sequence[Sequence[int]] | None],
    validate_only: bool = False,
) -> list[tuple[str, str]]:
    """CreatePartitions of (name, count, assignments): (name, error), sorted."""
    message = request(
        ApiKey.CREATE_PARTITIONS,
        topics=[
            {
                "name": name,
                "count": count,
                "assignments": assignments and [{"broker_ids": [*each]} for each in assignments],
            }
            for name, count, assignments in topics
        ],
        timeout_ms=30_000,
        validate_only=validate_only,
    )
    answer = connection.ask(message, 3).results
    return sorted((each.name, error_name(each.error_code)) for each in answer)


def describe_configs(
    connection: Connection,
    kind: int,
    name: str,
    keys: Iterable[str] | None = None,
    *,
    synonyms: bool = True,
    documentation: bool = False,
) -> tuple[str, dict[str, Any]]:
    """DescribeConfigs of one resource: (error, results by option)."""
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configuration_keys": None if keys is None else [*keys],
    }
    message = request(
        ApiKey.DESCRIBE_CONFIGS,
        resources=[resource],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = connection.ask(message, 4).results
    return error_name(result.error_code), {each.name: each for each in result.configs}


def change_configs(
    connection: Connection,
    *resources: tuple[int, str, Sequence[tuple[str, int, str | None]]],
    validate_only: bool = False,
) -> list[str]:
    """IncrementalAlterConfigs of (type, name, [(option, operation, value)]): errors, in order."""
    named = [
        (kind, name, [{"name": n, "config_operation": o, "value": v} for n, o, v in changes])
        for kind, name, changes in resources
    ]
    return _alter(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, named, validate_only)


def replace_configs(
    connection: Connection,
    *resources: tuple[int, str, Sequence[tuple[str, str | None]]],
    validate_only: bool = False,
) -> list[str]:
    """AlterConfigs of (type, name, [(option, value)]): errors, in order."""
    named = [
        (kind, name, [{"name": option, "value": value} for option, value in configs])
        for kind, name, configs in resources
    ]
    return _alter(connection, ApiKey.ALTER_CONFIGS, 2, named, validate_only)


def _alter(
    connection: Connection, key: ApiKey, version: int, named: list[Any], validate_only: bool
) -> list[str]:
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": configs}
        for kind, name, configs in named
    ]
    message = request(key, resources=resources, validate_only=validate_only)
    return [error_name(each.error_code) for each in connection.ask(message, version).responses]
