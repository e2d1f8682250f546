"""Topics are created, grown and deleted, or refused, as Apache Kafka does it: requests by hand."""

from __future__ import annotations

import uuid

import pytest
from support.brokers.probe import wait_until
from support.raw.raw import Connection
from support.raw.raw_admin import (
    ZERO_ID,
    create_partitions,
    create_topics,
    delete_topics,
    leaders,
    make_topic,
    new_topic,
    node_ids,
)

from txnlog_kafka.wire.error_codes import error_name

ONCE = pytest.mark.no_kill("a change whose answer is lost is refused when it is asked for again")


def errors(results) -> dict[str, str]:
    """Error names by topic."""
    return {name: error_name(result.error_code) for name, result in results.items()}


@ONCE
def test_counts_that_are_left_to_the_broker_are_answered(connection, unique):
    plain, default = unique("plain"), unique("default")
    found = create_topics(connection, new_topic(plain, 3, 1), new_topic(default))
    assert errors(found) == {plain: "NONE", default: "NONE"}
    assert (found[plain].num_partitions, found[plain].replication_factor) == (3, 1)
    assert (found[default].num_partitions, found[default].replication_factor) == (
        1,
        len(node_ids(connection)),
    ), "the cluster's default is a replica on each broker"
    assert found[plain].topic_id not in (ZERO_ID, found[default].topic_id)
    configs = {each.name: each for each in found[plain].configs}
    assert configs["cleanup.policy"].value == "delete"
    assert "internal.segment.bytes" not in configs


TOO_MANY = 99
"""Stands for one more than there are brokers."""

BAD_COUNTS = {
    "no partitions": ((0, 1), "INVALID_PARTITIONS"),
    "negative partitions": ((-2, 1), "INVALID_PARTITIONS"),
    "no replicas": ((1, 0), "INVALID_REPLICATION_FACTOR"),
    "negative replicas": ((1, -2), "INVALID_REPLICATION_FACTOR"),
    "more replicas than brokers": ((1, TOO_MANY), "INVALID_REPLICATION_FACTOR"),
    "neither partitions nor replicas": ((0, 0), "INVALID_REPLICATION_FACTOR"),
    "no partitions and more replicas than brokers": ((0, TOO_MANY), "INVALID_PARTITIONS"),
    "too many partitions": ((10_001, 1), "POLICY_VIOLATION"),
}


@ONCE
def test_counts_that_cannot_be_are_refused(connection, unique):
    name, found = unique("counts"), {}
    for case, ((partitions, factor), _) in BAD_COUNTS.items():
        real = len(node_ids(connection)) + 1 if factor == TOO_MANY else factor
        found |= {case: errors(create_topics(connection, new_topic(name, partitions, real)))[name]}
    assert found == {case: error for case, (_, error) in BAD_COUNTS.items()}
    assert errors(create_topics(connection, new_topic(name, 1, 1))) == {name: "NONE"}


def test_too_many_partitions_refuse_the_whole_request(connection, unique):
    topics = [new_topic(unique(f"many{index}"), 6_000, 1) for index in range(2)]
    found = create_topics(connection, *topics, validate_only=True)
    assert set(errors(found).values()) == {"POLICY_VIOLATION"}


NODE = 0
"""Stands for the id of a broker in the assignments below."""

ASSIGNMENTS = {
    "a partition count, too": ([(0, [NODE])], 1, -1, "INVALID_REQUEST"),
    "a replication factor, too": ([(0, [NODE])], -1, 1, "INVALID_REQUEST"),
    "a partition twice": ([(0, [NODE]), (0, [NODE])], -1, -1, "INVALID_REPLICA_ASSIGNMENT"),
    "a gap": ([(0, [NODE]), (2, [NODE])], -1, -1, "INVALID_REPLICA_ASSIGNMENT"),
    "from one": ([(1, [NODE])], -1, -1, "INVALID_REPLICA_ASSIGNMENT"),
    "a negative partition": ([(-1, [NODE])], -1, -1, "INVALID_REPLICA_ASSIGNMENT"),
    "an unknown broker": ([(0, [99])], -1, -1, "INVALID_REPLICA_ASSIGNMENT"),
    "a broker twice": ([(0, [NODE, NODE])], -1, -1, "INVALID_REPLICA_ASSIGNMENT"),
    "no replica": ([(0, [])], -1, -1, "INVALID_REPLICA_ASSIGNMENT"),
    "one good and one unknown": (
        [(0, [NODE]), (1, [NODE, 99])], -1, -1, "INVALID_REPLICA_ASSIGNMENT",
    ),
    "two good": ([(1, [NODE]), (0, [NODE])], -1, -1, "NONE"),
}  # fmt: skip


@ONCE
def test_assignments_by_hand_are_checked(connection, unique):
    node, name = node_ids(connection)[0], unique("assigned")
    found = {}
    for case, (pairs, partitions, factor, _) in ASSIGNMENTS.items():
        real = [(index, [node if b == NODE else b for b in brokers]) for index, brokers in pairs]
        result = create_topics(connection, new_topic(name, partitions, factor, assignments=real))
        found[case] = error_name(result[name].error_code)
    assert found == {case: row[3] for case, row in ASSIGNMENTS.items()}
    wait_until(lambda: leaders(connection, name) == 2, "both partitions")


BAD_NAMES = ["", ".", "..", "a/b", " a", "x" * 250, "ünï"]


def test_names_that_cannot_be_are_refused(connection):
    found = {}
    for name in BAD_NAMES:
        found |= errors(create_topics(connection, new_topic(name, 1, 1)))
    assert found == dict.fromkeys(BAD_NAMES, "INVALID_TOPIC_EXCEPTION")


def test_names_that_exist_collide_or_come_twice_are_refused(connection, unique):
    dotted, other = unique("dot.ted"), unique("other")
    make_topic(connection, dotted)
    under = dotted.replace(".", "_", 1)
    found = create_topics(
        connection,
        new_topic(dotted, 0, 0, configs={"no.such": "1"}),
        new_topic(under, 1, 1),
        new_topic(other, 1, 1),
        new_topic(other, 1, 1),
        new_topic("__cluster_metadata", 1, 1),
    )
    assert errors(found) == {
        dotted: "TOPIC_ALREADY_EXISTS",
        under: "INVALID_TOPIC_EXCEPTION",
        other: "INVALID_REQUEST",
        "__cluster_metadata": "INVALID_REQUEST",
    }
    assert leaders(connection, other) == 0


@ONCE
def test_names_in_one_request_are_not_compared_with_one_another(connection, unique):
    dotted = unique("twin.name")
    under = dotted.replace(".", "_", 1)
    found = create_topics(connection, new_topic(dotted, 1, 1), new_topic(under, 1, 1))
    assert errors(found) == {dotted: "NONE", under: "NONE"}


TOPIC_CONFIGS = {
    "unknown": ({"no.such": "1"}, "INVALID_CONFIG"),
    "null": ({"retention.ms": None}, "INVALID_CONFIG"),
    "no number": ({"retention.ms": "many"}, "INVALID_CONFIG"),
    "digits in groups": ({"retention.ms": "1_000"}, "INVALID_CONFIG"),
    "over 64 bits": ({"retention.ms": "9" * 30}, "INVALID_CONFIG"),
    "under the least": ({"segment.bytes": "1000"}, "INVALID_CONFIG"),
    "unknown choice": ({"message.timestamp.type": "Now"}, "INVALID_CONFIG"),
    "unknown element": ({"cleanup.policy": "delete,shrink"}, "INVALID_CONFIG"),
    "empty element": ({"cleanup.policy": "delete,"}, "INVALID_CONFIG"),
    "not together": (
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "INVALID_CONFIG",
    ),
    "no tiered storage": ({"remote.storage.enable": "true"}, "INVALID_CONFIG"),
    "no replicas": ({"leader.replication.throttled.replicas": "foo"}, "INVALID_CONFIG"),
    "no level": ({"compression.gzip.level": "0"}, "INVALID_CONFIG"),
    "ratio": ({"min.cleanable.dirty.ratio": "1.1"}, "INVALID_CONFIG"),
    "all replicas": ({"leader.replication.throttled.replicas": "*"}, "NONE"),
    "no policy": ({"cleanup.policy": ""}, "NONE"),
    "policies": ({"cleanup.policy": " compact , delete,delete "}, "NONE"),
    "small segments": ({"internal.segment.bytes": "2000"}, "NONE"),
    "codec": ({"compression.type": "zstd", "compression.zstd.level": "5"}, "NONE"),
    "signs and blanks": ({"retention.ms": " +5000 ", "preallocate": "TRUE"}, "NONE"),
}  # fmt: skip


@ONCE
def test_configurations_are_checked_before_counts(connection, unique):
    found = {}
    for index, (case, (configs, error)) in enumerate(TOPIC_CONFIGS.items()):
        name = unique(f"config{index}")
        counts = (1, 1) if error == "NONE" else (0, 0)
        result = create_topics(connection, new_topic(name, *counts, configs=configs))
        found[case] = error_name(result[name].error_code)
    assert found == {case: error for case, (_, error) in TOPIC_CONFIGS.items()}


def test_validation_alone_creates_nothing(connection, unique):
    name = unique("validated")
    found = create_topics(connection, new_topic(name, 3, 1), validate_only=True)
    assert errors(found) == {name: "NONE"}
    assert found[name].num_partitions == 3
    assert leaders(connection, name) == 0
    found = create_topics(connection, new_topic(name, 0, 1), validate_only=True)
    assert errors(found) == {name: "INVALID_PARTITIONS"}


GROWTH = {
    "as many": (2, None, "INVALID_PARTITIONS"),
    "fewer": (1, None, "INVALID_PARTITIONS"),
    "none": (0, None, "INVALID_PARTITIONS"),
    "negative": (-1, None, "INVALID_PARTITIONS"),
    "too few assignments": (4, [[NODE]], "INVALID_REPLICA_ASSIGNMENT"),
    "too many assignments": (3, [[NODE], [NODE]], "INVALID_REPLICA_ASSIGNMENT"),
    "no assignment": (3, [], "INVALID_REPLICA_ASSIGNMENT"),
    "an unknown broker": (3, [[99]], "INVALID_REPLICA_ASSIGNMENT"),
    "a broker twice": (3, [[NODE, NODE]], "INVALID_REPLICA_ASSIGNMENT"),
    "no replica": (3, [[]], "INVALID_REPLICA_ASSIGNMENT"),
    "one more": (3, None, "NONE"),
    "two more by hand": (5, [[NODE], [NODE]], "NONE"),
}


@ONCE
def test_topics_grow_and_never_shrink(connection, unique):
    node, name = node_ids(connection)[0], unique("growing")
    make_topic(connection, name, 2, replication_factor=1)
    assert create_partitions(connection, (name, 9, None), validate_only=True) == [(name, "NONE")]
    found = {}
    for case, (count, assignments, _) in GROWTH.items():
        real = assignments and [[node if b == NODE else b for b in row] for row in assignments]
        ((_, found[case]),) = create_partitions(
            connection, (name, count, real if assignments else assignments)
        )
    assert found == {case: row[2] for case, row in GROWTH.items()}
    wait_until(lambda: leaders(connection, name) == 5, "five partitions")


@ONCE
def test_growth_of_unknown_and_repeated_topics_is_refused(connection, unique):
    one, two, unknown = unique("one"), unique("two"), unique("unknown")
    make_topic(connection, one)
    make_topic(connection, two)
    found = create_partitions(
        connection, (one, 2, None), (one, 3, None), (two, 2, None), (unknown, 2, None)
    )
    assert found == sorted(
        [
            (one, "INVALID_REQUEST"),
            (two, "NONE"),
            (unknown, "UNKNOWN_TOPIC_OR_PARTITION"),
        ]
    )
    assert leaders(connection, one) == 1


@ONCE
def test_topics_are_deleted_by_name_and_by_id_once(connection, unique):
    by_name, by_id, old = unique("name"), unique("id"), unique("old")
    first = make_topic(connection, by_name)
    second = make_topic(connection, by_id)
    make_topic(connection, old)
    assert delete_topics(connection, (by_name, ZERO_ID)) == [(by_name, first, "NONE")]
    assert delete_topics(connection, (None, second)) == [(by_id, second, "NONE")]
    assert delete_topics(connection, (old, ZERO_ID), version=1) == [(old, ZERO_ID, "NONE")]
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert delete_topics(connection, (by_name, ZERO_ID)) == [(by_name, ZERO_ID, unknown)]
    assert delete_topics(connection, (None, second)) == [(None, second, "UNKNOWN_TOPIC_ID")]
    never = uuid.UUID(int=77)
    assert delete_topics(connection, (None, never)) == [(None, never, "UNKNOWN_TOPIC_ID")]


def test_deletions_that_name_no_topic_or_one_twice_are_refused(connection, unique):
    name = unique("kept")
    topic_id = make_topic(connection, name)
    refused = "INVALID_REQUEST"
    assert delete_topics(connection, (name, topic_id)) == [(name, topic_id, refused)]
    assert delete_topics(connection, (None, ZERO_ID)) == [(None, ZERO_ID, refused)]
    twice = [(name, ZERO_ID), (name, ZERO_ID)]
    assert delete_topics(connection, *twice) == [(name, ZERO_ID, refused)]
    assert delete_topics(connection, *twice, version=1) == [(name, ZERO_ID, refused)]
    ids = [(None, topic_id), (None, topic_id)]
    assert delete_topics(connection, *ids) == [(None, topic_id, refused)]
    both = [(name, ZERO_ID), (None, topic_id)]
    assert delete_topics(connection, *both) == [(name, topic_id, refused)]
    assert leaders(connection, name) == 1


def test_deletion_may_be_switched_off(new_broker, unique):
    broker = new_broker({"delete.topic.enable": "false"})
    with Connection(broker.port) as connection:
        name = unique("kept")
        make_topic(connection, name)
        found = delete_topics(connection, (name, ZERO_ID))
        assert [error for _, _, error in found] == ["TOPIC_DELETION_DISABLED"]
        found = delete_topics(connection, (name, ZERO_ID), version=2)
        assert [error for _, _, error in found] == ["INVALID_REQUEST"]
        assert leaders(connection, name) == 1
