"""`kafka-topics`, `kafka-configs` and the tools that describe a cluster, on both brokers."""

from __future__ import annotations

import json
import re

import pytest
from support.brokers.probe import ports_of, wait_for
from support.clients.librdkafka import create_topic, produce_values, wait_served
from support.kafka.java_tools import (
    API_VERSIONS,
    CLUSTER,
    CONFIGS,
    FEATURES,
    LOG_DIRS,
    TOPICS,
    Done,
)

pytestmark = pytest.mark.kafka


@pytest.mark.no_kill("tells who leads, and what is in sync")
def test_kafka_topics_creates_lists_and_describes(java, bootstrap, unique):
    def topics(*words: object) -> Done:
        return java.ok(TOPICS, "--bootstrap-server", bootstrap, *words)

    topic = unique("made")
    words = ("--partitions", 3, "--config", "segment.ms=60000")
    done = topics("--create", "--topic", topic, *words)
    assert done.lines == [f"Created topic {topic}."]
    # The tool's next client asks the broker, which hears of a topic a moment after the tool does.
    wait_served(bootstrap, topic, 3)
    assert topic in topics("--list").lines
    header, *partitions = topics("--describe", "--topic", topic).lines
    fields = dict(re.findall(r"(\w+): ?(\S*)", header))
    assert (fields["Topic"], fields["PartitionCount"]) == (topic, "3")
    brokers = len(ports_of(bootstrap))
    assert fields["ReplicationFactor"] == str(brokers), "the default: a replica on each broker"
    assert len(fields["TopicId"]) == 22
    assert "segment.ms=60000" in fields["Configs"]
    rows = [dict(re.findall(r"(\w+): ([\d,]+)", line)) for line in partitions]
    assert [row["Partition"] for row in rows] == ["0", "1", "2"]
    for row in rows:
        replicas, in_sync = row["Replicas"].split(","), row["Isr"].split(",")
        assert (row["Leader"], len(set(replicas))) == (replicas[0], brokers)
        assert sorted(in_sync) == sorted(replicas)
    for problem in ("--under-replicated-partitions", "--unavailable-partitions"):
        assert topics("--describe", "--topic", topic, problem).lines == []


@pytest.mark.no_kill("asks one broker by its id")
def test_kafka_configs_describes_the_broker(java, bootstrap):
    where = ("--bootstrap-server", bootstrap)
    done = java.ok(CLUSTER, "list-endpoints", *where)
    entity = ("--entity-type", "brokers", "--entity-name", done.rows()[0]["ID"])
    described = java.ok(CONFIGS, *where, "--describe", *entity, "--all")
    values = dict(re.findall(r"^  ([\w.]+)=(\S*) sensitive=", described.out, re.MULTILINE))
    assert values["node.id"] == entity[-1]
    assert values["transaction.state.log.num.partitions"] == "4"
    assert values["group.initial.rebalance.delay.ms"] == "0"
    assert values["message.max.bytes"] == "1048588"
    assert values["transactional.id.expiration.ms"] == "604800000"


@pytest.mark.no_kill("a broker that is down tells nothing of its directory")
def test_kafka_log_dirs_knows_the_size_of_each_partition(java, bootstrap, unique):
    topic = create_topic(bootstrap, unique("sized"), 2)
    where = ("--bootstrap-server", bootstrap)

    def sizes() -> dict[str, int]:
        done = java.ok(LOG_DIRS, *where, "--describe", "--topic-list", topic)
        described = json.loads(done.lines[-1])["brokers"]
        assert len(described) == len(ports_of(bootstrap))
        (found,) = {of_one(*each["logDirs"]) for each in described}
        return dict(found)

    def of_one(folder: dict) -> tuple[tuple[str, int], ...]:
        assert folder["error"] is None
        assert all(p["offsetLag"] == 0 and not p["isFuture"] for p in folder["partitions"])
        return tuple(sorted((each["partition"], each["size"]) for each in folder["partitions"]))

    wait_for(sizes, {f"{topic}-0": 0, f"{topic}-1": 0})
    produce_values(bootstrap, topic, ["v"], partition=1)
    # A record of key and value "v" is a batch of 61 bytes and a record of 9.
    assert sizes() == {f"{topic}-0": 0, f"{topic}-1": 70}


def test_kafka_broker_api_versions_finds_all_that_a_client_of_4_4_uses(java, bootstrap):
    done = java.ok(API_VERSIONS, "--bootstrap-server", bootstrap)
    usable = dict(re.findall(r"(\w+)\(\d+\): .*\[usable: (\d+)\]", done.out))
    expected = {
        "Produce": 13, "Fetch": 18, "ListOffsets": 11, "Metadata": 13, "OffsetCommit": 10,
        "OffsetFetch": 10, "FindCoordinator": 6, "JoinGroup": 9, "InitProducerId": 5,
        "AddPartitionsToTxn": 5, "EndTxn": 5, "TxnOffsetCommit": 6, "WriteTxnMarkers": 2,
        "DescribeTopicPartitions": 0, "ListTransactions": 2, "DescribeTransactions": 0,
    }  # fmt: skip
    assert {name: int(usable[name]) >= least for name, least in expected.items()} == dict.fromkeys(
        expected, True
    )


def test_kafka_features_says_that_transactions_are_of_version_2(java, bootstrap):
    done = java.ok(FEATURES, "--bootstrap-server", bootstrap, "describe")
    (line,) = [line for line in done.lines if "transaction.version" in line]
    assert re.search(r"SupportedMaxVersion: 2\s+FinalizedVersionLevel: 2\s", line)


@pytest.mark.no_kill("tells which brokers are there")
def test_kafka_cluster_says_its_id_and_its_brokers(java, bootstrap):
    where = ("--bootstrap-server", bootstrap)
    (line,) = java.ok(CLUSTER, "cluster-id", *where).lines
    assert re.fullmatch(r"Cluster ID: [\w-]{22}", line)
    rows = java.ok(CLUSTER, "list-endpoints", *where).rows()
    assert len(rows) == len(ports_of(bootstrap))
    assert {(row["STATE"], row["ENDPOINT_TYPE"]) for row in rows} == {("unfenced", "broker")}
