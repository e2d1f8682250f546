"""The controller's decisions about partitions, rule by rule."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from support.core.replication import TOPIC_ID, Controlled

from broker_sim.core.controller.election import Election
from broker_sim.core.controller.isr_changes import UNKNOWN_BROKER_EPOCH
from broker_sim.core.controller.registrations import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
)
from broker_sim.core.controller.replication_control import PartitionResult, Reassignment
from txnlog_kafka.wire.error_codes import ErrorCode

E = ErrorCode
P = PartitionRegistration


@pytest.fixture
def three():
    """Brokers 1 to 3 are up and in sync."""
    return Controlled((1, 2, 3), P.new((1, 2, 3), (1, 2, 3)))


def state(partition):
    return partition.leader, partition.isr


def reassign(cluster, *target, partition=0, **how):
    asked = [Reassignment("t", partition, target or None)]
    return cluster.decide(cluster.control.alter_reassignments(asked, **how))[0].error


def elect(cluster, election, partitions=(("t", 0),)):
    found = cluster.decide(cluster.control.elect_leaders(election, partitions))
    return [each.error for each in found]


# ------------------------------------------------------------------ brokers come and go


def test_a_broker_that_goes_leaves_the_isr_and_what_it_led_has_another_leader(three):
    records = three.control.broker_down(1)
    assert [record["type"] for record in records] == ["partition-changed", "broker-fenced"]
    three.apply(records)
    assert state(three[0]) == (2, (2, 3))
    assert set(three.image.brokers) == {2, 3}


def test_a_broker_that_is_not_up_cannot_go(three):
    assert three.down(1) == 2
    assert three.down(1) == 0


def test_the_last_of_the_isr_is_waited_for_and_leads_again(three):
    for broker in (1, 2, 3):
        three.down(broker)
    assert state(three[0]) == (NO_LEADER, (3,))
    assert three.up(1) == 1
    assert state(three[0]) == (NO_LEADER, (3,))
    assert three.up(3) == 2
    assert state(three[0]) == (3, (3,))
    assert (three[0].leader_epoch, three[0].partition_epoch) == (4, 4)


def test_where_unclean_elections_are_allowed_the_next_broker_that_comes_leads_alone():
    cluster = Controlled((1, 2, 3), P((1, 2, 3), (3,), 3, 0, 0), unclean=True)
    cluster.down(3)
    assert state(cluster[0]) == (1, (1,))
    for broker in (1, 2):
        cluster.down(broker)
    assert state(cluster[0]) == (NO_LEADER, (2,))
    cluster.up(3)
    assert state(cluster[0]) == (3, (3,))


def test_the_topics_own_configuration_of_unclean_elections_counts():
    cluster = Controlled((1, 2), P((1, 2), (1,), 1, 0, 0), unclean=True)
    configs = {"unclean.leader.election.enable": False}
    cluster.image.topics["t"] = replace(cluster.image.topics["t"], configs=configs)
    cluster.down(1)
    assert state(cluster[0]) == (NO_LEADER, (1,))


def test_a_broker_that_was_started_again_first_loses_what_it_led(three):
    records = three.control.broker_up(replace(three.image.brokers[1], epoch=9))
    assert [record["type"] for record in records] == ["partition-changed", "broker-registered"]
    three.apply(records)
    assert state(three[0]) == (2, (2, 3))
    assert three.image.brokers[1].epoch == 9


def test_the_last_of_the_isr_that_was_started_again_leads_under_a_new_epoch():
    cluster = Controlled((1, 2), P((1, 2), (1,), 1, 0, 0))
    assert cluster.up(1, epoch=5) == 3
    assert (state(cluster[0]), cluster[0].leader_epoch) == ((1, (1,)), 2)


def test_a_registration_of_an_epoch_that_is_not_newer_changes_nothing(three):
    three.up(1, epoch=5)
    assert three.up(1, epoch=5) == 0
    assert three.up(1, epoch=4) == 0


def test_controlled_shutdown_hands_over_and_the_broker_gets_nothing_back(three):
    assert three.up(1, epoch=7, stops=True) == 2
    assert state(three[0]) == (2, (2, 3))
    assert 1 in three.image.brokers
    assert three.alter(1, 2, 3) is E.INELIGIBLE_REPLICA
    assert elect(three, Election.PREFERRED) == [E.PREFERRED_LEADER_NOT_AVAILABLE]
    assert three.up(1, epoch=7, stops=True) == 0
    three.up(1, epoch=8)
    assert three.alter(1, 2, 3) is E.NONE


def test_what_a_broker_in_controlled_shutdown_has_alone_has_no_leader():
    cluster = Controlled((1, 2), P((1, 2), (1,), 1, 0, 0))
    cluster.up(1, epoch=7, stops=True)
    assert state(cluster[0]) == (NO_LEADER, (1,))


# ------------------------------------------------------------------ ISR changes


def test_the_leader_alters_the_isr(three):
    change = three.change(1, 3)
    answer = three.decide(three.control.alter_partition(1, 1, [change]))
    assert (answer[0].error, answer[0].after) == (E.NONE, three[0])
    assert three[0] == P((1, 2, 3), (1, 3), 1, 0, 1)
    assert three.alter(1, 3, 2) is E.NONE
    assert three[0] == P((1, 2, 3), (1, 3, 2), 1, 0, 2)


def test_an_isr_that_is_as_asked_for_is_no_change(three):
    assert three.control.alter_partition(1, 1, [three.change(1, 2, 3)]).records == []


def test_each_change_of_a_request_follows_from_the_ones_before(three):
    twice = [three.change(1, 2), three.change(1, 3)]
    answer = three.decide(three.control.alter_partition(1, 1, twice))
    assert [each.error for each in answer] == [E.NONE, E.INVALID_UPDATE_VERSION]
    assert three[0].isr == (1, 2)


def test_an_isr_change_of_another_broker_epoch_is_refused_as_a_whole(three):
    three.up(3, epoch=9)
    for broker, epoch in ((3, 3), (3, 10), (7, 7)):
        decision = three.control.alter_partition(broker, epoch, [three.change(1, 2)])
        assert (decision.answer, decision.records) == (E.STALE_BROKER_EPOCH, [])


REFUSED = [
    ({"topic_id": uuid.UUID(int=8)}, E.UNKNOWN_TOPIC_ID),
    ({"partition": 1}, E.UNKNOWN_TOPIC_OR_PARTITION),
    ({"partition": -1}, E.UNKNOWN_TOPIC_OR_PARTITION),
    ({"leader_epoch": 6}, E.NOT_CONTROLLER),
    ({"partition_epoch": 10}, E.NOT_CONTROLLER),
    ({"partition_epoch": 10, "leader_epoch": 4}, E.NOT_CONTROLLER),
    ({"leader_epoch": 4, "partition_epoch": 8}, E.FENCED_LEADER_EPOCH),
    ({"partition_epoch": 8}, E.INVALID_UPDATE_VERSION),
    ({"new_isr": ((1, 1), (4, 4))}, E.INVALID_REQUEST),
    ({"new_isr": ((1, 1), (2, 2), (1, 1))}, E.INVALID_REQUEST),
    ({"new_isr": ((2, 2), (3, 3))}, E.INVALID_REQUEST),
    ({"new_isr": ()}, E.INVALID_REQUEST),
    ({"new_isr": ((1, 1), (2, 1))}, E.INELIGIBLE_REPLICA),
    ({"new_isr": ((1, 1), (5, 5))}, E.INELIGIBLE_REPLICA),
]


@pytest.mark.parametrize(("fields", "error"), REFUSED)
def test_an_isr_change_is_refused_as_kafka_refuses_it(fields, error):
    cluster = Controlled((1, 2, 3, 4), P((1, 2, 3, 5), (1, 2), 1, 5, 9))
    change = replace(cluster.change(1), **fields)
    decision = cluster.control.alter_partition(1, 1, [change])
    assert (decision.answer[0].error, decision.records) == (error, [])


def test_only_the_leader_alters_the_isr_and_that_comes_before_the_partition_epoch(three):
    assert three.alter(1, 2, by=2) is E.INVALID_REQUEST
    assert three.alter(1, 2, by=2, partition_epoch=-1) is E.INVALID_REQUEST


def test_a_replica_whose_epoch_the_leader_does_not_know_may_join():
    cluster = Controlled((1, 2), P((1, 2, 5), (1,), 1, 0, 0))
    unknown = UNKNOWN_BROKER_EPOCH
    assert cluster.alter(new_isr=((1, 1), (5, unknown))) is E.INELIGIBLE_REPLICA
    assert cluster.alter(new_isr=((1, 1), (2, unknown))) is E.NONE


# ------------------------------------------------------------------ elections on demand


def test_a_preferred_election_needs_another_leader_than_the_preferred_one(three):
    assert elect(three, Election.PREFERRED) == [E.ELECTION_NOT_NEEDED]
    three.down(1)
    assert elect(three, Election.PREFERRED) == [E.PREFERRED_LEADER_NOT_AVAILABLE]
    three.up(1, epoch=6)
    assert elect(three, Election.PREFERRED) == [E.PREFERRED_LEADER_NOT_AVAILABLE]
    three.alter(1, 2, 3)
    assert elect(three, Election.PREFERRED) == [E.NONE]
    assert state(three[0]) == (1, (1, 2, 3))


def test_an_unclean_election_needs_a_partition_without_leader_and_a_replica_that_is_up():
    cluster = Controlled((1, 2), P((1, 2), (1,), 1, 0, 0))
    assert elect(cluster, Election.UNCLEAN) == [E.ELECTION_NOT_NEEDED]
    cluster.down(2)
    cluster.down(1)
    assert elect(cluster, Election.UNCLEAN) == [E.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    cluster.up(2)
    assert state(cluster[0]) == (NO_LEADER, (1,))
    assert elect(cluster, Election.UNCLEAN) == [E.NONE]
    assert state(cluster[0]) == (2, (2,))


def test_an_election_of_what_does_not_exist_is_an_error(three):
    unknown = [("t", 1), ("u", 0)]
    assert elect(three, Election.PREFERRED, unknown) == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_a_partition_that_is_named_twice_is_elected_once():
    cluster = Controlled((1, 2), P((1, 2), (1, 2), 2, 0, 0))
    found = elect(cluster, Election.PREFERRED, [("t", 0), ("t", 0)])
    assert found == [E.NONE, E.ELECTION_NOT_NEEDED]


def test_an_election_of_all_leaves_out_those_that_need_none():
    balanced, other = P.new((1, 2), (1, 2)), P((1, 2), (1, 2), 2, 0, 0)
    cluster = Controlled((1, 2), balanced, other, P((3, 1), (1,), 1, 0, 0))
    answer = cluster.decide(cluster.control.elect_leaders(Election.PREFERRED, None))
    assert answer == [
        PartitionResult("t", 1, E.NONE),
        PartitionResult("t", 2, E.PREFERRED_LEADER_NOT_AVAILABLE),
    ]
    assert cluster[1].leader == 1


# ------------------------------------------------------------------ reassignments


@pytest.fixture
def five():
    """Brokers 1 to 5 are up; 1 to 3 have the partition."""
    return Controlled((1, 2, 3, 4, 5), P.new((1, 2, 3), (1, 2, 3)))


def test_a_reassignment_adds_first_and_removes_when_all_that_is_added_is_in_sync(five):
    assert reassign(five, 1, 4, 5) is E.NONE
    assert five[0] == P((1, 4, 5, 2, 3), (1, 2, 3), 1, 0, 1, (4, 5), (2, 3))
    assert five.control.list_reassignments([("t", 0), ("u", 0)]) == [("t", 0, five[0])]
    assert five.alter(1, 2, 3, 4) is E.NONE
    assert five[0].removing == (2, 3)
    assert five.alter(1, 2, 3, 4, 5) is E.NONE
    assert five[0] == P((1, 4, 5), (1, 4, 5), 1, 1, 3)
    assert five.control.list_reassignments(None) == []


def test_a_leader_whose_change_ends_its_own_replica_is_answered_that_another_leads(five):
    assert reassign(five, 4, 5) is E.NONE
    assert five.alter(1, 4, 5) is E.NEW_LEADER_ELECTED
    assert five[0] == P((4, 5), (4, 5), 4, 1, 2)


def test_a_reassignment_to_replicas_in_sync_is_complete_at_once(five):
    assert reassign(five, 3, 1) is E.NONE
    assert five[0] == P((3, 1), (1, 3), 1, 1, 1)
    assert reassign(five, 1, 3) is E.NONE
    assert five[0] == P((1, 3), (1, 3), 1, 1, 2)


def test_a_reassignment_to_what_is_changes_nothing(five):
    assert reassign(five, 1, 2, 3) is E.NONE
    assert five[0].partition_epoch == 0


def test_a_reassignment_that_replaces_another_ends_with_its_own_target(five):
    reassign(five, 4, 1, 2)
    five.down(3)
    assert reassign(five, 1, 2, 5) is E.NONE
    assert five[0] == P((1, 2, 5, 3, 4), (1, 2), 1, 0, 3, (4, 5), (3, 4))
    assert five.alter(1, 2, 5) is E.NONE
    assert (five[0].replicas, five[0].isr) == ((1, 2, 5), (1, 2, 5))


def test_a_reassignment_keeps_what_the_one_it_replaces_was_removing(five):
    reassign(five, 1, 2, 4)
    assert reassign(five, 1, 2, 4, 3) is E.NONE
    assert (five[0].adding, five[0].removing) == ((4,), ())
    assert five.alter(1, 2, 3, 4) is E.NONE
    assert (five[0].replicas, five[0].adding) == ((1, 2, 4, 3), ())


def test_a_reassignment_to_replicas_that_cannot_be_is_refused(five):
    assert reassign(five, 1, 9) is E.INVALID_REPLICA_ASSIGNMENT
    assert reassign(five, 1, 1) is E.INVALID_REPLICA_ASSIGNMENT
    assert reassign(five, 1, partition=1) is E.UNKNOWN_TOPIC_OR_PARTITION
    empty = five.control.alter_reassignments([Reassignment("t", 0, ())])
    assert empty.answer[0].error is E.INVALID_REPLICA_ASSIGNMENT
    unknown = five.control.alter_reassignments([Reassignment("u", 0, None)])
    assert unknown.answer[0].error is E.UNKNOWN_TOPIC_OR_PARTITION


def test_a_request_may_ask_for_the_same_replication_factor(five):
    refused = {"allow_factor_change": False}
    assert reassign(five, 1, 4, **refused) is E.INVALID_REPLICATION_FACTOR
    assert reassign(five, 1, 4, 5, **refused) is E.NONE
    assert reassign(five, 1, 2, 3, 4, 5, **refused) is E.INVALID_REPLICATION_FACTOR


def test_a_cancelled_reassignment_leaves_the_replicas_of_before(five):
    assert reassign(five) is E.NO_REASSIGNMENT_IN_PROGRESS
    reassign(five, 4, 1, 5)
    five.alter(1, 2, 3, 4)
    assert reassign(five) is E.NONE
    assert five[0] == P((1, 2, 3), (1, 2, 3), 1, 1, 3)


def test_a_leader_that_the_cancelled_reassignment_added_leads_no_more(five):
    reassign(five, 4, 5)
    five.alter(1, 4)
    elect(five, Election.PREFERRED)
    assert five[0].leader == 4
    assert reassign(five) is E.NONE
    assert state(five[0]) == (1, (1,))


@pytest.mark.parametrize(
    ("unclean", "error"), [(False, E.INVALID_REPLICA_ASSIGNMENT), (True, E.NONE)]
)
def test_a_reassignment_whose_isr_is_all_new_is_cancelled_by_an_unclean_election(unclean, error):
    partition = P((4, 5, 2, 1), (4,), 4, 3, 7, (4, 5), (1, 2))
    cluster = Controlled((1, 4, 5), partition, unclean=unclean)
    assert reassign(cluster) is error
    cancelled = P((2, 1), (1,), 1, 4, 8)
    assert cluster[0] == (cancelled if unclean else partition)


def test_decisions_do_not_change_the_image(five):
    before = dict(five.image.brokers), dict(five.image.topics)
    five.control.broker_down(1)
    five.control.broker_up(BrokerRegistration(1, 9, {}, in_controlled_shutdown=True))
    five.control.alter_partition(1, 1, [five.change(1)])
    five.control.alter_reassignments([Reassignment("t", 0, (4, 5))])
    assert (five.image.brokers, five.image.topics) == before
    assert five.image.topics["t"].topic_id == TOPIC_ID
