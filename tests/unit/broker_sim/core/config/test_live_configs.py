"""Configurations that change while the broker runs: durable first, then in force, or not at all."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, request, struct

from broker_sim.core.config import ConfigSource
from broker_sim.core.controller.image import MetadataRecord, broker_configs_record
from broker_sim.core.effects import Append, Effects
from txnlog_kafka.wire.errors import error_name
from txnlog_kafka.wire.messages import ApiKey

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


def change(broker: BrokerOnDisk, kind: int, name: str, option: str, value: str | None) -> str:
    """One incremental change; None deletes. The error."""
    message = request(ApiKey.INCREMENTAL_ALTER_CONFIGS, validate_only=False)
    operation = DELETE if value is None else SET
    alter = struct(message, "AlterableConfig", name=option, config_operation=operation, value=value)
    message.resources = [
        struct(
            message, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=[alter]
        )
    ]
    (answer,) = broker.ask(message, 1).responses
    return error_name(answer.error_code)


def write(broker: BrokerOnDisk, record: MetadataRecord) -> None:
    """A record as another version may have written it."""
    effects = Effects(broker.now_ms, broker.monotonic_ms)
    broker.broker.parts.metadata.commit([record], effects)
    for operation in effects.storage:
        broker.disk.apply(operation)


def limit(broker: BrokerOnDisk, topic: str) -> int:
    """The largest batch that the topic's log takes now."""
    log = broker.broker.parts.logs.get(topic, 0)
    assert log is not None
    return log.config.max_message_bytes


def test_a_value_for_all_brokers_a_value_for_this_one_and_a_topics_own_one_survive_a_kill():
    broker = BrokerOnDisk()
    broker.create_topic("plain")
    broker.create_topic("own", max_message_bytes="400")
    assert change(broker, BROKER, "", "message.max.bytes", "2000") == "NONE"
    assert (limit(broker, "plain"), limit(broker, "own")) == (2000, 400)
    assert change(broker, BROKER, "0", "message.max.bytes", "3000") == "NONE"
    broker.create_topic("later")
    for _ in range(2):
        assert [limit(broker, name) for name in ("plain", "own", "later")] == [3000, 400, 3000]
        sources = broker.broker.parts.config.sources("message.max.bytes")
        assert sources[0] == (ConfigSource.DYNAMIC_BROKER, 3000)
        broker.kill()
    assert change(broker, BROKER, "0", "message.max.bytes", None) == "NONE"
    assert change(broker, BROKER, "", "message.max.bytes", None) == "NONE"
    broker.kill()
    assert limit(broker, "plain") == 1_048_588


def test_a_value_of_another_broker_is_kept_and_not_obeyed():
    broker = BrokerOnDisk()
    broker.create_topic("orders")
    write(broker, broker_configs_record("7", {"message.max.bytes": "5"}))
    broker.kill()
    assert broker.broker.parts.image.broker_configs["7"] == {"message.max.bytes": "5"}
    assert limit(broker, "orders") == 1_048_588


def test_a_value_that_this_version_does_not_take_any_more_is_passed_over_at_the_start():
    broker = BrokerOnDisk()
    texts = {"message.max.bytes": "many", "node.id": "9", "max.connections": "7"}
    write(broker, broker_configs_record("0", texts))
    broker.kill()
    config = broker.broker.parts.config
    assert (config.integer("node.id"), config.integer("max.connections")) == (0, 7)
    assert config.integer("message.max.bytes") == 1_048_588


@pytest.mark.parametrize("name", ["0", ""])
def test_a_change_that_is_refused_leaves_no_record(name):
    broker = BrokerOnDisk()
    before = broker.disk.size_bytes("__cluster_metadata-0/00000000000000000000.log")
    assert change(broker, BROKER, name, "num.partitions", "4") == "INVALID_REQUEST"
    assert change(broker, BROKER, name, "no.such", "4") == "INVALID_REQUEST"
    assert change(broker, TOPIC, "nowhere", "segment.ms", "4") == "UNKNOWN_TOPIC_OR_PARTITION"
    after = broker.disk.size_bytes("__cluster_metadata-0/00000000000000000000.log")
    assert before == after


def test_topics_of_one_request_come_to_be_together_or_not_at_all():
    """They are one record batch: a crash before its flush leaves none of them."""
    broker = BrokerOnDisk()
    message = request(ApiKey.CREATE_TOPICS, timeout_ms=1, validate_only=False)
    message.topics = [
        struct(
            message, "CreatableTopic",
            name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[],
        )
        for name in ("one", "two", "three")
    ]  # fmt: skip
    results = broker.ask(message, 7).topics
    assert [each.error_code for each in results] == [0, 0, 0]
    appended = [
        operation
        for operation in broker.steps[-1].storage
        if isinstance(operation, Append)
        and operation.path.startswith("__cluster_metadata-0/")
        and operation.path.endswith(".log")
    ]
    assert len(appended) == 1
    broker.kill()
    assert set(broker.broker.parts.image.topics) == {"one", "two", "three"}
