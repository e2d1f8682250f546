"""The configuration table: Kafka's names, typed values, errors that name what is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from broker_sim.core.config import (
    BROKER_CONFIG,
    DYNAMIC_CONFIGS,
    TOPIC_CONFIG,
    BrokerConfig,
    ConfigError,
    ConfigSource,
    format_value,
    parse_properties,
    parse_topic_config,
    topic_config_value,
)


@pytest.mark.parametrize("name", BROKER_CONFIG)
def test_every_default_is_allowed_by_its_own_validator(name):
    key = BROKER_CONFIG[name]
    assert key.parse(format_value(key.default)) == key.default
    assert key.doc


@pytest.mark.parametrize("name", TOPIC_CONFIG)
def test_every_topic_option_has_the_default_of_its_broker_option(name):
    entry = TOPIC_CONFIG[name]
    if entry.synonym is not None:
        assert entry.key.default == BROKER_CONFIG[entry.synonym].default
    assert entry.key.doc


@pytest.mark.parametrize("name", sorted(DYNAMIC_CONFIGS))
def test_what_may_change_while_the_broker_runs_is_in_the_table(name):
    assert name in BROKER_CONFIG


def test_a_value_set_for_this_broker_wins_over_all_brokers_and_these_over_the_start():
    config = BrokerConfig({"message.max.bytes": "5000"})
    sources = ConfigSource
    assert config.set_dynamic({"message.max.bytes": "6000"}, {}) == []
    assert config.integer("message.max.bytes") == 6000
    config.set_dynamic({"message.max.bytes": "6000"}, {"message.max.bytes": "7000"})
    assert config.integer("message.max.bytes") == 7000
    assert config.sources("message.max.bytes") == [
        (sources.DYNAMIC_BROKER, 7000),
        (sources.DYNAMIC_DEFAULT_BROKER, 6000),
        (sources.STATIC_BROKER, 5000),
        (sources.DEFAULT, 1_048_588),
    ]
    config.set_dynamic({}, {})
    assert config.integer("message.max.bytes") == 5000


def test_dynamic_values_of_another_version_are_named_and_have_no_effect():
    config = BrokerConfig()
    dynamic = {"no.such": "1", "node.id": "7", "max.connections": "x", "num.io.threads": "4"}
    assert config.set_dynamic({}, dynamic) == ["no.such", "node.id", "max.connections"]
    assert (config.integer("node.id"), config.integer("num.io.threads")) == (0, 4)


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_a_time_wins(given, retention_ms):
    assert BrokerConfig(given).integer("log.retention.ms") == retention_ms


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "", ""),
        ("cleanup.policy", "delete, compact,delete", "delete,compact"),
        ("min.cleanable.dirty.ratio", " .25 ", 0.25),
        ("retention.ms", "+5", 5),
        ("retention.ms", "\u0663", 3),
        ("retention.bytes", "-7", -7),
        ("compression.gzip.level", " 05 ", 5),
        ("preallocate", "TRUE", True),
    ],
)
def test_values_are_read_as_kafka_reads_them(name, text, value):
    assert parse_topic_config(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "delete,shrink"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("retention.ms", "1_000"),
        ("retention.ms", "9" * 5000),
        ("retention.ms", "1.0"),
        ("segment.bytes", "1048575"),
    ],
)
def test_values_that_kafka_refuses_are_refused(name, text):
    with pytest.raises(ConfigError, match=name):
        parse_topic_config(name, text)


def test_large_doubles_are_printed_as_kafka_prints_them():
    assert format_value(0.5) == "0.5"
    assert format_value(1.7976931348623157e308) == "1.7976931348623157E308"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num.partitons", "3", "did you mean num.partitions"),
        ("num.partitions", "none", "whole number"),
        ("num.partitions", "0", "between 1 and"),
        ("num.partitions", str(2**31), "between 1 and"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.cleanup.policy", "keep", "one of delete"),
        ("log.segment.bytes", "1024", "between 1048576 and"),
        ("transaction.version", "3", "between 0 and 2"),
    ],
)
def test_a_wrong_option_is_refused_and_named(name, value, says):
    with pytest.raises(ConfigError, match=name) as caught:
        BrokerConfig({name: value})
    assert says in str(caught.value)


def test_a_topic_value_wins_over_the_brokers():
    config = BrokerConfig({"message.max.bytes": "5000"})
    assert topic_config_value("max.message.bytes", {}, config) == 5000
    assert topic_config_value("max.message.bytes", {"max.message.bytes": 7}, config) == 7


def test_an_unknown_topic_option_is_named():
    with pytest.raises(ConfigError, match=r"retention\.mss.*did you mean retention\.ms"):
        parse_topic_config("retention.mss", "1")


def test_properties_are_read_as_java_reads_them():
    text = "# one\n! two\n\n a = 1 \nb=x\\\n  y\nc=d=e\nf: g\nh i\nj=\\u00e9\\\\k\na=2\n"
    expected = {"a": "2", "b": "xy", "c": "d=e", "f": "g", "h": "i", "j": "é\\k"}
    assert parse_properties(text) == expected


def test_a_broken_escape_and_a_line_that_is_no_option_are_named():
    with pytest.raises(ConfigError, match=r"\\u12"):
        parse_properties("a=\\u12\n")
    with pytest.raises(ConfigError, match="nonsense"):
        BrokerConfig(parse_properties("node.id=1\nnonsense\n"))


def test_the_sample_file_is_valid_and_holds_defaults():
    from pathlib import Path

    path = Path(__file__).parents[5] / "conf" / "broker.properties"
    config = BrokerConfig(parse_properties(path.read_text()))
    assert all(config.value(name) == BrokerConfig().value(name) for name in BROKER_CONFIG)


def test_a_start_without_a_file_of_properties_loads_neither_http_nor_xml():
    say = "import sys, simulation.cli, broker_sim.core.broker; print(*sys.modules)"
    asked = [sys.executable, "-c", say]
    loaded = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    assert "broker_sim.core.broker" in loaded
    assert not {"javaproperties", "http.client", "xml.sax"}.intersection(loaded)
