"""Leader and ISR of a partition after a change."""

from __future__ import annotations

from dataclasses import replace

from broker_sim.core.controller.election import Election, change_partition
from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration

PARTITION = PartitionRegistration((1, 2, 3), (3, 2, 1), 1, 5, 9)


def changed(before, up, election=Election.ONLINE, **wanted):
    """Return (leader, ISR, leader epoch, partition epoch) after the change, or None if nothing
    changes."""
    after = change_partition(before, replace(before, **wanted), set(up).__contains__, election)
    return after and (after.leader, after.isr, after.leader_epoch, after.partition_epoch)


def test_nothing_changes_where_all_is_as_wanted():
    assert changed(PARTITION, {1, 2, 3}) is None
    assert changed(PARTITION, {1, 2, 3}, Election.UNCLEAN) is None


def test_the_first_replica_in_replica_order_that_is_up_and_in_the_isr_leads():
    assert changed(PARTITION, {2, 3}, isr=(3, 2)) == (2, (3, 2), 6, 10)
    assert changed(PARTITION, {2, 3}, isr=(3,)) == (3, (3,), 6, 10)


def test_a_leader_that_may_go_on_does_though_another_is_preferred():
    led_by_2 = replace(PARTITION, leader=2)
    assert changed(led_by_2, {1, 2, 3}) is None
    assert changed(led_by_2, {1, 2, 3}, isr=(2, 1)) == (2, (2, 1), 5, 10)


def test_a_preferred_election_takes_the_first_replica_when_it_is_in_the_isr():
    led_by_2 = replace(PARTITION, leader=2)
    assert changed(led_by_2, {1, 2, 3}, Election.PREFERRED) == (1, (3, 2, 1), 6, 10)
    assert changed(led_by_2, {2, 3}, Election.PREFERRED) is None
    assert changed(replace(led_by_2, isr=(2,)), {1, 2}, Election.PREFERRED) is None


def test_a_preferred_election_gives_a_partition_without_leader_any_of_the_isr():
    leaderless = replace(PARTITION, leader=NO_LEADER)
    assert changed(leaderless, {2, 3}, Election.PREFERRED) == (2, (3, 2, 1), 6, 10)


def test_the_last_of_the_isr_stays_in_it_and_there_is_no_leader():
    alone = replace(PARTITION, isr=(1,))
    assert changed(alone, {2, 3}, isr=()) == (NO_LEADER, (1,), 6, 10)
    waiting = replace(alone, leader=NO_LEADER)
    assert changed(waiting, {2, 3}) is None
    assert changed(waiting, {1, 2, 3}) == (1, (1,), 6, 10)


def test_an_unclean_election_makes_any_replica_leader_and_the_whole_isr():
    alone = replace(PARTITION, isr=(1,))
    assert changed(alone, {3, 2}, Election.UNCLEAN, isr=()) == (2, (2,), 6, 10)


def test_an_unclean_election_prefers_the_isr():
    assert changed(PARTITION, {2, 3}, Election.UNCLEAN, isr=(3,)) == (3, (3,), 6, 10)


def test_an_unclean_election_needs_a_replica_that_is_up():
    waiting = replace(PARTITION, isr=(1,), leader=NO_LEADER)
    assert changed(waiting, {7}, Election.UNCLEAN) is None


def test_a_removed_replica_raises_the_leader_epoch_though_the_leader_stays():
    moved = replace(PARTITION, removing=(3,))
    after = change_partition(moved, moved, {1, 2, 3}.__contains__)
    assert after == PartitionRegistration((1, 2), (2, 1), 1, 6, 10)


def test_a_shrinking_isr_does_not_raise_the_leader_epoch():
    assert changed(PARTITION, {1, 2, 3}, isr=(1, 2)) == (1, (1, 2), 5, 10)
