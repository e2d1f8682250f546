"""Topics that are created while a broker is down: one body on three brokers of either kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.probe import live_brokers, wait_until
from support.brokers.three_brokers import KINDS, three_brokers
from support.raw.raw import Connection, message_class

from txnlog_kafka.wire.messages import ApiKey

pytestmark = pytest.mark.weekly(day=1)

FENCED_VERSION = 2
TOPIC = "orders"
PARTITIONS = 4


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with three_brokers(request.param, tmp_path) as made:
        yield made


def fenced(port: int) -> dict[int, bool]:
    """Return True for each fenced broker, by broker id (KIP-1073)."""
    with Connection(port) as connection:
        message = message_class(ApiKey.DESCRIBE_CLUSTER)(include_fenced_brokers=True)
        found = connection.ask(message, FENCED_VERSION).brokers
    return {broker.broker_id: broker.is_fenced for broker in found}


def test_a_topic_with_as_many_replicas_as_brokers_is_created_while_one_is_down(
    cluster: Any,
) -> None:
    away = next(number for number in cluster.numbers if number != cluster.controller())
    others = set(cluster.numbers) - {away}
    cluster.kill(away)
    wait_until(lambda: live_brokers(cluster.live_port) == len(others), "the end of its session")
    expected = dict.fromkeys(others, False) | {away: True}
    wait_until(lambda: fenced(cluster.live_port) == expected, "that it is fenced")

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, len(cluster.numbers))])[TOPIC].result(30)
    made = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()
    assert len(made) == PARTITIONS
    for partition in made:
        assert set(partition.replicas) == set(cluster.numbers)
        assert set(partition.isrs) == others
        assert partition.leader in others
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(PARTITIONS):
        producer.produce(TOPIC, b"value", partition=number)
    assert producer.flush(60) == 0

    cluster.restart(away)

    def is_whole() -> bool:
        found = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()
        return all(set(partition.isrs) == set(cluster.numbers) for partition in found)

    wait_until(is_whole, "all replicas in sync")
    assert not any(fenced(cluster.live_port).values())
