"""Fetch requests that name a replica, to the leader: no broker of this id is its follower."""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.librdkafka import create_topic, produce_values
from support.raw.raw import Connection, message_class
from support.raw.routed import leader

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

REQUEST = message_class(ApiKey.FETCH)
NAMED_IN_HEADER, NAMED_IN_STATE, NEWEST = 12, 15, 18
"""Versions where the replica's id is a field of the request, and of its replica state (KIP-903)."""


def ask(connection: Connection, topic: str, version: int, replica_id: int) -> Any:
    named: dict[str, Any] = {"replica_id": replica_id}
    if version >= NAMED_IN_STATE:
        named = {"replica_state": REQUEST.ReplicaState(replica_id=replica_id, replica_epoch=-1)}
        metadata = message_class(ApiKey.METADATA)
        wanted = metadata(topics=[metadata.MetadataRequestTopic(topic_id=None, name=topic)])
        (known,) = connection.ask(wanted, 12).topics
        place: dict[str, Any] = {"topic_id": known.topic_id}
    else:
        place = {"topic": topic}
    partition = REQUEST.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    message = REQUEST(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=[], rack_id="",
        topics=[REQUEST.FetchTopic(partitions=[partition], **place)], **named,
    )  # fmt: skip
    return connection.ask(message, version).responses[0].partitions[0]


@pytest.mark.parametrize("version", [NAMED_IN_HEADER, NAMED_IN_STATE, NEWEST])
@pytest.mark.no_kill("asks the leader of the moment once")
def test_ids_below_0_are_those_of_consumers_and_another_one_is_no_replica(broker, unique, version):
    topic = create_topic(broker.bootstrap_servers, unique("replicas"))
    produce_values(broker.bootstrap_servers, topic, ["a"], partition=0)
    with leader(broker, topic) as connection:
        found = {}
        for replica_id in (-1, -2, 77):
            entry = ask(connection, topic, version, replica_id)
            found[replica_id] = ErrorCode(entry.error_code).name, bool(entry.records)
    read = "NONE", True
    assert found == {-1: read, -2: read, 77: ("NOT_LEADER_OR_FOLLOWER", False)}
