"""Reading from the closest replica (KIP-392): one body on three brokers of either kind."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.brokers.probe import wait_until
from support.brokers.three_brokers import three_brokers
from support.clients.librdkafka import create_topic, produce_values
from support.core.broker_build import fetch_request
from support.raw.raw import Connection

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.error_codes import ErrorCode as E

RACKS = ("a", "b", "c")
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
COUNT = 20


@pytest.fixture(
    scope="module",
    params=[
        "broker_sim_cluster",
        pytest.param("apache_kafka_cluster", marks=[pytest.mark.kafka, pytest.mark.weekly]),
    ],
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp(request.param)
    config = {"replica.selector.class": SELECTOR}
    with three_brokers(request.param, folder, config, racks=RACKS) as made:
        yield made


@pytest.fixture
def topic(cluster: Any) -> str:
    """Twenty records in one partition that all three brokers have."""
    name = f"near-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap_servers, name)
    values = (f"value {number}" for number in range(COUNT))
    produce_values(cluster.bootstrap_servers, name, values, partition=0)
    return name


def roles(cluster: Any, topic: str) -> tuple[int, int, str]:
    """The leader, another broker and its rack."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    partition = admin.list_topics(topic, timeout=30).topics[topic].partitions[0]
    follower = next(n for n in partition.replicas if n != partition.leader)
    first = min(partition.replicas)
    return partition.leader, follower, RACKS[follower - first]


def ask(cluster: Any, number: int, topic: str, version: int = 12, **fields: Any) -> Any:
    with Connection(cluster.port_of(number)) as connection:
        message = fetch_request(topic, fields.pop("offset", 0), max_wait_ms=100, **fields)
        return connection.ask(message, version).responses[0].partitions[0]


def caught_up(cluster: Any, follower: int, topic: str) -> None:
    wait_until(
        lambda: ask(cluster, follower, topic).high_watermark == COUNT, "the follower's watermark"
    )


def shown(entry: Any) -> tuple[Any, ...]:
    return (
        E(entry.error_code).name,
        entry.high_watermark,
        entry.last_stable_offset,
        entry.log_start_offset,
        bool(entry.records),
    )


def test_who_is_sent_where_and_what_a_follower_answers(cluster: Any, topic: str) -> None:
    leader, follower, rack = roles(cluster, topic)
    caught_up(cluster, follower, topic)
    everything = ("NONE", COUNT, COUNT, 0, True)
    sent_on = ask(cluster, leader, topic, rack_id=rack)
    assert sent_on.preferred_read_replica == follower
    assert shown(sent_on) == ("NONE", COUNT, COUNT, 0, False)
    for rack_id in ("", "nowhere"):
        read = ask(cluster, leader, topic, rack_id=rack_id)
        assert (read.preferred_read_replica, shown(read)) == (-1, everything)
    for rack_id in (rack, "nowhere"):
        read = ask(cluster, follower, topic, rack_id=rack_id)
        assert (read.preferred_read_replica, shown(read)) == (-1, everything)
    at_end = ask(cluster, leader, topic, rack_id=rack, offset=COUNT)
    assert (at_end.preferred_read_replica, at_end.error_code) == (follower, 0)
    old = ask(cluster, follower, topic, version=10)
    assert E(old.error_code) is E.NOT_LEADER_OR_FOLLOWER
    beyond = ask(cluster, follower, topic, offset=COUNT + 1)
    assert shown(beyond) == ("OFFSET_OUT_OF_RANGE", -1, -1, -1, False)
    at_end = ask(cluster, follower, topic, offset=COUNT)
    assert shown(at_end) == ("NONE", COUNT, COUNT, 0, False)
    newer = ask(cluster, follower, topic, leader_epoch=1000)
    assert E(newer.error_code) is E.UNKNOWN_LEADER_EPOCH


def test_the_connector_reads_everything_from_the_replica_in_its_rack(
    cluster: Any, topic: str
) -> None:
    leader, follower, rack = roles(cluster, topic)
    caught_up(cluster, follower, topic)
    client = Client(cluster.bootstrap_servers, config=SessionConfig(rack_id=rack))
    try:
        client.run(refresh_metadata(client.session, {topic}))
        found = list(client.fetch_range(topic, 0, start_offset=0, end_offset=COUNT))
        assert found[-1].next_offset == COUNT
        data = b"".join(bytes(each.data) for each in found)
        assert all(f"value {number}".encode() in data for number in range(COUNT))
        assert client.session.read_node((topic, 0)) == follower
        assert client.session.cluster.leader((topic, 0)) == leader
    finally:
        client.close()


def test_librdkafka_reads_everything_from_the_replica_in_its_rack(cluster: Any, topic: str) -> None:
    leader, follower, rack = roles(cluster, topic)
    caught_up(cluster, follower, topic)
    fetched: Counter[int] = Counter()

    def count(statistics: str) -> None:
        for broker in json.loads(statistics)["brokers"].values():
            fetched[broker["nodeid"]] = broker["req"].get("Fetch", 0)

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "client.rack": rack,
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": 100,
            "stats_cb": count,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []

    def has_read_there() -> bool:
        values.extend(m.value() for m in consumer.consume(COUNT, 0.5) if m.error() is None)
        return len(values) >= COUNT and fetched[follower] > 0

    try:
        wait_until(has_read_there, "all records, by fetches from the follower")
    finally:
        consumer.close()
    assert values == [b"value %d" % number for number in range(COUNT)]
    assert leader != follower
