"""`kafka-consumer-groups` on both brokers: list, describe, reset, delete."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.brokers.probe import wait_for, wait_until
from support.clients.librdkafka import (
    committed_offsets,
    consumer,
    create_topic,
    produce_values,
    transactional,
)
from support.kafka.java_tools import GROUPS, Done, JavaHost

pytestmark = pytest.mark.kafka

TIMEOUT_S = 30.0


class Groups:
    """A topic of two partitions, ten records each, a group at offsets 4 and 10, and the tool."""

    def __init__(self, java: JavaHost, bootstrap: str, names: Callable[[str], str]) -> None:
        self.java = java
        self.bootstrap = bootstrap
        self.group = names("group")
        self.topic = create_topic(bootstrap, names("grouped"), 2)
        for partition in range(2):
            produce_values(bootstrap, self.topic, map(str, range(10)), partition)
        self.commit(4, 10)

    def commit(self, *offsets: int) -> None:
        """Commit as a consumer outside the group's membership does."""
        owner = consumer(self.bootstrap, self.group)
        places = [TopicPartition(self.topic, p, offset) for p, offset in enumerate(offsets)]
        owner.commit(offsets=places, asynchronous=False)
        owner.close()

    def run(self, *words: object) -> Done:
        """Run kafka-consumer-groups on the broker."""
        return self.java.run(GROUPS, "--bootstrap-server", self.bootstrap, *words)

    def of(self, *words: object) -> Done:
        """The same with this group."""
        return self.run("--group", self.group, *words)

    def reset(self, *words: object, topic: str | None = None) -> dict[int, int]:
        """Run --reset-offsets; the new offsets that it prints, by partition."""
        done = self.of("--reset-offsets", "--topic", topic or self.topic, *words)
        assert "Error" not in done.out, done
        return {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in done.rows()}

    @property
    def committed(self) -> dict[int, int]:
        """The group's committed offsets, asked by librdkafka."""
        return committed_offsets(self.bootstrap, self.group, self.topic, 2)

    def lags(self) -> dict[int, tuple[str, str, str]]:
        """Committed offset, end and lag by partition, as --describe prints them."""
        rows = [row for row in self.of("--describe").rows() if row["TOPIC"] == self.topic]
        columns = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
        return {int(row["PARTITION"]): tuple(row[name] for name in columns) for row in rows}


@pytest.fixture
def groups(java, bootstrap, unique) -> Groups:
    """A group with committed offsets and no members."""
    return Groups(java, bootstrap, unique)


@pytest.fixture
def member(groups) -> Iterator[Consumer]:
    """A member of the group that owns both partitions."""
    joined = consumer(groups.bootstrap, groups.group, client_id="a-member")
    joined.subscribe([groups.topic])

    def owns_both() -> bool:
        joined.poll(0.05)
        return len(joined.assignment()) == 2

    wait_until(owns_both, "both partitions")
    yield joined
    joined.close()


def test_a_group_is_listed_with_state_and_type(groups):
    assert groups.group in groups.run("--list").lines
    states = {row["GROUP"]: row["STATE"] for row in groups.run("--list", "--state").rows()}
    assert states[groups.group] == "Empty"
    types = {row["GROUP"]: row["TYPE"] for row in groups.run("--list", "--type").rows()}
    assert types[groups.group] == "Classic"
    stable = groups.run("--list", "--state", "stable").rows()
    assert groups.group not in {row["GROUP"] for row in stable}


def test_an_empty_group_is_described_with_its_lag(groups):
    assert groups.lags() == {0: ("4", "10", "6"), 1: ("10", "10", "0")}
    done = groups.of("--describe")
    assert f"Consumer group '{groups.group}' has no active members." in done.err
    (state,) = groups.of("--describe", "--state").rows()
    assert done.code == 0
    # The coordinator is host:port and id in brackets; the strategy is "-".
    assert (state["GROUP"], list(state.values())[-1]) == (groups.group, "0")
    assert "Empty" in state.values()


def test_the_lag_counts_up_to_the_end_and_not_to_the_last_stable_offset(groups, unique):
    writer = transactional(groups.bootstrap, unique("open"))
    writer.begin_transaction()
    writer.produce(groups.topic, "open", partition=1)
    assert writer.flush(TIMEOUT_S) == 0
    assert groups.lags()[1] == ("10", "11", "1")
    writer.abort_transaction(TIMEOUT_S)
    # The abort is answered before its marker is in the log.
    wait_for(lambda: groups.lags()[1], ("10", "12", "2"))


def test_a_member_is_described_with_its_partitions(groups, member):
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


def test_an_unknown_group_is_refused(groups, unique):
    done = groups.run("--describe", "--group", unique("absent"))
    assert "GroupIdNotFound" in done.errors


def test_reset_offsets_only_says_what_it_would_do_unless_told_to_execute(groups):
    before = groups.committed
    assert groups.reset("--to-earliest", "--dry-run") == {0: 0, 1: 0}
    assert groups.committed == before == {0: 4, 1: 10}
    assert groups.reset("--to-earliest", "--execute") == {0: 0, 1: 0}
    assert groups.committed == {0: 0, 1: 0}
    assert groups.lags() == {0: ("0", "10", "10"), 1: ("0", "10", "10")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to-latest"], {0: 10, 1: 10}),
        (["--to-offset", 7], {0: 7, 1: 7}),
        # What is outside the log is brought into it.
        (["--to-offset", 99], {0: 10, 1: 10}),
        (["--shift-by", -3], {0: 1, 1: 7}),
        (["--shift-by", 99], {0: 10, 1: 10}),
        (["--to-current"], {0: 4, 1: 10}),
        (["--to-datetime", "2020-01-01T00:00:00.000"], {0: 0, 1: 0}),
        (["--by-duration", "P1D"], {0: 0, 1: 0}),
    ],
)
def test_reset_offsets_moves_to(groups, words, expected):
    assert groups.reset(*words, "--execute") == expected
    assert groups.committed == expected


def test_reset_offsets_moves_one_partition_and_makes_a_new_group(groups, unique):
    assert groups.reset("--to-offset", 2, "--execute", topic=f"{groups.topic}:1") == {1: 2}
    assert groups.committed == {0: 4, 1: 2}
    fresh = unique("fresh")
    words = ["--topic", groups.topic, "--to-offset", 5, "--execute"]
    assert groups.run("--reset-offsets", "--group", fresh, *words).code == 0
    assert committed_offsets(groups.bootstrap, fresh, groups.topic, 2) == {0: 5, 1: 5}


def test_reset_offsets_goes_by_a_file_that_it_wrote(groups, tmp_path):
    exported = groups.of("--reset-offsets", "--all-topics", "--to-current", "--export")
    path = tmp_path / "offsets.csv"
    path.write_text("\n".join(exported.lines) + "\n")
    groups.reset("--to-earliest", "--execute")
    done = groups.of("--reset-offsets", "--from-file", path, "--execute")
    assert done.code == 0
    assert groups.committed == {0: 4, 1: 10}


def test_a_group_with_members_is_not_reset_deleted_or_robbed_of_its_offsets(groups, member):
    words = ("--reset-offsets", "--topic", groups.topic, "--to-earliest", "--execute")
    refused = groups.of(*words)
    assert "current state is Stable" in refused.out + refused.err
    assert "GroupNotEmpty" in groups.of("--delete").errors
    robbed = groups.of("--delete-offsets", "--topic", groups.topic)
    assert "GroupSubscribedToTopic" in robbed.errors
    assert groups.committed == {0: 4, 1: 10}


def test_offsets_are_deleted_one_partition_at_a_time(groups):
    done = groups.of("--delete-offsets", "--topic", f"{groups.topic}:0")
    assert re.search(rf"{groups.topic}\s+0\s+Successful", done.out)
    assert groups.committed == {1: 10}
    assert groups.of("--delete-offsets", "--topic", groups.topic).code == 0
    assert groups.committed == {}


def test_a_group_is_deleted_once(groups):
    assert "was successful" in groups.of("--delete").out
    assert groups.group not in groups.run("--list").lines
    assert "GroupIdNotFound" in groups.of("--delete").errors
    assert groups.committed == {}
