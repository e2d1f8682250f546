"""Unclean elections on real cores: who is elected, what is lost, and what is told of it (P8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.core.broker_build import fetch_request, request
from support.core.registry_cluster import RegistryCluster
from support.raw.raw import RawProducer

from broker_sim.core.controller.registrations import NO_LEADER
from broker_sim.core.membership.cluster_metadata import UNCLEAN_ELECTION, UNCLEAN_ELECTION_BEFORE
from broker_sim.core.replica.replication import BELOW_HIGH_WATERMARK
from broker_sim.server import broker_server
from broker_sim.server.metrics import BrokerMetrics
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TRANSACTION_STATE_TOPIC

EXPIRED_MS = 5_000
CHECKPOINTED_MS = 6_000
"""After it a broker knows its high watermarks when it starts again."""
LEADER, FOLLOWER, OTHER = 0, 1, 2
"""`orders` is on the first two; the third one keeps the logs of the coordinators in sync."""
UNCLEAN = 1
"""Type of an unclean election in ElectLeaders."""


def cluster_of(*, allowed: bool = True) -> RegistryCluster:
    made = RegistryCluster(unclean_leader_election_enable=allowed)
    made.run(1_000)
    made.create_topic(OTHER, "orders", assignment=[LEADER, FOLLOWER])
    made.run(500)
    assert (made.held("orders").leader, made.held("orders").isr) == (0, (0, 1))
    return made


def leave_alone(cluster: RegistryCluster) -> None:
    """The follower dies, and leaves the ISR."""
    cluster.kill(FOLLOWER)
    cluster.run(EXPIRED_MS)
    assert cluster.held("orders").isr == (LEADER,)


def change_over(cluster: RegistryCluster) -> None:
    """The leader dies, and the follower comes back."""
    cluster.kill(LEADER)
    cluster.start(FOLLOWER)
    cluster.run(2 * EXPIRED_MS)


def come_back(cluster: RegistryCluster) -> None:
    """The former leader, too."""
    cluster.start(LEADER)
    cluster.run(EXPIRED_MS)
    cluster.check_healed()


def offsets(cluster: RegistryCluster, number: int) -> tuple[int, int, int]:
    """Last stable offset, high watermark and log end of one replica."""
    log = cluster.brokers[number].log()
    return log.last_stable_offset, log.high_watermark, log.log_end_offset


def begun(cluster: RegistryCluster, *, after: Callable[[], None] = lambda: None) -> RawProducer:
    """The producer of a transaction with one record in `orders`."""
    producer = cluster.producer()
    assert producer.init() == "NONE"
    after()
    assert producer.add_partitions("orders", 0) == "NONE"
    assert producer.produce("orders", 0, "in the transaction") == "NONE"
    return producer


def aborted(cluster: RegistryCluster, number: int) -> set[tuple[int, int]]:
    """Return the producer ids and first offsets of all aborted transactions in a read_committed
    fetch."""
    message = fetch_request("orders", 0, committed=True, max_wait_ms=0)
    part = cluster.ask(number, message, 12).responses[0].partitions[0]
    assert part.error_code == 0
    return {(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()}


@pytest.mark.invariant(8)
def test_without_it_the_partition_waits_for_its_last_replica_in_sync_and_nothing_is_lost():
    cluster = cluster_of(allowed=False)
    leave_alone(cluster)
    assert cluster.write("a", "b") is E.NONE
    change_over(cluster)
    assert (cluster.held("orders").leader, cluster.held("orders").isr) == (NO_LEADER, (LEADER,))
    come_back(cluster)
    assert offsets(cluster, LEADER) == offsets(cluster, FOLLOWER) == (2, 2, 2)
    assert not any(cluster.brokers[number].traced(UNCLEAN_ELECTION) for number in cluster.brokers)


@pytest.mark.invariant(10)
def test_a_replica_out_of_sync_leads_and_the_former_leader_truncates_to_it_and_says_so():
    cluster = cluster_of()
    assert cluster.write("both have it") is E.NONE
    leave_alone(cluster)
    assert cluster.write("lost", "lost too") is E.NONE
    cluster.run(CHECKPOINTED_MS)
    assert offsets(cluster, LEADER) == (3, 3, 3)
    change_over(cluster)
    held = cluster.held("orders")
    assert (held.leader, held.isr) == (FOLLOWER, (FOLLOWER,))
    assert offsets(cluster, FOLLOWER) == (1, 1, 1)
    assert cluster.write("another at that offset") is E.NONE
    come_back(cluster)
    (told,) = cluster.brokers[LEADER].traced(BELOW_HIGH_WATERMARK)
    assert (told.fields["log"], told.fields["offset"], told.fields["hw"]) == ("orders-0", 1, 3)
    assert offsets(cluster, LEADER) == offsets(cluster, FOLLOWER) == (2, 2, 2)
    assert cluster.batches(LEADER) == cluster.batches(FOLLOWER)
    assert [base for base, _, _ in cluster.batches(LEADER)] == [0, 1]
    assert cluster.write("goes on") is E.NONE


@pytest.mark.invariant(10)
def test_each_broker_that_is_up_reports_the_election_once_with_what_may_be_lost():
    cluster = cluster_of()
    leave_alone(cluster)
    assert cluster.write("lost") is E.NONE
    change_over(cluster)
    held = cluster.held("orders")
    come_back(cluster)
    cluster.kill(OTHER)
    cluster.start(OTHER)
    cluster.run(EXPIRED_MS)
    told = [cluster.brokers[number].traced(UNCLEAN_ELECTION) for number in cluster.brokers]
    assert [len(each) for each in told] == [0, 1, 1], "what a start reads is history"
    assert told[FOLLOWER] == told[OTHER]
    fields = dict(told[OTHER][0].fields)
    assert "committed records may be lost" in fields.pop("note")
    assert fields == {
        "topic": "orders", "partition": 0, "leader": FOLLOWER,
        "leader_epoch": held.leader_epoch, "isr_before": [LEADER],
    }  # fmt: skip


@pytest.mark.invariant(10)
def test_an_election_that_nobody_could_report_is_reported_by_who_starts_next():
    cluster = cluster_of()
    leave_alone(cluster)
    assert cluster.write("lost") is E.NONE
    change_over(cluster)
    for number in (FOLLOWER, OTHER):
        cluster.kill(number)
        cluster.brokers[number].steps.clear()
    cluster.start(OTHER)
    cluster.run(EXPIRED_MS)
    (told,) = cluster.brokers[OTHER].traced(UNCLEAN_ELECTION_BEFORE)
    assert (told.fields["topic"], told.fields["leader"]) == ("orders", FOLLOWER)
    assert not cluster.brokers[OTHER].traced(UNCLEAN_ELECTION), "it is not counted as another one"
    for number in (FOLLOWER, LEADER):
        cluster.start(number)
    cluster.run(EXPIRED_MS)
    cluster.kill(OTHER)
    cluster.brokers[OTHER].steps.clear()
    cluster.start(OTHER)
    cluster.run(EXPIRED_MS)
    cluster.check_healed()
    assert not cluster.brokers[OTHER].traced(UNCLEAN_ELECTION_BEFORE), "others are in sync since"


def test_a_host_warns_of_what_may_be_lost():
    kinds = {UNCLEAN_ELECTION, UNCLEAN_ELECTION_BEFORE, BELOW_HIGH_WATERMARK}
    assert kinds <= broker_server._WARNINGS


def test_kafkas_metric_counts_it():
    cluster = cluster_of()
    metrics, broker = BrokerMetrics(), cluster.brokers[OTHER]
    name = "kafka_controller_controllerstats_uncleanleaderelections_total"
    assert f"\n{name} 0\n" in metrics.text(broker.parts, 0)
    leave_alone(cluster)
    before = len(broker.steps)
    change_over(cluster)
    for step in broker.steps[before:]:
        metrics.count(None, step, broker.parts)
    assert f"\n{name} 1\n" in metrics.text(broker.parts, 0)


@pytest.mark.invariant(26)
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_whose_records_are_all_lost_ends_and_holds_nothing_up(committed):
    cluster = cluster_of()
    producer = begun(cluster, after=lambda: leave_alone(cluster))
    assert offsets(cluster, LEADER) == (0, 1, 1)
    change_over(cluster)
    assert offsets(cluster, FOLLOWER) == (0, 0, 0)
    assert producer.end(commit=committed) == "NONE"
    cluster.run(1_000)
    come_back(cluster)
    assert offsets(cluster, LEADER) == offsets(cluster, FOLLOWER) == (1, 1, 1), "the marker"
    assert not aborted(cluster, FOLLOWER)


@pytest.mark.invariant(26, 27)
def test_of_a_transaction_that_lost_its_tail_nothing_is_stable_before_it_ends():
    cluster = cluster_of()
    producer = begun(cluster)
    cluster.run(1_000)
    leave_alone(cluster)
    assert producer.produce("orders", 0, "lost") == "NONE"
    change_over(cluster)
    assert offsets(cluster, FOLLOWER) == (0, 1, 1), "it is open here, too"
    told = producer.produce("orders", 0, "learns of it")
    assert told == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert producer.end(commit=False) == "NONE"
    cluster.run(1_000)
    come_back(cluster)
    assert offsets(cluster, LEADER) == offsets(cluster, FOLLOWER) == (2, 2, 2)
    assert aborted(cluster, FOLLOWER) == {(producer.producer_id, 0)}


@pytest.mark.invariant(26)
def test_a_transaction_whose_marker_is_lost_hangs_as_in_kafka_until_it_is_aborted_by_hand():
    cluster = cluster_of()
    producer = begun(cluster)
    cluster.run(1_000)
    leave_alone(cluster)
    assert producer.end(commit=True) == "NONE"
    cluster.run(1_000)
    assert offsets(cluster, LEADER) == (2, 2, 2)
    change_over(cluster)
    come_back(cluster)
    assert offsets(cluster, FOLLOWER) == (0, 1, 1)
    marker = {
        "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": -1, "topics": [{"name": "orders", "partition_indexes": [0]}],
    }  # fmt: skip
    cluster.ask(FOLLOWER, request(K.WRITE_TXN_MARKERS, markers=[marker]), 1)
    cluster.run(1_000)
    assert offsets(cluster, LEADER) == offsets(cluster, FOLLOWER) == (2, 2, 2)
    assert aborted(cluster, FOLLOWER) == {(producer.producer_id, 0)}


def elect(cluster: RegistryCluster) -> E:
    """`kafka-leader-election --election-type unclean`, asked of the controller."""
    orders = {"topic": "orders", "partitions": [0]}
    message = request(K.ELECT_LEADERS, election_type=UNCLEAN, topic_partitions=[orders])
    answer = cluster.ask(cluster.controller().node_id, message, 2)
    assert answer.error_code == 0
    return E(answer.replica_election_results[0].partition_result[0].error_code)


@pytest.mark.invariant(10)
def test_an_operator_elects_uncleanly_where_the_configuration_does_not():
    cluster = cluster_of(allowed=False)
    assert elect(cluster) is E.ELECTION_NOT_NEEDED
    leave_alone(cluster)
    assert cluster.write("lost") is E.NONE
    cluster.run(CHECKPOINTED_MS)
    cluster.kill(LEADER)
    cluster.run(EXPIRED_MS)
    assert elect(cluster) is E.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.start(FOLLOWER)
    cluster.run(EXPIRED_MS)
    assert cluster.held("orders").leader == NO_LEADER
    assert elect(cluster) is E.NONE
    cluster.run(500)
    assert (cluster.held("orders").leader, cluster.held("orders").isr) == (FOLLOWER, (FOLLOWER,))
    for number in (FOLLOWER, OTHER):
        (told,) = cluster.brokers[number].traced(UNCLEAN_ELECTION)
        assert (told.fields["topic"], told.fields["leader"]) == ("orders", FOLLOWER)
    come_back(cluster)
    assert offsets(cluster, LEADER) == offsets(cluster, FOLLOWER) == (0, 0, 0)
    assert len(cluster.brokers[LEADER].traced(BELOW_HIGH_WATERMARK)) == 1


@pytest.mark.invariant(3, 8)
def test_the_transaction_log_waits_for_its_last_replica_in_sync_whatever_the_brokers_default():
    cluster = cluster_of()
    begun(cluster)
    number = cluster.coordinator(TRANSACTION_STATE_TOPIC, "t")
    others = cluster.others(number)
    partition = cluster.brokers[number].parts.transactions.partition_for("t")
    for each in others:
        cluster.kill(each)
    cluster.run(EXPIRED_MS)
    cluster.kill(number)
    for each in others:
        cluster.start(each)
    cluster.run(2 * EXPIRED_MS)
    held = cluster.held(TRANSACTION_STATE_TOPIC, partition)
    assert (held.leader, held.isr) == (NO_LEADER, (number,))
    cluster.start(number)
    cluster.run(EXPIRED_MS)
    cluster.check_healed()
