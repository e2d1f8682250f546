"""What a request names twice: an answer is no thousand times its request, nor its work."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, request, struct

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
    message = request(ApiKey.DESCRIBE_CONFIGS, include_synonyms=True, include_documentation=True)

    def resource(*options: str) -> Any:
        keys = list(options) or None
        return struct(
            message, "DescribeConfigsResource", resource_type=2, resource_name="orders",
            configuration_keys=keys,
        )  # fmt: skip

    message.resources = [resource("retention.ms"), resource("segment.ms")] * COUNT
    (found,) = broker.ask(message, 4).results
    assert [config.name for config in found.configs] == ["retention.ms", "segment.ms"]
    message.resources.append(resource())
    (found,) = broker.ask(message, 4).results
    assert len(found.configs) > 20


def test_groups_transactions_and_producers_are_described_once(broker):
    found = answered(broker, ApiKey.DESCRIBE_GROUPS, 5, "groups", groups=["a", "b"] * COUNT)
    assert [group.group_id for group in found] == ["a", "b"]
    found = answered(
        broker, ApiKey.DESCRIBE_TRANSACTIONS, 0, "transaction_states",
        transactional_ids=["a", "b"] * COUNT,
    )  # fmt: skip
    assert [each.transactional_id for each in found] == ["a", "b"]
    message = request(ApiKey.DESCRIBE_PRODUCERS)
    message.topics = [
        struct(message, "TopicRequest", name="orders", partition_indexes=[0, 1, 0]),
        struct(message, "TopicRequest", name="orders", partition_indexes=[1, 2]),
    ]
    found = [
        (topic.name, [p.partition_index for p in topic.partitions])
        for topic in broker.ask(message, 0).topics
    ]
    assert found == [("orders", [0, 1, 2])]


def test_all_offsets_of_a_group_are_fetched_once(broker):
    message = request(ApiKey.OFFSET_FETCH, require_stable=False)

    def group(name: str) -> Any:
        return struct(message, "OffsetFetchRequestGroup", group_id=name, topics=None)

    message.groups = [group("a"), group("b")] * COUNT
    assert [each.group_id for each in broker.ask(message, 8).groups] == ["a", "b"]


def test_the_offsets_of_records_to_delete_are_made_durable_in_one_go(broker):
    for partition in range(3):
        broker.produce("orders", "a", "b", "c", partition=partition)
    message = request(ApiKey.DELETE_RECORDS, timeout_ms=1000)

    def topic(*wanted: tuple[int, int]) -> Any:
        partitions = [
            struct(message, "DeleteRecordsPartition", partition_index=index, offset=offset)
            for index, offset in wanted
        ]
        return struct(message, "DeleteRecordsTopic", name="orders", partitions=partitions)

    message.topics = [topic((0, 1), (1, 2), (0, 3), (7, 1)), topic((2, 9), (1, 1))]
    answers = broker.ask(message, 2).topics
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
