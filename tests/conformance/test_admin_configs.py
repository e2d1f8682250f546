"""Configurations are changed, described and refused as Apache Kafka does it: requests by hand."""

from __future__ import annotations

import pytest
from support.brokers.probe import wait_for, wait_until
from support.raw.raw import Connection, RawProducer
from support.raw.raw_admin import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    change_configs,
    describe_configs,
    make_topic,
    node_ids,
    replace_configs,
)

from txnlog_kafka.wire.records import Record, encode_batch

DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = range(1, 6)


def sources(connection, kind: int, name: str, option: str) -> list[tuple[str, str, int]]:
    """(option, value, source) of every place with a value."""
    error, found = describe_configs(connection, kind, name, [option])
    assert error == "NONE"
    return [(s.name, s.value, s.source) for each in found.values() for s in each.synonyms]


def value(connection, kind: int, name: str, option: str) -> str | None:
    """The value in force, None for an option that is not listed."""
    _, found = describe_configs(connection, kind, name, [option])
    return found[option].value if option in found else None


CHANGES = {
    "set": ([("retention.ms", SET, "5000")], "NONE"),
    "delete": ([("retention.ms", DELETE, None)], "NONE"),
    "delete what is not set": ([("retention.ms", DELETE, "x")], "NONE"),
    "delete what is unknown": ([("no.such", DELETE, None)], "NONE"),
    "nothing": ([], "NONE"),
    "append to the default": ([("cleanup.policy", APPEND, "compact")], "NONE"),
    "append what is there": ([("cleanup.policy", APPEND, "compact,delete")], "NONE"),
    "append what cannot be": ([("cleanup.policy", APPEND, "shrink")], "INVALID_CONFIG"),
    "append nothing": ([("cleanup.policy", APPEND, "")], "INVALID_CONFIG"),
    "subtract": ([("cleanup.policy", SUBTRACT, "delete")], "NONE"),
    "subtract what is not there": ([("cleanup.policy", SUBTRACT, "delete")], "NONE"),
    "subtract the last": ([("cleanup.policy", SUBTRACT, "compact")], "NONE"),
    "append to no list": ([("retention.ms", APPEND, "5")], "INVALID_CONFIG"),
    "append to what is unknown": ([("no.such", APPEND, "5")], "INVALID_CONFIG"),
    "subtract from what is unknown": ([("no.such", SUBTRACT, "5")], "INVALID_CONFIG"),
    "set null": ([("retention.ms", SET, None)], "INVALID_REQUEST"),
    "append null": ([("cleanup.policy", APPEND, None)], "INVALID_REQUEST"),
    "set no number": ([("retention.ms", SET, "x")], "INVALID_CONFIG"),
    "set what is unknown": ([("no.such", SET, "x")], "INVALID_CONFIG"),
    "set over the range": ([("segment.bytes", SET, str(2**31))], "INVALID_CONFIG"),
    "one option twice": (
        [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)], "INVALID_REQUEST",
    ),
    "not together": (
        [("min.compaction.lag.ms", SET, "6"), ("max.compaction.lag.ms", SET, "5")],
        "INVALID_CONFIG",
    ),
    "no tiered storage": ([("remote.storage.enable", SET, "true")], "INVALID_CONFIG"),
    "no replica in sync": ([("min.insync.replicas", SET, "0")], "INVALID_CONFIG"),
    "one good and one bad": (
        [("segment.ms", SET, "77777"), ("retention.ms", SET, "x")], "INVALID_CONFIG",
    ),
}  # fmt: skip


def test_changes_of_a_topic_are_taken_or_refused_as_a_whole(connection, unique):
    topic = unique("changed")
    make_topic(connection, topic)
    found = {}
    for case, (changes, _) in CHANGES.items():
        (found[case],) = change_configs(connection, (TOPIC, topic, changes))
    assert found == {case: error for case, (_, error) in CHANGES.items()}
    wait_for(lambda: value(connection, TOPIC, topic, "cleanup.policy"), "")
    assert value(connection, TOPIC, topic, "segment.ms") == "604800000"


NAMES = {
    "empty": ("", "5", "INVALID_REQUEST"),
    "illegal": ("a/b", "x", "INVALID_TOPIC_EXCEPTION"),
    "unknown": ("never-made", "5", "UNKNOWN_TOPIC_OR_PARTITION"),
    "unknown with a bad value": ("never-made", "x", "INVALID_CONFIG"),
    "unknown with null": ("never-made", None, "INVALID_REQUEST"),
}


def test_values_are_checked_before_the_topic_is_looked_for(connection):
    found = {
        case: change_configs(connection, (TOPIC, name, [("segment.ms", SET, text)]))[0]
        for case, (name, text, _) in NAMES.items()
    }
    assert found == {case: error for case, (_, _, error) in NAMES.items()}


def test_a_resource_that_is_named_twice_is_not_changed(connection, unique):
    one, two = unique("one"), unique("two")
    make_topic(connection, one)
    make_topic(connection, two)
    found = change_configs(
        connection,
        (TOPIC, one, [("segment.ms", SET, "11111")]),
        (TOPIC, two, [("segment.ms", SET, "22222")]),
        (TOPIC, one, [("segment.ms", SET, "33333")]),
    )
    assert found == ["INVALID_REQUEST", "NONE", "INVALID_REQUEST"]
    wait_for(lambda: value(connection, TOPIC, two, "segment.ms"), "22222")
    assert value(connection, TOPIC, one, "segment.ms") == "604800000"


@pytest.mark.parametrize("kind", [0, 1, 3, 99, -2])
def test_resources_of_no_known_type_are_refused(connection, unique, kind):
    topic = unique("known")
    make_topic(connection, topic)
    good = (TOPIC, topic, [("segment.ms", SET, "66666")])
    found = change_configs(connection, (kind, "x", [("a", SET, "b")]), good)
    assert found == ["INVALID_REQUEST", "NONE"]
    assert replace_configs(connection, (kind, "x", [("a", "b")])) == ["INVALID_REQUEST"]


def test_validation_alone_changes_nothing(connection, unique):
    topic = unique("validated")
    make_topic(connection, topic)
    good, bad = ([("segment.ms", SET, text)] for text in ("99999", "x"))
    assert change_configs(connection, (TOPIC, topic, good), validate_only=True) == ["NONE"]
    assert change_configs(connection, (TOPIC, topic, bad), validate_only=True) == ["INVALID_CONFIG"]
    plan = (TOPIC, topic, [("retention.ms", "8000")])
    assert replace_configs(connection, plan, validate_only=True) == ["NONE"]
    cluster = (BROKER, "", [("message.max.bytes", SET, "5000")])
    assert change_configs(connection, cluster, validate_only=True) == ["NONE"]
    assert value(connection, TOPIC, topic, "segment.ms") == "604800000"
    assert value(connection, BROKER, "", "message.max.bytes") is None


REPLACEMENTS = {
    "no number": ([("retention.ms", "x")], "INVALID_CONFIG"),
    "unknown": ([("no.such", "x")], "INVALID_CONFIG"),
    "null": ([("retention.ms", None)], "INVALID_REQUEST"),
    "one option twice": ([("retention.ms", "1"), ("retention.ms", "2")], "INVALID_REQUEST"),
    "good": ([("retention.ms", "7000")], "NONE"),
}


def test_a_replacement_takes_back_what_it_does_not_name(connection, unique):
    topic = unique("replaced")
    make_topic(connection, topic, segment_ms="55555")
    found = {
        case: replace_configs(connection, (TOPIC, topic, pairs))[0]
        for case, (pairs, _) in REPLACEMENTS.items()
    }
    assert found == {case: error for case, (_, error) in REPLACEMENTS.items()}
    wait_for(lambda: value(connection, TOPIC, topic, "retention.ms"), "7000")
    assert value(connection, TOPIC, topic, "segment.ms") == "604800000"
    assert replace_configs(connection, (TOPIC, topic, [])) == ["NONE"]
    wait_for(lambda: value(connection, TOPIC, topic, "retention.ms"), "604800000")
    unknown = (TOPIC, unique("never"), [("retention.ms", "1")])
    assert replace_configs(connection, unknown) == ["UNKNOWN_TOPIC_OR_PARTITION"]


def test_the_sources_of_a_topics_values_are_listed_first_the_one_that_counts(connection, unique):
    topic = unique("sources")
    make_topic(connection, topic, retention_bytes="4444", retention_ms="5555")
    default = ("log.retention.bytes", "-1", DEFAULT)
    own = ("retention.bytes", "4444", DYNAMIC_TOPIC)
    assert sources(connection, TOPIC, topic, "retention.bytes") == [own, default]
    # The default of milliseconds is that of hours, which is another option.
    own = ("retention.ms", "5555", DYNAMIC_TOPIC)
    assert sources(connection, TOPIC, topic, "retention.ms") == [own]
    assert sources(connection, TOPIC, topic, "segment.ms") == []
    error, found = describe_configs(connection, TOPIC, topic, ["segment.bytes"], synonyms=False)
    assert (error, found["segment.bytes"].synonyms) == ("NONE", [])
    assert found["segment.bytes"].config_source == DEFAULT
    assert found["segment.bytes"].documentation is None


def test_options_are_described_by_type_text_and_permission(connection, unique):
    topic = unique("described")
    make_topic(connection, topic)
    error, found = describe_configs(connection, TOPIC, topic, [], documentation=True)
    assert (error, len(found)) == ("NONE", 37)
    kinds = {
        name: found[name].config_type
        for name in ("preallocate", "message.timestamp.type", "segment.bytes", "segment.ms",
                     "min.cleanable.dirty.ratio", "cleanup.policy")
    }  # fmt: skip
    assert list(kinds.values()) == [1, 2, 3, 5, 6, 7]
    assert all(each.documentation for each in found.values())
    assert not any(each.read_only or each.is_sensitive for each in found.values())
    node = str(node_ids(connection)[0])
    _, found = describe_configs(connection, BROKER, node, ["num.partitions", "message.max.bytes"])
    assert {name: each.read_only for name, each in found.items()} == {
        "num.partitions": True,
        "message.max.bytes": False,
    }
    assert describe_configs(connection, TOPIC, topic, ["no.such"]) == ("NONE", {})


@pytest.mark.one_broker("brokers of a cluster are given other defaults")
def test_the_numbers_of_all_topic_options_are_kafkas(broker, connection, unique):
    """The answer of Apache Kafka is the test's own expectation for the other broker."""
    topic = unique("defaults")
    make_topic(connection, topic)
    _, found = describe_configs(connection, TOPIC, topic)
    ours = {
        name: (each.value, each.config_type)
        for name, each in found.items()
        # The fixture of Apache Kafka sets these two.
        if name not in ("segment.index.bytes", "file.delete.delay.ms")
    }
    EVERY_BROKER.setdefault("defaults", ours)
    assert ours == EVERY_BROKER["defaults"]


EVERY_BROKER: dict[str, dict] = {}
"""Answers of the first broker, by question; the other brokers must give the same."""

VALUES = [
    "", " ", "0", "1", "-1", "-2", "-3", "5", "05", "+5", " 5 ", "5.0", "5e3", "0x10", "1_0", "1.",
    ".5", "-0.0", "1.0000001", "9223372036854775807", "9223372036854775808", "2147483647",
    "2147483648", "-2147483648", "-9223372036854775808", "1048576", "1048575", "true", "FALSE",
    "yes", "null", "delete", "compact", "delete,compact", "compact, delete", "delete,,compact",
    "none", "gzip", "GZIP", "producer", "CreateTime", "logappendtime", "*", "0:1", "0:1,1:2",
    "0:1;1:2", ":", "a,b", "13", "22", "23", "-131072", "-131073", "17", "18", "9", "10", "7 7",
    "\t7\n", "\u0663", "9" * 400,
]  # fmt: skip
"""Texts that are a value of some option, or nearly."""

BROKER_OPTIONS = (
    "compression.type", "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size",
    "log.cleaner.min.cleanable.ratio", "log.cleanup.policy", "log.index.interval.bytes",
    "log.message.timestamp.type", "log.preallocate", "log.retention.bytes", "log.retention.ms",
    "log.roll.ms", "log.segment.bytes", "max.connections", "max.connections.per.ip",
    "message.max.bytes", "producer.id.expiration.ms", "transaction.partition.verification.enable",
)  # fmt: skip


def test_every_text_is_a_value_of_an_option_on_both_brokers_or_on_none(connection, unique):
    topic = unique("values")
    make_topic(connection, topic)
    _, options = describe_configs(connection, TOPIC, topic)
    places = [(TOPIC, topic, option) for option in sorted(options)]
    places += [(BROKER, "", option) for option in BROKER_OPTIONS]
    found = {}
    for kind, name, option in places:
        for text in VALUES:
            change = (kind, name, [(option, SET, text)])
            (found[kind, option, text],) = change_configs(connection, change, validate_only=True)
    assert set(found.values()) == {"NONE", "INVALID_CONFIG", "INVALID_REQUEST"}
    EVERY_BROKER.setdefault("values", found)
    assert found == EVERY_BROKER["values"]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "never-made", "UNKNOWN_TOPIC_OR_PARTITION"),
        (TOPIC, "a/b", "INVALID_TOPIC_EXCEPTION"),
        (TOPIC, "", "INVALID_TOPIC_EXCEPTION"),
        (BROKER, "77", "INVALID_REQUEST"),
        (BROKER, "x", "INVALID_REQUEST"),
    ],
)
def test_what_is_not_there_cannot_be_described(connection, kind, name, error):
    assert describe_configs(connection, kind, name) == (error, {})


BROKER_CHANGES = {
    "read-only": ([("num.partitions", SET, "5")], "INVALID_REQUEST"),
    "read-only in another unit": ([("log.retention.hours", SET, "5")], "INVALID_REQUEST"),
    "delete read-only": ([("num.partitions", DELETE, None)], "NONE"),
    "no number": ([("message.max.bytes", SET, "x")], "INVALID_REQUEST"),
    "under the least": ([("message.max.bytes", SET, "-5")], "INVALID_REQUEST"),
    "too small segments": ([("log.segment.bytes", SET, "1000")], "INVALID_REQUEST"),
    "null": ([("message.max.bytes", SET, None)], "INVALID_REQUEST"),
    "append to no list": ([("message.max.bytes", APPEND, "5")], "INVALID_CONFIG"),
    "append to what is unknown": ([("no.such", APPEND, "5")], "INVALID_CONFIG"),
    "delete what is unknown": ([("no.such", DELETE, "5")], "NONE"),
    "unknown operation": ([("message.max.bytes", 7, "5")], "INVALID_REQUEST"),
    "no connections": ([("max.connections", SET, "0")], "INVALID_REQUEST"),
}


@pytest.mark.parametrize("everywhere", [True, False])
def test_changes_of_a_broker_that_cannot_be_are_refused(connection, everywhere):
    name = "" if everywhere else str(node_ids(connection)[0])
    found = {
        case: change_configs(connection, (BROKER, name, changes))[0]
        for case, (changes, _) in BROKER_CHANGES.items()
    }
    assert found == {case: error for case, (_, error) in BROKER_CHANGES.items()}
    for other in ("77", "x"):
        change = (BROKER, other, [("message.max.bytes", SET, "5000")])
        assert change_configs(connection, change) == ["INVALID_REQUEST"]


def test_broker_values_have_layers_are_obeyed_at_once_and_survive(new_broker, unique):
    broker = new_broker()
    topic, small = unique("layers"), unique("small")
    with Connection(broker.port) as connection:
        node = str(node_ids(connection)[0])
        make_topic(connection, topic)
        make_topic(connection, small, max_message_bytes="500")
        option = "message.max.bytes"
        default = (option, "1048588", DEFAULT)
        every, this = (option, "2000", DYNAMIC_DEFAULT), (option, "3000", DYNAMIC_BROKER)
        assert produce(connection, topic, 2500) == "NONE"

        assert change_configs(connection, (BROKER, "", [(option, SET, "2000")])) == ["NONE"]
        wait_for(lambda: sources(connection, BROKER, "", option), [every])
        wait_for(lambda: produce(connection, topic, 2500), "MESSAGE_TOO_LARGE")
        assert sources(connection, TOPIC, topic, "max.message.bytes") == [every, default]

        assert change_configs(connection, (BROKER, node, [(option, SET, "3000")])) == ["NONE"]
        wait_for(lambda: sources(connection, BROKER, node, option), [this, every, default])
        wait_for(lambda: produce(connection, topic, 2500), "NONE")
        assert produce(connection, small, 2500) == "MESSAGE_TOO_LARGE"
    broker.restart()
    with Connection(broker.port) as connection:
        wait_for(lambda: sources(connection, BROKER, node, option), [this, every, default])
        wait_for(lambda: produce(connection, topic, 3500), "MESSAGE_TOO_LARGE")
        for name in (node, ""):
            assert change_configs(connection, (BROKER, name, [(option, DELETE, None)])) == ["NONE"]
        wait_for(lambda: sources(connection, BROKER, node, option), [default])
        wait_for(lambda: produce(connection, topic, 3500), "NONE")


def produce(connection, topic: str, size: int, *, timestamp: int = 1_700_000_000_000) -> str:
    """Produce one record of so many bytes, with a key; the error."""
    producer = RawProducer(connection, retries=False)
    batch = encode_batch([Record(b"k", b"x" * (size - 100), timestamp)])
    return producer.produce_bytes(topic, 0, batch)


def test_the_next_request_obeys_a_topics_new_values(connection, unique):
    topic = unique("live")
    make_topic(connection, topic)

    def set_now(option: str, text: str) -> list[str]:
        return change_configs(connection, (TOPIC, topic, [(option, SET, text)]))

    assert produce(connection, topic, 3000) == "NONE"
    assert set_now("max.message.bytes", "2000") == ["NONE"]
    wait_for(lambda: produce(connection, topic, 3000), "MESSAGE_TOO_LARGE")
    assert produce(connection, topic, 1900) == "NONE"
    assert set_now("message.timestamp.before.max.ms", "1000") == ["NONE"]
    wait_for(lambda: produce(connection, topic, 1900, timestamp=1), "INVALID_TIMESTAMP")
    assert set_now("message.timestamp.type", "LogAppendTime") == ["NONE"]
    wait_for(lambda: produce(connection, topic, 1900, timestamp=1), "NONE")


def test_min_insync_replicas_asks_for_no_more_than_the_partition_has(connection, unique):
    topic = unique("insync")
    make_topic(connection, topic, replication_factor=1, min_insync_replicas="2")
    assert produce(connection, topic, 200) == "NONE"


def test_segments_roll_and_go_by_the_new_values(new_broker, unique):
    broker = new_broker({"log.retention.check.interval.ms": "100"})
    topic = unique("rolling")
    partition = broker.data_dir / f"{topic}-0"
    with Connection(broker.port) as connection:
        # The records are of 2023.
        make_topic(connection, topic, retention_ms="-1")
        for _ in range(3):
            assert produce(connection, topic, 1000) == "NONE"
        assert len(list(partition.glob("*.log"))) == 1
        changes = [("internal.segment.bytes", SET, "1500")]
        assert change_configs(connection, (TOPIC, topic, changes)) == ["NONE"]

        def rolled() -> bool:
            assert produce(connection, topic, 1000) == "NONE"
            return len(list(partition.glob("*.log"))) > 2

        wait_until(rolled, "segments of the new size")
        back = [("retention.bytes", SET, "1500")]
        assert change_configs(connection, (TOPIC, topic, back)) == ["NONE"]
        wait_until(lambda: len(list(partition.glob("*.log"))) <= 2, "old segments to go")
