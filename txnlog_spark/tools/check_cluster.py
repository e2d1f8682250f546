"""Part of `check` that asks the brokers: their listeners, the topics, and all missing grants."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.dry_run import (
    BrokerAnswer,
    TopicAccess,
    ask_brokers,
    probe_group,
    probe_transactional_id,
    topic_access,
)
from txnlog_kafka.wire.error_codes import error_name
from txnlog_spark.tools.check_item import GROUP, OK, REFUSED, TOPIC, WARNING, Grant, Item, Job


def check_cluster(client: Client, job: Job, grants: Sequence[Grant]) -> Iterator[Item]:
    """Ask all brokers, and ask for each topic and grant. Raises the client's errors."""
    session = client.session
    answers = client.run(ask_brokers(session))
    yield from broker_items(session.cluster.cluster_id or "unknown", answers)
    topics = client.run(topic_access(session, {*job.inputs, *job.outputs}))
    yield from topic_items(job, topics)
    granted: dict[Grant, bool | None] = {}
    for grant in grants:
        if grant.resource == TOPIC:
            granted[grant] = topics[grant.name].allows(grant.operation)
        elif grant.resource == GROUP:
            granted[grant] = client.run(probe_group(session, grant.name)).is_granted
        else:
            granted[grant] = client.run(probe_transactional_id(session, grant.name)).is_granted
    yield from grant_items(job, granted)


def broker_items(cluster_id: str, answers: Iterable[BrokerAnswer]) -> Iterator[Item]:
    """Refuse each broker that does not answer or does not support transactions."""
    good = []
    for broker in answers:
        who = f"broker {broker.node} at {broker.address}"
        if broker.unanswered:
            text = f"{who}, which is its advertised listener, does not answer: {broker.unanswered}"
            host, _, port = broker.address.rpartition(":")
            yield Item("brokers", REFUSED, text, f"nc -vz {shlex.quote(host)} {port}")
        elif broker.missing_apis:
            text = f"{who} has no transactions: it lacks {', '.join(broker.missing_apis)}"
            command = f"kafka-broker-api-versions.sh --bootstrap-server {broker.address}"
            yield Item("brokers", REFUSED, f"{text}; Kafka 3.9 or newer is tested", command)
        else:
            good.append(broker)
    if good:
        version = min(each.transaction_version for each in good)
        text = f"{len(good)} of cluster {cluster_id}, with transactions"
        yield Item("brokers", OK, f"{text} (transaction.version {version})")


def topic_items(job: Job, topics: Mapping[str, TopicAccess]) -> Iterator[Item]:
    """Refuse an input that does not exist; warn of an output that the first batch would create."""
    for name in dict.fromkeys((*job.inputs, *job.outputs)):
        is_input, topic = name in job.inputs, topics[name]
        what = f"{'input' if is_input else 'output'} {name!r}"
        words = f"--create --topic {shlex.quote(name)} --partitions 8"
        create = job.tool("kafka-topics.sh", words)
        if topic.partition_count:
            yield Item("topic", OK, f"{what} has {topic.partition_count} partitions")
        elif topic.is_hidden:
            text = f"{what}: this user may not know whether it exists (see the grants)"
            yield Item("topic", WARNING, text)
        elif not topic.is_missing:
            text = f"{what} cannot be used: {error_name(topic.error_code)}"
            yield Item(
                "topic",
                REFUSED,
                text,
                create.partition("--create")[0] + f"--describe --topic {shlex.quote(name)}",
            )
        elif is_input or topic.allows("CREATE") is False:
            yield Item("topic", REFUSED, f"{what} does not exist: create it", create)
        else:
            text = f"{what} does not exist: the first batch makes it with the brokers' defaults, "
            yield Item("topic", WARNING, f"{text}if they allow that; better create it", create)


def grant_items(job: Job, granted: Mapping[Grant, bool | None]) -> Iterator[Item]:
    """Refuse all missing grants at once. None means that the brokers did not say."""
    for grant, has in granted.items():
        if has is None:
            yield Item("grant", WARNING, f"{grant}: the brokers do not tell whether it is granted")
        elif not has:
            text = f"{grant} is missing for {job.principal}"
            yield Item("grant", REFUSED, text, grant.command(job))
    if good := [str(grant) for grant, has in granted.items() if has]:
        yield Item("grants", OK, "; ".join(good))
