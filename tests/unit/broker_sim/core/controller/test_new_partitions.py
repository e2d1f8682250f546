"""Registrations of new partitions."""

from __future__ import annotations

import pytest
from support.core.replication import Controlled

from broker_sim.core.controller.new_partitions import (
    assigned_partitions,
    more_partitions,
    placed_partitions,
)
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_kafka.wire.error_codes import ErrorCode

E = ErrorCode
P = PartitionRegistration


@pytest.fixture
def cluster():
    """Return brokers 1 to 3, broker 3 in controlled shutdown, with a topic of two partitions."""
    made = Controlled((1, 2, 3), P.new((2, 1), (2, 1)), P.new((1, 2), (1, 2)))
    made.up(3, epoch=4, stops=True)
    return made


def refusal(function, *arguments):
    with pytest.raises(TopicRefused) as refused:
        function(*arguments)
    return refused.value.error


def first(_bound: int) -> int:
    """Draws the first of what there is."""
    return 0


def test_new_partitions_are_placed_on_the_active_brokers_and_led_by_their_first_replica(cluster):
    made = placed_partitions(cluster.image, 2, 2, first)
    assert made == (P.new((1, 2), (1, 2)), P.new((2, 1), (2, 1)))
    assert [each.leader for each in made] == [1, 2]


def test_more_replicas_than_active_brokers_are_refused(cluster):
    assert refusal(placed_partitions, cluster.image, 1, 3, first) is E.INVALID_REPLICATION_FACTOR
    cluster.up(3, epoch=9)
    assert len(placed_partitions(cluster.image, 1, 3, first)[0].isr) == 3


def test_brokers_that_are_down_get_replicas_and_are_not_in_sync(cluster):
    cluster.down(2)
    made = placed_partitions(cluster.image, 2, 2, first)
    assert made == (P.new((1, 2), (1,)), P.new((1, 2), (1,)))
    assert assigned_partitions(cluster.image, [(2, 1)]) == (P.new((2, 1), (1,)),)
    assert refusal(assigned_partitions, cluster.image, [(2,)]) is E.INVALID_REPLICA_ASSIGNMENT
    cluster.down(3)
    assert set(placed_partitions(cluster.image, 1, 3, first)[0].replicas) == {1, 2, 3}


def test_assigned_replicas_are_taken_as_they_are(cluster):
    made = assigned_partitions(cluster.image, [(3, 2), (1, 3)])
    assert made == (P.new((3, 2), (2,)), P.new((1, 3), (1,)))


@pytest.mark.parametrize("assignments", [[(1, 2), (1,)], [()], [(1, 1)], [(1, 4)], [(3,)]], ids=str)
def test_an_assignment_that_cannot_be_is_refused(cluster, assignments):
    found = refusal(assigned_partitions, cluster.image, assignments)
    assert found is E.INVALID_REPLICA_ASSIGNMENT


def test_a_topic_grows_by_partitions_that_are_placed_as_those_of_a_new_one(cluster):
    cluster.up(3, epoch=9)
    made = more_partitions(cluster.image, cluster.image.topics["t"], 4, first)
    assert made == placed_partitions(cluster.image, 2, 2, first)


def test_a_topic_grows_by_assignments_of_its_own_replication_factor(cluster):
    topic = cluster.image.topics["t"]
    made = more_partitions(cluster.image, topic, 3, first, [(3, 1)])
    assert made == (P.new((3, 1), (1,)),)
    found = refusal(more_partitions, cluster.image, topic, 3, first, [(1,)])
    assert found is E.INVALID_REPLICA_ASSIGNMENT


def test_a_topic_does_not_grow_when_no_broker_is_up():
    cluster = Controlled((), P.new((1,), ()))
    found = refusal(more_partitions, cluster.image, cluster.image.topics["t"], 2, first)
    assert found is E.INVALID_REPLICATION_FACTOR
