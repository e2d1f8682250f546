"""Commands `topics list | describe | create | alter | delete`, as kafka-topics and
kafka-configs."""

from __future__ import annotations

import argparse
import base64
import uuid
from typing import Any

from broker_sim.cli.arguments import (
    INT16_MAX,
    INT32_MAX,
    UsageError,
    add_command,
    number,
    parse_pairs,
)
from broker_sim.cli.cluster import Cluster, check_code, refusal
from broker_sim.cli.printing import Output, Table
from txnlog_kafka.operations.metadata import KAFKA_INTERNAL_TOPICS
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

USE_DEFAULT = -1
TOPIC = 2
SET, DELETE = 0, 1
OWN_CONFIG = 1
"""Source of a value that was set for the topic itself (Kafka's `ConfigSource`)."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options of all topic commands."""
    parser = commands.add_parser("topics", help="list, describe, create, change, delete topics")
    actions = parser.add_subparsers(dest="action", required=True)
    listing = add_command(actions, "list", list_topics, "list the names of all topics")
    describing = add_command(
        actions, "describe", describe_topics, "show partitions and configurations"
    )
    describing.add_argument("--topic", action="append", help="only this topic; may be repeated")
    for each in (listing, describing):
        each.add_argument(
            "--exclude-internal", action="store_true", help="leave out internal topics"
        )
    creating = add_command(actions, "create", create_topic, "create a topic")
    creating.add_argument("--topic", required=True)
    creating.add_argument("--partitions", type=number(1, INT32_MAX), default=USE_DEFAULT)
    creating.add_argument("--replication-factor", type=number(1, INT16_MAX), default=USE_DEFAULT)
    creating.add_argument("--if-not-exists", action="store_true", help="do nothing if it exists")
    altering = add_command(actions, "alter", alter_topic, "add partitions, change configurations")
    altering.add_argument("--topic", required=True)
    altering.add_argument(
        "--partitions", type=number(1, INT32_MAX), help="new number of partitions"
    )
    altering.add_argument("--delete-config", action="append", default=[], metavar="NAME")
    for each in (creating, altering):
        each.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    deleting = add_command(actions, "delete", delete_topics, "delete topics with their records")
    deleting.add_argument("--topic", required=True, action="append", help="may be repeated")
    deleting.add_argument(
        "--if-exists", action="store_true", help="do nothing if it does not exist"
    )


def list_topics(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return one row a topic."""
    cluster.load_topics(None)
    names = [n for n in cluster.topics() if _is_wanted(n, arguments)]
    return Output([Table("topics", ["TOPIC"], [[name] for name in names])])


def _is_wanted(name: str, arguments: argparse.Namespace) -> bool:
    return not (arguments.exclude_internal and name in KAFKA_INTERNAL_TOPICS)


def describe_topics(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Return a table of topics, and a table of their partitions."""
    cls = APIS[ApiKey.METADATA].request
    wanted = arguments.topic and [
        cls.MetadataRequestTopic(name=name) for name in dict.fromkeys(arguments.topic)
    ]
    answer = cluster.read(cls(topics=wanted, allow_auto_topic_creation=False), "describing topics")
    for topic in answer.topics:
        check_code(f"describing topic {topic.name!r}", topic.error_code)
    topics = sorted(answer.topics, key=lambda topic: str(topic.name))
    topics = [topic for topic in topics if _is_wanted(topic.name, arguments)]
    configs = _own_configs(cluster, [topic.name for topic in topics])
    return Output(
        [
            Table(
                "topics",
                ["TOPIC", "TOPIC-ID", "PARTITIONS", "REPLICATION-FACTOR", "CONFIGS"],
                [[*_topic_row(topic), configs.get(topic.name, [])] for topic in topics],
            ),
            Table(
                "partitions",
                ["TOPIC", "PARTITION", "LEADER", "LEADER-EPOCH", "REPLICAS", "ISR"],
                [row for topic in topics for row in _partition_rows(topic)],
            ),
        ]
    )


def _topic_row(topic: Message) -> list[Any]:
    factor = max((len(each.replica_nodes) for each in topic.partitions), default=0)
    return [topic.name, _id_text(topic.topic_id), len(topic.partitions), factor]


def _id_text(topic_id: uuid.UUID) -> str:
    """Return an id as Kafka prints ids: base64 without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _partition_rows(topic: Message) -> list[list[Any]]:
    return [
        [
            topic.name,
            each.partition_index,
            None if each.leader_id < 0 else each.leader_id,
            each.leader_epoch,
            list(each.replica_nodes),
            list(each.isr_nodes),
        ]
        for each in sorted(topic.partitions, key=lambda each: int(each.partition_index))
    ]


def _own_configs(cluster: Cluster, topics: list[str]) -> dict[str, list[str]]:
    cls = APIS[ApiKey.DESCRIBE_CONFIGS].request
    resources = [
        cls.DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in topics
    ]
    answer = cluster.read(cls(resources=resources), "describing the configurations of topics")
    found = {}
    for result in answer.results:
        doing = f"describing the configurations of topic {result.resource_name!r}"
        check_code(doing, result.error_code, result.error_message)
        own = [each for each in result.configs if each.config_source == OWN_CONFIG]
        found[result.resource_name] = sorted(f"{each.name}={each.value}" for each in own)
    return found


def create_topic(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Create one topic."""
    name = arguments.topic
    cls = APIS[ApiKey.CREATE_TOPICS].request
    topic = cls.CreatableTopic
    configs = parse_pairs("--config", arguments.config)
    message = cls(
        topics=[
            topic(
                name=name,
                num_partitions=arguments.partitions,
                replication_factor=arguments.replication_factor,
                configs=[
                    topic.CreatableTopicConfig(name=key, value=value)
                    for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=arguments.timeout_ms,
    )
    doing = f"creating topic {name!r}"
    (result,) = cluster.change(message, doing).topics
    done = "created"
    if arguments.if_not_exists and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        done = "exists"
    else:
        check_code(doing, result.error_code, result.error_message)
    return _done([[name, done]])


def alter_topic(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Add partitions, or change configurations, or both; partitions first."""
    name = arguments.topic
    configs = parse_pairs("--config", arguments.config)
    changes: list[tuple[str, int, str | None]] = [(key, SET, configs[key]) for key in configs]
    changes += [(key, DELETE, None) for key in arguments.delete_config]
    if arguments.partitions is None and not changes:
        raise UsageError("topics alter needs --partitions, --config or --delete-config")
    rows = []
    if arguments.partitions is not None:
        _grow(cluster, name, arguments)
        rows.append([name, f"partitions={arguments.partitions}"])
    if changes:
        _change_configs(cluster, name, changes)
        rows += [
            [name, f"{key} deleted" if value is None else f"{key}={value}"]
            for key, _, value in changes
        ]
    return _done(rows)


def _grow(cluster: Cluster, name: str, arguments: argparse.Namespace) -> None:
    cls = APIS[ApiKey.CREATE_PARTITIONS].request
    topic = cls.CreatePartitionsTopic(name=name, count=arguments.partitions, assignments=None)
    message = cls(topics=[topic], timeout_ms=arguments.timeout_ms)
    doing = f"giving topic {name!r} {arguments.partitions} partitions"
    (result,) = cluster.change(message, doing).results
    check_code(doing, result.error_code, result.error_message)


def _change_configs(
    cluster: Cluster, name: str, changes: list[tuple[str, int, str | None]]
) -> None:
    cls = APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS].request
    resource = cls.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    message = cls(resources=[resource(resource_type=TOPIC, resource_name=name, configs=configs)])
    doing = f"configuring topic {name!r}"
    (result,) = cluster.change(message, doing).responses
    check_code(doing, result.error_code, result.error_message)


def delete_topics(cluster: Cluster, arguments: argparse.Namespace) -> Output:
    """Delete each topic on its own; a topic that cannot be deleted is a refusal."""
    names = list(dict.fromkeys(arguments.topic))
    cls = APIS[ApiKey.DELETE_TOPICS].request
    message = cls(
        topics=[cls.DeleteTopicState(name=name) for name in names],
        topic_names=names,
        timeout_ms=arguments.timeout_ms,
    )
    answer = cluster.change(message, f"deleting topics {', '.join(names)}")
    rows: list[list[Any]] = []
    output = _done(rows)
    for result in sorted(answer.responses, key=lambda each: names.index(each.name)):
        code = result.error_code
        missing = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code and not (missing and arguments.if_exists):
            doing = f"deleting topic {result.name!r}"
            output.refusals.append(refusal(doing, code, result.error_message))
            continue
        rows.append([result.name, "missing" if missing else "deleted"])
    return output


def _done(rows: list[list[Any]]) -> Output:
    return Output([Table("topics", ["TOPIC", "DONE"], rows)])
