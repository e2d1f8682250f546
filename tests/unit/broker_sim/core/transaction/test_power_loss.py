"""Power that fails in a cluster: what was acknowledged of a transaction stays, or it is aborted."""

from __future__ import annotations

import random

import pytest
from support.core.coordinators import STATE, World
from support.core.core_cluster import CoreCluster, replicated
from support.core.registry_cluster import RegistryCluster
from support.raw.raw import RawProducer

from broker_sim.core.effects import Flush, Stop
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.topic_partition import TRANSACTION_STATE_TOPIC

EXPIRED_MS = 4_000
FENCED = ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


# --------------------------------------------------------------------------- one in the ISR


def flushes(cluster: CoreCluster, number: int) -> int:
    """Return the number of flushes of the partition's log."""
    done = cluster.brokers[number].operations
    paths = [path for each in done if isinstance(each, Flush) for path in each.paths]
    return sum(path.startswith("orders-0/") for path in paths)


def in_transaction(cluster: CoreCluster, value: str = "a", sequence: int = 0, acks: int = -1):
    return cluster.produce(0, value, acks=acks, producer=(7, 0, sequence), transactional=True)


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_leader_that_is_alone_in_the_isr_flushes_a_transaction_before_it_answers(acks):
    cluster = CoreCluster(3)
    cluster.create(replicated(0, replicas=(0,)))
    before = flushes(cluster, 0)
    key = in_transaction(cluster, acks=acks)
    assert cluster.outcome(0, key).error_code == 0
    assert flushes(cluster, 0) == before + 1
    cluster.brokers[0].disk.lose_power(random.Random(1))
    cluster.kill(0)
    cluster.restart(0)
    assert cluster.brokers[0].log().log_end_offset == 1


def test_records_of_no_transaction_are_not_flushed_for_it():
    cluster = CoreCluster(3)
    cluster.create(replicated(0, replicas=(0,)))
    before = flushes(cluster, 0)
    assert cluster.outcome(0, cluster.produce(0, "a")).error_code == 0
    assert flushes(cluster, 0) == before


def test_what_others_had_too_is_flushed_when_they_leave_the_isr():
    cluster = CoreCluster(2)
    cluster.create(replicated(0, 1, replicas=(0, 1)))
    before = flushes(cluster, 0)
    key = in_transaction(cluster)
    cluster.settle()
    assert cluster.outcome(0, key).error_code == 0
    assert flushes(cluster, 0) == before
    cluster.kill(1)
    cluster.change(isr=(0,))
    assert flushes(cluster, 0) == before + 1


def test_without_flush_on_commit_nothing_is_flushed():
    cluster = CoreCluster(3, flush_on_commit=False)
    cluster.create(replicated(0, replicas=(0,)))
    before = flushes(cluster, 0)
    assert cluster.outcome(0, in_transaction(cluster)).error_code == 0
    assert flushes(cluster, 0) == before


# --------------------------------------------------------------------------- all at once


@pytest.fixture
def cluster() -> RegistryCluster:
    made = RegistryCluster()
    made.run(1_000)
    assert made.create_topic(0, "orders", 1).error_code == 0
    made.run(500)
    return made


def kill(cluster: RegistryCluster, *numbers: int, power: bool = False) -> None:
    """Kill the processes of these brokers, or their machines."""
    for number in numbers:
        cluster.kill(number)
        if power:
            cluster.brokers[number].cut_power(number)


def start(cluster: RegistryCluster, *numbers: int) -> None:
    for number in numbers:
        cluster.start(number)
    cluster.run(EXPIRED_MS + 4_000)


def lose_power(cluster: RegistryCluster, *numbers: int) -> None:
    kill(cluster, *numbers, power=True)
    start(cluster, *numbers)


def begun(cluster: RegistryCluster) -> RawProducer:
    """The producer of a transaction with one record in `orders`."""
    producer = cluster.producer()
    assert producer.init() == "NONE"
    assert producer.add_partitions("orders", 0) == "NONE"
    assert producer.produce("orders", 0, "v") == "NONE"
    return producer


def state_of(cluster: RegistryCluster) -> str:
    return cluster.state(cluster.coordinator(TRANSACTION_STATE_TOPIC, "t"))


def test_when_all_machines_lose_power_an_open_transaction_is_aborted(cluster):
    producer = begun(cluster)
    lose_power(cluster, 0, 1, 2)
    assert producer.end(commit=True) in FENCED
    cluster.run(1_000)
    assert state_of(cluster) == "CompleteAbort"
    log = cluster.brokers[cluster.leader()].log()
    assert log.last_stable_offset == log.high_watermark
    cluster.check_healed()


def test_when_one_machine_loses_power_the_transaction_goes_on_with_all_of_its_records(cluster):
    producer = begun(cluster)
    lose_power(cluster, cluster.leader())
    assert producer.end(commit=True) == "NONE"
    cluster.run(1_000)
    assert state_of(cluster) == "CompleteCommit"
    log = cluster.brokers[cluster.leader()].log()
    assert log.last_stable_offset == log.high_watermark == 2


def test_when_all_processes_are_killed_a_transaction_goes_on(cluster):
    producer = begun(cluster)
    kill(cluster, *cluster.brokers)
    start(cluster, *cluster.brokers)
    assert producer.end(commit=True) == "NONE"


def test_a_process_that_ends_before_the_coordinator_is_loaded_does_not_hide_the_loss(cluster):
    producer = begun(cluster)
    kill(cluster, *cluster.brokers, power=True)
    for _ in range(2):
        for number in cluster.brokers:
            cluster.start(number)
        cluster.run(50)
        kill(cluster, *cluster.brokers)
    start(cluster, *cluster.brokers)
    assert producer.end(commit=True) in FENCED


def test_machines_that_were_stopped_cleanly_have_lost_nothing(cluster):
    producer = begun(cluster)
    for number in cluster.brokers:
        cluster.brokers[number].step(Stop())
        cluster.kill(number)
        cluster.brokers[number].machine_boot_id = "the next boot"
    start(cluster, *cluster.brokers)
    assert producer.end(commit=True) == "NONE"
    assert TRANSACTION_STATE_TOPIC in cluster.controller().parts.image.topics


def test_one_that_cannot_be_aborted_yet_cannot_be_committed_either():
    world = World()
    ids = world.init()
    assert world.begin(ids) is E.NONE
    world.refuse(*STATE, E.NOT_ENOUGH_REPLICAS)
    world.call(world.transactions.load, 0, world.log(*STATE), is_torn=True)
    assert world.end(ids, commit=True).error is E.COORDINATOR_LOAD_IN_PROGRESS
    world.advance(150)
    assert world.end(ids, commit=True).error is E.COORDINATOR_LOAD_IN_PROGRESS
    world.refusals.clear()
    world.advance(150)
    assert world.state() == "CompleteAbort"
    assert world.end(ids, commit=True).error is not E.NONE
    world.call(world.transactions.unload, 0)
    assert world.timers.get(("transactions-torn",)) is None
