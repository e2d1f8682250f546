"""Requests that name a thing many times: the broker answers and works once for each thing."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import TOPIC, BrokerOnDisk, request

from broker_sim.core.effects import WriteFile
from txnlog_kafka.wire.messages import ApiKey

COUNT = 50


@pytest.fixture
def broker() -> BrokerOnDisk:
    made = BrokerOnDisk()
    made.create_topic("orders", 3)
    return made


def answered(broker: BrokerOnDisk, key: ApiKey, version: int, field: str, /, **fields: Any) -> list:
    """The entries of an answer."""
    return list(getattr(broker.ask(request(key, **fields), version), field))


def test_a_resource_is_described_once_with_all_the_options_that_were_asked_for(broker):
    def described(*keys: list[str] | None) -> list[str]:
        orders = {"resource_type": TOPIC, "resource_name": "orders"}
        resources = [orders | {"configuration_keys": each} for each in keys]
        (found,) = answered(broker, ApiKey.DESCRIBE_CONFIGS, 4, "results", resources=resources)
        return [config.name for config in found.configs]

    asked = [["retention.ms"], ["segment.ms"]] * COUNT
    assert described(*asked) == ["retention.ms", "segment.ms"]
    assert len(described(*asked, None)) > 20


def test_groups_transactions_and_producers_are_described_once(broker):
    found = answered(broker, ApiKey.DESCRIBE_GROUPS, 5, "groups", groups=["a", "b"] * COUNT)
    assert [group.group_id for group in found] == ["a", "b"]
    found = answered(
        broker, ApiKey.DESCRIBE_TRANSACTIONS, 0, "transaction_states",
        transactional_ids=["a", "b"] * COUNT,
    )  # fmt: skip
    assert [each.transactional_id for each in found] == ["a", "b"]
    named = [{"name": "orders", "partition_indexes": each} for each in ([0, 1, 0], [1, 2])]
    (topic,) = answered(broker, ApiKey.DESCRIBE_PRODUCERS, 0, "topics", topics=named)
    assert (topic.name, [p.partition_index for p in topic.partitions]) == ("orders", [0, 1, 2])


def test_all_offsets_of_a_group_are_fetched_once(broker):
    groups = [{"group_id": name, "topics": None} for name in "ab"] * COUNT
    found = answered(broker, ApiKey.OFFSET_FETCH, 8, "groups", groups=groups)
    assert [each.group_id for each in found] == ["a", "b"]


def test_the_offsets_of_records_to_delete_are_made_durable_in_one_go(broker):
    for partition in range(3):
        broker.produce("orders", "a", "b", "c", partition=partition)
    wanted = [[(0, 1), (1, 2), (0, 3), (7, 1)], [(2, 9), (1, 1)]]
    topics = [
        {"name": "orders", "partitions": [{"partition_index": i, "offset": o} for i, o in each]}
        for each in wanted
    ]
    answers = answered(broker, ApiKey.DELETE_RECORDS, 2, "topics", topics=topics)
    found = [
        (p.partition_index, p.error_code, p.low_watermark)
        for each in answers
        for p in each.partitions
    ]
    # As in Kafka the last offset counts.
    assert sorted(found) == [(0, 0, 3), (1, 0, 1), (2, 1, -1), (7, 3, -1)]
    written = [op.path for op in broker.steps[-1].storage if isinstance(op, WriteFile)]
    assert written == ["log-start-offset-checkpoint.crc", "log-start-offset-checkpoint"]
    broker.kill()
    assert broker.fetch("orders", 3).log_start_offset == 3
