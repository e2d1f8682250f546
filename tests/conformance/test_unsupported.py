"""Requests that broker_sim does not support: each client reports its own error for it, at once.

An API that ApiVersions does not name is an UnsupportedVersionException in the Java client and
_UNSUPPORTED_FEATURE in librdkafka, before anything is sent. On Apache Kafka all of these work.
"""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient
from support.brokers.probe import exchange
from support.raw.raw import Connection

JAVA = {
    "quorum": ("org.apache.kafka.tools.MetadataQuorumCommand", ["describe", "--status"]),
    "reassignments": ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", ["--list"]),
    "elections": (
        "org.apache.kafka.tools.LeaderElectionCommand",
        ["--election-type", "preferred", "--all-topic-partitions"],
    ),
    "tokens": ("org.apache.kafka.tools.DelegationTokenCommand", ["--describe"]),
    "features": (
        "org.apache.kafka.tools.FeatureCommand",
        ["upgrade", "--feature", "transaction.version=1"],
    ),
    "share groups": ("org.apache.kafka.tools.consumer.group.ShareGroupCommand", ["--list"]),
}
"""Commands that a person would run; ListGroups answers the last with an empty list of share groups.
"""


@pytest.fixture
def ours(shared_brokers):
    """broker_sim alone: Apache Kafka can do all of this."""
    return shared_brokers("broker_sim")


@pytest.mark.parametrize("what", sorted(set(JAVA) - {"share groups"}))
def test_the_java_tools_say_that_the_broker_does_not_support_it(java, ours, tmp_path, what):
    main_class, words = JAVA[what]
    server = ["--bootstrap-server", ours.bootstrap_servers]
    if what == "tokens":
        empty = tmp_path / "client.properties"
        empty.touch()
        words = [*words, "--command-config", str(empty)]
    done = java.run(main_class, *server, *words, timeout_s=40)
    said = done.out + done.err
    assert "UnsupportedVersion" in said or "does not support" in said, done


def test_share_groups_are_an_empty_list(java, ours):
    main_class, words = JAVA["share groups"]
    done = java.run(main_class, "--bootstrap-server", ours.bootstrap_servers, *words, timeout_s=40)
    assert (done.code, done.lines) == (0, []), done


def test_librdkafka_says_that_the_broker_does_not_support_it(ours):
    admin = AdminClient({"bootstrap.servers": ours.bootstrap_servers})
    with pytest.raises(KafkaException) as caught:
        admin.elect_leaders(ElectionType.PREFERRED).result()
    assert caught.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE


@pytest.mark.parametrize("api_key", [29, 30, 43, 45, 55, 57, 68, 71, 78, 999, -1])
def test_a_client_that_asks_all_the_same_is_disconnected_and_nobody_else(ours, api_key):
    """Apache Kafka, too, disconnects a client whose API key or version it does not know."""
    with Connection(ours.port) as asking, Connection(ours.port) as other:
        frame = struct.pack(">hhih", api_key, 0, 1, -1)
        asking.send_bytes(struct.pack(">i", len(frame)) + frame)
        assert asking.closed_by_peer()
        versions = struct.pack(">hhih", 18, 0, 7, -1)
        assert struct.unpack_from(">i", exchange(other.socket, versions)) == (7,)


def test_librdkafka_s_share_consumer_says_that_the_broker_has_no_share_groups(ours, unique):
    subscriber = ShareConsumer(
        {"bootstrap.servers": ours.bootstrap_servers, "group.id": unique("s")}
    )
    subscriber.subscribe([unique("topic")])
    with pytest.raises(KafkaException) as failed:
        for _ in range(20):
            assert not subscriber.poll(0.5)
    error = failed.value.args[0]
    assert (error.fatal(), error.code()) == (True, KafkaError.UNSUPPORTED_VERSION)
    subscriber.close()
