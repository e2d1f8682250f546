"""A broker that throttles this connector's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.clients.librdkafka import create_topic, produce_values
from support.kafka.java_tools import CONFIGS, JavaHost

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.source.partition import RangePartition, read_ranges
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.settings import read_source_settings

PARTITIONS = 3
VALUES = [f"{n}-" + "x" * 1_000 for n in range(60)]


@pytest.mark.live
@pytest.mark.one_broker("each broker has rates of its own")
def test_a_read_that_is_over_its_quota_is_slowed_down_and_is_whole(
    broker: Any, java: JavaHost, unique: Callable[[str], str]
) -> None:
    servers, name = broker.bootstrap_servers, unique("over-its-quota")
    topic = create_topic(servers, unique("t"), PARTITIONS)
    for number in range(PARTITIONS):
        produce_values(servers, topic, VALUES, partition=number)
    quota = ["--entity-type", "clients", "--entity-name", name, "--bootstrap-server", servers]
    # A broker divides by ten seconds at least: the whole read is 18,000 bytes a second, or less if
    # the machine takes longer.
    done = java.run(CONFIGS, "--alter", "--add-config", "consumer_byte_rate=12000", *quota)
    assert done.code == 0, done
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.client.id": name}
    settings = read_source_settings(
        options | {"kafka.max.partition.fetch.bytes": "20000"}, streaming=False
    )
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    share = RangePartition(tuple(OffsetRange(p, 0, len(VALUES)) for p in places), servers)
    waits_s: list[float] = []
    client = client_for(settings.connection, servers)
    read = []
    for batch in read_ranges(settings, share):
        read += [value.decode() for value in batch["value"].to_pylist()]
        waits_s += [each.throttled_until_s for each in client._connections.values()]
    assert read == VALUES * PARTITIONS
    assert max(waits_s) > 0, "the broker has never asked for quiet"
