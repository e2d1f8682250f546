"""Configurations that change while the broker runs: durable first, then in force, or not at all."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk
from support.raw.raw_admin import (
    BROKER,
    DELETE,
    GROUP,
    SET,
    TOPIC,
    change_configs,
    create_topics,
    describe_configs,
    new_topic,
    replace_configs,
)

from broker_sim.core.config import BrokerConfig, ConfigError, ConfigSource, group_config_value
from broker_sim.core.controller.image import MetadataRecord
from broker_sim.core.controller.metadata_records import broker_configs_record
from broker_sim.core.effects import Append

METADATA = "__cluster_metadata-0/00000000000000000000.log"


def change(broker: BrokerOnDisk, kind: int, name: str, option: str, value: str | None) -> str:
    """Set an option incrementally, or delete it with the value None; return the error."""
    changes = [(option, DELETE if value is None else SET, value)]
    (error,) = change_configs(broker, (kind, name, changes))
    return error


def write(broker: BrokerOnDisk, record: MetadataRecord) -> None:
    """A record as another version may have written it."""
    broker.cause(lambda effects: broker.parts.metadata.commit([record], effects))


def limit(broker: BrokerOnDisk, topic: str) -> int:
    """The largest batch that the topic's log takes now."""
    return broker.log(topic).config.max_message_bytes


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
        sources = broker.parts.config.sources("message.max.bytes")
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
    assert broker.parts.image.broker_configs["7"] == {"message.max.bytes": "5"}
    assert limit(broker, "orders") == 1_048_588


def test_a_value_that_this_version_does_not_take_any_more_is_passed_over_at_the_start():
    broker = BrokerOnDisk()
    texts = {"message.max.bytes": "many", "node.id": "9", "max.connections": "7"}
    write(broker, broker_configs_record("0", texts))
    broker.kill()
    config = broker.parts.config
    assert (config.integer("node.id"), config.integer("max.connections")) == (0, 7)
    assert config.integer("message.max.bytes") == 1_048_588


@pytest.mark.parametrize("name", ["0", ""])
def test_a_change_that_is_refused_leaves_no_record(name):
    broker = BrokerOnDisk()
    before = broker.disk.size_bytes(METADATA)
    assert change(broker, BROKER, name, "num.partitions", "4") == "INVALID_REQUEST"
    assert change(broker, BROKER, name, "no.such", "4") == "INVALID_REQUEST"
    assert change(broker, TOPIC, "nowhere", "segment.ms", "4") == "UNKNOWN_TOPIC_OR_PARTITION"
    after = broker.disk.size_bytes(METADATA)
    assert before == after


def test_topics_of_one_request_come_to_be_together_or_not_at_all():
    """The topics are one record batch: a crash before its flush leaves no topic."""
    broker = BrokerOnDisk()
    names = ("one", "two", "three")
    results = create_topics(broker, *(new_topic(name, 1) for name in names))
    assert [each.error_code for each in results.values()] == [0, 0, 0]
    written = broker.steps[-1].storage
    assert sum(isinstance(each, Append) and each.path == METADATA for each in written) == 1
    broker.kill()
    assert set(broker.parts.image.topics) == {*names}


SESSION, BEAT, INTERVAL = (
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)  # fmt: skip


def group_values(broker: BrokerOnDisk, name: str = "g") -> dict[str, tuple[str, int]]:
    """(value, source) of all options of a group."""
    error, found = describe_configs(broker, GROUP, name)
    assert error == "NONE"
    return {option: (each.value, each.config_source) for option, each in found.items()}


def in_force(broker: BrokerOnDisk, option: str) -> int:
    """The value that the coordinator of the group `g` goes by."""
    parts = broker.parts
    return group_config_value(option, parts.image.group_configs.get("g", {}), parts.config)


def test_options_of_a_group_are_its_own_or_the_broker_s_and_survive_a_kill():
    broker = BrokerOnDisk({"group.consumer.max.session.timeout.ms": 90_000})
    assert change(broker, GROUP, "g", SESSION, "80000") == "NONE"
    assert change(broker, GROUP, "h", INTERVAL, "0") == "NONE"
    for _ in range(2):
        assert group_values(broker) == {
            INTERVAL: ("1000", 5), BEAT: ("5000", 5), SESSION: ("80000", 8),
        }  # fmt: skip
        broker.kill()
    assert replace_configs(broker, (GROUP, "g", [(BEAT, "6000")])) == ["NONE"]
    assert group_values(broker)[SESSION] == ("45000", 5)
    assert change(broker, GROUP, "g", BEAT, None) == "NONE"
    assert set(broker.parts.image.group_configs) == {"h"}


@pytest.mark.parametrize(
    ("name", "option", "value", "error"),
    [
        ("", SESSION, "50000", "INVALID_REQUEST"),
        ("g", SESSION, "44999", "INVALID_CONFIG"),
        ("g", SESSION, "60001", "INVALID_CONFIG"),
        ("g", SESSION, "soon", "INVALID_CONFIG"),
        ("g", BEAT, "4999", "INVALID_CONFIG"),
        ("g", INTERVAL, "15001", "INVALID_CONFIG"),
        ("g", "share.session.timeout.ms", "50000", "INVALID_CONFIG"),
    ],
)
def test_an_option_of_a_group_stays_within_the_limits_of_the_broker(name, option, value, error):
    broker = BrokerOnDisk()
    assert change(broker, GROUP, name, option, value) == error
    assert broker.parts.image.group_configs == {}


def test_limits_that_were_moved_cap_the_values_in_force():
    broker = BrokerOnDisk()
    assert change(broker, GROUP, "g", SESSION, "60000") == "NONE"
    narrow = {"group.consumer.max.session.timeout.ms": 50_000}
    later = BrokerOnDisk(narrow, disk=broker.disk)
    assert in_force(later, SESSION) == 50_000
    assert group_values(later)[SESSION] == ("60000", 8)


@pytest.mark.parametrize(
    "config",
    [
        {"group.consumer.session.timeout.ms": 44_999},
        {"group.consumer.max.heartbeat.interval.ms": 4_999},
        {"group.consumer.assignment.interval.ms": 15_001},
        {"group.consumer.min.session.timeout.ms": 1, "group.consumer.session.timeout.ms": 5_000},
        {"group.consumer.migration.policy": "sideways"},
    ],
)
def test_options_of_consumer_groups_that_do_not_go_together_are_refused_at_the_start(config):
    with pytest.raises(ConfigError):
        BrokerConfig(config)


def test_the_assignment_interval_of_all_groups_changes_while_the_broker_runs():
    broker = BrokerOnDisk()
    option = "group.consumer.assignment.interval.ms"
    assert change(broker, BROKER, "", option, "15001") == "INVALID_REQUEST"
    assert change(broker, BROKER, "", option, "0") == "NONE"
    assert in_force(broker, INTERVAL) == 0
