"""Registrations of new partitions."""

from __future__ import annotations

import pytest
from support.replication import Controlled

from broker_sim.core.controller.new_partitions import (
    assigned_partitions,
    more_partitions,
    placed_partitions,
)
from broker_sim.core.controller.placement import PlacementStart
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.controller.topic_rules import TopicRefused
from txnlog_spark.wire.errors import ErrorCode

E = ErrorCode
P = PartitionRegistration


@pytest.fixture
def cluster():
    """Brokers 1 to 3, of which 3 is in controlled shutdown, and a topic of two partitions."""
    made = Controlled((1, 2, 3), P.new((2, 1), (2, 1)), P.new((1, 2), (1, 2)))
    made.up(3, epoch=4, stops=True)
    return made


def refusal(function, *arguments):
    with pytest.raises(TopicRefused) as refused:
        function(*arguments)
    return refused.value.error


def test_the_active_replicas_are_the_isr_and_the_first_of_them_leads(cluster):
    made = placed_partitions(cluster.image, 3, 2, PlacementStart(0, 0))
    assert made == (P.new((1, 2), (1, 2)), P.new((2, 3), (2,)), P.new((3, 1), (1,)))
    assert made[2].leader == 1


def test_a_placement_without_an_active_replica_is_refused(cluster):
    found = refusal(placed_partitions, cluster.image, 3, 1, PlacementStart(0, 0))
    assert found is E.INVALID_REPLICATION_FACTOR


def test_more_replicas_than_brokers_that_are_up_are_refused(cluster):
    cluster.down(3)
    found = refusal(placed_partitions, cluster.image, 1, 3, PlacementStart(0, 0))
    assert found is E.INVALID_REPLICATION_FACTOR


def test_assigned_replicas_are_taken_as_they_are(cluster):
    made = assigned_partitions(cluster.image, [(3, 2), (1, 3)])
    assert made == (P.new((3, 2), (2,)), P.new((1, 3), (1,)))


@pytest.mark.parametrize("assignments", [[(1, 2), (1,)], [()], [(1, 1)], [(1, 4)], [(3,)]], ids=str)
def test_an_assignment_that_cannot_be_is_refused(cluster, assignments):
    found = refusal(assigned_partitions, cluster.image, assignments)
    assert found is E.INVALID_REPLICA_ASSIGNMENT


def test_a_topic_grows_from_where_its_first_partition_starts(cluster):
    cluster.up(3, epoch=9)
    made = more_partitions(cluster.image, cluster.image.topics["t"], 4)
    # Partition 0 starts at broker 2, so 2 starts at broker 1, with a shift of 1; 3 begins a round.
    assert [each.replicas for each in made] == [(1, 3), (2, 3)]
    assert [each.isr for each in made] == [(1, 3), (2, 3)]


def test_a_topic_whose_first_replica_is_above_all_brokers_grows_from_the_first_one():
    cluster = Controlled((1, 2), P.new((7,), ()))
    made = more_partitions(cluster.image, cluster.image.topics["t"], 3)
    assert [each.replicas for each in made] == [(2,), (1,)]


def test_a_topic_grows_by_assignments_of_its_own_replication_factor(cluster):
    topic = cluster.image.topics["t"]
    made = more_partitions(cluster.image, topic, 3, [(3, 1)])
    assert made == (P.new((3, 1), (1,)),)
    found = refusal(more_partitions, cluster.image, topic, 3, [(1,)])
    assert found is E.INVALID_REPLICA_ASSIGNMENT


def test_a_topic_does_not_grow_when_no_broker_is_up():
    cluster = Controlled((), P.new((1,), ()))
    found = refusal(more_partitions, cluster.image, cluster.image.topics["t"], 2)
    assert found is E.INVALID_REPLICATION_FACTOR
