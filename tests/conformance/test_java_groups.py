"""`kafka-consumer-groups` on both brokers: list, describe, reset."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from support.brokers.probe import wait_until
from support.clients.librdkafka import (
    committed_offsets,
    consumer,
    create_topic,
    produce_values,
)
from support.kafka.java_tools import GROUPS, Done, JavaHost

pytestmark = pytest.mark.kafka


class Groups:
    """A topic of two partitions, ten records each, a group at offsets 4 and 10, and the tool."""

    def __init__(self, java: JavaHost, bootstrap: str, names: Callable[[str], str]) -> None:
        self.java = java
        self.bootstrap = bootstrap
        self.group = names("group")
        self.topic = create_topic(bootstrap, names("grouped"), 2)
        for partition in range(2):
            produce_values(bootstrap, self.topic, map(str, range(10)), partition)
        # As a consumer outside the group's membership does.
        owner = consumer(self.bootstrap, self.group)
        places = [TopicPartition(self.topic, p, offset) for p, offset in enumerate((4, 10))]
        owner.commit(offsets=places, asynchronous=False)
        owner.close()

    def run(self, *words: object) -> Done:
        """Run kafka-consumer-groups on the broker."""
        return self.java.run(GROUPS, "--bootstrap-server", self.bootstrap, *words)

    def of(self, *words: object) -> Done:
        """The same with this group."""
        return self.run("--group", self.group, *words)


@pytest.fixture
def groups(java, bootstrap, unique) -> Groups:
    """A group with committed offsets and no members."""
    return Groups(java, bootstrap, unique)


def test_a_group_is_listed_with_state_and_type(groups):
    assert groups.group in groups.run("--list").lines
    states = {row["GROUP"]: row["STATE"] for row in groups.run("--list", "--state").rows()}
    assert states[groups.group] == "Empty"
    types = {row["GROUP"]: row["TYPE"] for row in groups.run("--list", "--type").rows()}
    assert types[groups.group] == "Classic"
    stable = groups.run("--list", "--state", "stable").rows()
    assert groups.group not in {row["GROUP"] for row in stable}


def test_an_empty_group_is_described_with_its_lag(groups):
    done = groups.of("--describe")
    columns = ("PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    lags = sorted(tuple(row[name] for name in columns) for row in done.rows())
    assert lags == [("0", "4", "10", "6"), ("1", "10", "10", "0")]
    assert f"Consumer group '{groups.group}' has no active members." in done.err
    (state,) = groups.of("--describe", "--state").rows()
    assert done.code == 0
    # The coordinator is host:port and id in brackets; the strategy is "-".
    assert (state["GROUP"], list(state.values())[-1]) == (groups.group, "0")
    assert "Empty" in state.values()


def test_a_member_is_described_with_its_partitions(groups):
    member = consumer(groups.bootstrap, groups.group, client_id="a-member")
    member.subscribe([groups.topic])
    wait_until(lambda: member.poll(0.05) is None and len(member.assignment()) == 2, "partitions")
    (row,) = groups.of("--describe", "--members", "--verbose").rows()
    assert row["CLIENT-ID"] == "a-member"
    assert row["CONSUMER-ID"].startswith("a-member-")
    assert row["HOST"] == "/127.0.0.1"
    assert row["#PARTITIONS"] == "2"
    assert f"{groups.topic}:0,1" in groups.of("--describe", "--members", "--verbose").out
    (state,) = groups.of("--describe", "--state").rows()
    assert "range" in state.values()
    assert "Stable" in state.values()
    owners = {row["CLIENT-ID"] for row in groups.of("--describe").rows()}
    assert owners == {"a-member"}
    member.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to-latest"], {0: 10, 1: 10}),
        (["--shift-by", -3], {0: 1, 1: 7}),
        (["--to-datetime", "2020-01-01T00:00:00.000"], {0: 0, 1: 0}),
    ],
)
def test_reset_offsets_moves_to(groups, words, expected):
    done = groups.of("--reset-offsets", "--topic", groups.topic, *words, "--execute")
    assert {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in done.rows()} == expected
    assert committed_offsets(groups.bootstrap, groups.group, groups.topic, 2) == expected
