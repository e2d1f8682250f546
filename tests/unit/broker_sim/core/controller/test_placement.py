"""Placement of the replicas of new partitions."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.controller.placement import (
    check_assignment,
    place_replicas,
)
from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_kafka.wire.error_codes import ErrorCode

NO_RACKS = dict.fromkeys(range(5))


class JavaDraws:
    """`Random.nextInt(bound)` of Java over the generator of Kafka's own tests."""

    def __init__(self) -> None:
        self.state = 17

    def __call__(self, bound: int) -> int:
        while True:
            self.state = (self.state * 2862933555777941757 + 3037000493) % 2**64
            bits = self.state >> 33
            if bound & (bound - 1) == 0:
                return (bound * bits) >> 31
            found = bits % bound
            if bits - found + bound - 1 < 2**31:
                return found


def of_digits(text: str) -> list[tuple[int, ...]]:
    """ "01 12" as [(0, 1), (1, 2)]."""
    return [tuple(map(int, word)) for word in text.split()]


def test_replicas_are_placed_where_kafkas_own_test_expects_them():
    racks = {0: None, 3: None, 2: None, 1: None}
    assert place_replicas(racks, (), 5, 3, JavaDraws()) == of_digits("230 301 012 123 102")


def test_many_partitions_are_as_even_as_in_kafkas_own_test():
    placed = place_replicas(dict.fromkeys(range(4)), (), 200, 2, JavaDraws())
    expected = {"01": 14, "02": 22, "03": 14, "10": 17, "12": 17, "13": 16,
                "20": 13, "21": 17, "23": 20, "30": 20, "31": 19, "32": 11}  # fmt: skip
    assert Counter(f"{a}{b}" for a, b in placed) == expected


def test_racks_are_taken_in_turn_and_each_partition_begins_one_further():
    racks = {10: "1", 11: "1", 20: "2", 30: "3", 31: "3"}
    placed = place_replicas(racks, (), 3, 4, lambda _bound: 0)
    assert placed == [(10, 20, 30, 11), (20, 31, 11, 30), (30, 10, 20, 31)]


def test_brokers_without_a_rack_are_one_rack():
    placed = place_replicas({0: None, 1: "a", 2: None}, (), 2, 2, lambda _bound: 0)
    assert placed == [(0, 1), (1, 2)]


# Brokers by rack, those that are down, and placements, all from Kafka's StripedReplicaPlacerTest.
FENCED = {
    "none is needed": ([0, 1, 2, 3, 4], {1}, "3402 4023 0234 2340 0432"),
    "one is needed": ([1, 2, 3], {1}, "321 231 321 231"),
}
ONE_UP = {11: "1", 10: "1", 30: "3", 31: "3", 20: "2", 21: "2", 41: "4", 40: "4"}


@pytest.mark.parametrize("name", FENCED)
def test_brokers_that_are_down_come_last_as_in_kafkas_own_test(name):
    brokers, fenced, expected = FENCED[name]
    placed = of_digits(expected)
    racks = dict.fromkeys(brokers)
    assert place_replicas(racks, fenced, len(placed), len(placed[0]), JavaDraws()) == placed


def test_racks_with_brokers_that_are_down_are_taken_in_turn_as_in_kafkas_own_test():
    racks = {11: "1", 10: "1", 30: "3", 31: "3", 21: "2", 20: "2"}
    placed = place_replicas(racks, {20}, 3, 4, JavaDraws())
    assert placed == [(11, 21, 31, 10), (21, 30, 10, 20), (31, 11, 21, 30)]
    placed = place_replicas(ONE_UP, {30, 31, 20, 21, 40}, 3, 4, JavaDraws())
    assert placed == [(41, 11, 21, 30), (10, 20, 31, 41), (41, 21, 30, 11)]


def test_nothing_is_placed_when_all_brokers_are_down():
    with pytest.raises(TopicRefused, match="All brokers are down") as refused:
        place_replicas({10: "1", 11: "1"}, {10, 11}, 1, 1, JavaDraws())
    assert refused.value.error is ErrorCode.INVALID_REPLICATION_FACTOR


@given(st.data())
def test_replicas_are_distinct_over_as_many_racks_as_possible(data):
    names = st.sampled_from([None, "a", "b", "c"])
    racks = data.draw(st.dictionaries(st.integers(0, 30), names, min_size=1))
    fenced = data.draw(st.sets(st.sampled_from(sorted(racks)), max_size=len(racks) - 1))
    factor = data.draw(st.integers(1, len(racks)))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    placed = place_replicas(racks, fenced, 2 * len(racks) + 1, factor, rng.randrange)
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] not in fenced
        if not fenced:
            assert len({racks[r] for r in replicas}) == min(factor, len(set(racks.values())))
    if fenced:
        return
    leaders = Counter(racks[replicas[0]] for replicas in placed[: len(set(racks.values()))])
    assert set(leaders.values()) == {1}


@pytest.mark.parametrize("factor", [-1, 0, 6])
def test_a_factor_below_one_or_above_the_brokers_is_refused(factor):
    with pytest.raises(TopicRefused) as refused:
        place_replicas(NO_RACKS, (), 1, factor, JavaDraws())
    assert refused.value.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_no_broker_at_all_is_a_refusal():
    with pytest.raises(TopicRefused, match="All brokers are down"):
        place_replicas({}, (), 1, 1, JavaDraws())


@pytest.mark.parametrize(
    ("replicas", "factor", "reason"),
    [
        ((), None, "names no broker"),
        ((1, 9), None, "broker 9, which is not registered"),
        ((1, 2, 1), None, "broker 1 more than once"),
        ((1, 2), 3, "2 replicas, other partitions have 3"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(replicas, factor, reason):
    with pytest.raises(TopicRefused, match=reason) as refused:
        check_assignment(replicas, {1, 2, 3}, factor)
    assert refused.value.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_assignment_of_brokers_that_exist_is_taken():
    check_assignment((3, 1), {1, 2, 3}, 2)
