"""Where the replicas of new partitions go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.controller.placement import (
    PlacementStart,
    alternate_racks,
    check_assignment,
    place_replicas,
)
from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_spark.wire.errors import ErrorCode

NO_RACKS = dict.fromkeys(range(5))
RACKS = dict(enumerate(["rack1", "rack3", "rack3", "rack2", "rack2", "rack1"]))


def of_digits(text: str) -> list[tuple[int, ...]]:
    """ "01 12" as [(0, 1), (1, 2)]."""
    return [tuple(map(int, word)) for word in text.split()]


def test_the_example_without_racks_of_kafkas_documentation_comes_out():
    placed = place_replicas(NO_RACKS, 10, 3, PlacementStart(0, 0))
    assert placed == of_digits("012 123 234 340 401 023 134 240 301 412")


def test_the_example_with_racks_of_kafkas_documentation_comes_out():
    assert alternate_racks(RACKS) == [0, 3, 1, 5, 4, 2]
    placed = place_replicas(RACKS, 7, 3, PlacementStart(0, 0))
    assert placed == of_digits("031 315 154 542 420 203 042")


# What Kafka's AdminUtils answers; one number is its start index and its replica shift.
KAFKA = {
    "racks and another round": ("aabbcc", "012345", 4, 0, "341 513 035 250 402 124 350 502"),
    "one large rack": ("aaab", "1237", 2, 0, "273 372 172 731 273"),
    "more replicas than racks": ("babab", "14569", 1, 0, "1465 6159 5694 9654"),
    "partitions that come later": ("----", "1348", 3, 5, "134 348 481 834 148 381"),
    "all brokers": ("---", "256", 1, 0, "526 652 265 562"),
    "two racks, partitions that come later": ("ababa", "01234", 3, 4, "21 34 41 01 12 23"),
}


@pytest.mark.parametrize(
    ("racks", "brokers", "start", "first", "expected"), KAFKA.values(), ids=KAFKA
)
def test_replicas_are_placed_where_kafka_places_them(racks, brokers, start, first, expected):
    known = {
        int(broker): None if rack == "-" else rack
        for broker, rack in zip(brokers, racks, strict=True)
    }
    wanted = of_digits(expected)
    at = PlacementStart(start, start, first)
    assert place_replicas(known, len(wanted), len(wanted[0]), at) == wanted


def test_racks_count_only_when_every_broker_has_one():
    mixed = {**RACKS, 5: None}
    start = PlacementStart(2, 1)
    assert place_replicas(mixed, 9, 3, start) == place_replicas(dict.fromkeys(RACKS), 9, 3, start)


@given(st.data())
def test_replicas_are_distinct_over_as_many_racks_as_possible_and_leaders_are_even(data):
    racks = data.draw(st.dictionaries(st.integers(0, 30), st.sampled_from("abcd"), min_size=1))
    factor = data.draw(st.integers(1, len(racks)))
    drawn = st.integers(0, len(racks) - 1)
    start = PlacementStart(data.draw(drawn), data.draw(drawn), data.draw(st.integers(0, 20)))
    placed = place_replicas(racks, 2 * len(racks), factor, start)
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[r] for r in replicas}) == min(factor, len(set(racks.values())))
    leaders = [replicas[0] for replicas in placed]
    assert sorted(leaders) == sorted([*racks, *racks])


@pytest.mark.parametrize("factor", [-1, 0, 6])
def test_a_factor_below_one_or_above_the_brokers_is_refused(factor):
    with pytest.raises(TopicRefused) as refused:
        place_replicas(NO_RACKS, 1, factor, PlacementStart(0, 0))
    assert refused.value.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_no_broker_at_all_is_a_refusal():
    with pytest.raises(TopicRefused, match="0 brokers"):
        place_replicas({}, 1, 1, PlacementStart(0, 0))


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
