"""`uniform` and `range`: all partitions once, to readers, in equal numbers, and few are moved."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.group.assignors import ASSIGNORS, MemberSpec, assign_range, assign_uniform

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))


def spec(*topics, instance_id=None, **assigned) -> MemberSpec:
    owned = {{"a": A, "b": B}[name]: frozenset(parts) for name, parts in assigned.items()}
    return MemberSpec(instance_id, frozenset(topics), owned)


def sizes(assignment) -> dict[str, int]:
    return {name: sum(map(len, found.values())) for name, found in assignment.items()}


def test_range_divides_each_topic_in_the_order_of_members_static_ones_first() -> None:
    members = {"m1": spec(A, B), "m2": spec(A, instance_id="z"), "m3": spec(A, B)}
    assert assign_range(members, {A: 4, B: 1}) == {
        "m2": {A: frozenset({0, 1})},
        "m1": {A: frozenset({2}), B: frozenset({0})},
        "m3": {A: frozenset({3})},
    }


def test_uniform_keeps_what_members_have_and_moves_only_what_is_too_much() -> None:
    members = {"m1": spec(A, a=range(6)), "m2": spec(A)}
    assert assign_uniform(members, {A: 6}) == {
        "m1": {A: frozenset({0, 1, 2})},
        "m2": {A: frozenset({3, 4, 5})},
    }


def test_uniform_leaves_the_odd_partition_to_the_member_that_has_it() -> None:
    members = {"m1": spec(A, a=(0, 1)), "m2": spec(A, a=(2, 3, 4))}
    assert assign_uniform(members, {A: 5}) == {
        "m1": {A: frozenset({0, 1})},
        "m2": {A: frozenset({2, 3, 4})},
    }
    assert sizes(assign_uniform({"m1": spec(A), "m2": spec(A)}, {A: 5})) == {"m1": 2, "m2": 3}


def test_uniform_balances_members_that_read_different_topics() -> None:
    members = {"m1": spec(A, B, a=range(4)), "m2": spec(A), "m3": spec(B)}
    assignment = assign_uniform(members, {A: 4, B: 2})
    assert sizes(assignment) == {"m1": 2, "m2": 2, "m3": 2}
    assert assignment["m3"] == {B: frozenset({0, 1})}


def test_partitions_of_a_topic_that_was_deleted_or_is_not_read_are_dropped() -> None:
    members = {"m1": spec(A, a=(0, 7), b=(0,))}
    assert assign_uniform(members, {A: 1, B: 1}) == {"m1": {A: frozenset({0})}}


TOPICS = st.frozensets(st.sampled_from([A, B, C]))
COUNTS = st.fixed_dictionaries({A: st.integers(1, 7), B: st.integers(1, 4), C: st.just(1)})
READERS = st.dictionaries(st.sampled_from("pqrstuv"), TOPICS, max_size=7)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(readers=READERS, later=READERS, counts=COUNTS)
def test_each_partition_has_one_reader(name, readers, later, counts) -> None:
    targets: dict = {}
    for members in (readers, later):
        specs = {
            member: MemberSpec(None, topics, targets.get(member, {}))
            for member, topics in members.items()
        }
        before, targets = targets, ASSIGNORS[name](specs, counts)
        placed = [
            (topic, number)
            for member, found in targets.items()
            for topic, numbers in found.items()
            for number in numbers
            if topic in members[member]
        ]
        read = frozenset().union(*members.values())
        expected = [(topic, number) for topic in read for number in range(counts[topic])]
        assert sorted(placed) == sorted(expected)
        assert set(targets) == set(members)
        same = len(set(members.values())) == 1
        if name == "uniform" and same:
            assert max(sizes(targets).values()) - min(sizes(targets).values()) <= 1
            if members == readers == later and before:
                assert targets == before
