"""The leader of several replicas: high watermark, ISR, acks=all, who is refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import fetch_request, request
from support.core.core_cluster import LAG_MS, CoreCluster, replicated
from support.core.core_network import ORDERS

from broker_sim.core.controller.registrations import NO_LEADER
from broker_sim.core.replica.fetch_session import FetchSession
from broker_sim.core.replica.leader import FetchPosition, Follower
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey


@pytest.fixture
def cluster() -> CoreCluster:
    return cluster_of(0, 1, 2, replicas=(0, 1, 2))


def cluster_of(*isr: int, replicas: tuple[int, ...] = (0, 1), brokers: int = 0, **topic: int):
    """A cluster with a partition of these replicas, and no broker besides unless said."""
    made = CoreCluster(brokers or len(replicas))
    made.create(replicated(*isr, replicas=replicas), **topic)
    return made


def test_acks_all_waits_for_every_replica_of_the_isr(cluster: CoreCluster) -> None:
    key = cluster.produce(0, "a", "b")
    cluster.replicate(0, 1, times=3)
    assert cluster.outcome(0, key) is None
    assert cluster.brokers[0].log().high_watermark == 0
    cluster.replicate(0, 2, times=3)
    assert cluster.outcome(0, key).error_code == 0
    assert cluster.outcome(0, key).base_offset == 0
    assert cluster.brokers[0].log().high_watermark == 2


def test_acks_one_is_answered_before_any_replica_has_it(cluster: CoreCluster) -> None:
    key = cluster.produce(0, "a", acks=1)
    assert cluster.outcome(0, key).error_code == 0
    assert cluster.brokers[0].log().high_watermark == 0


def test_consumers_are_bounded_by_the_high_watermark_and_followers_are_not(
    cluster: CoreCluster,
) -> None:
    cluster.produce(0, "a", acks=1)
    assert cluster.fetch(0).records in (None, b"")
    cluster.replicate(0, 1, times=1)
    assert cluster.brokers[1].log().log_end_offset == 1
    cluster.settle()
    assert cluster.fetch(0).records
    assert cluster.fetch(0).high_watermark == 1


def test_acks_all_times_out_and_a_later_commit_does_not_answer_again(
    cluster: CoreCluster,
) -> None:
    key = cluster.produce(0, "a")
    cluster.brokers[0].advance(1000)
    assert cluster.outcome(0, key).error_code == ErrorCode.REQUEST_TIMED_OUT
    del cluster.brokers[0].asked.answers[key]
    cluster.settle()
    assert cluster.brokers[0].log().high_watermark == 1
    assert cluster.outcome(0, key) is None


@pytest.mark.parametrize("leader", [1, NO_LEADER])
def test_a_deposed_leader_answers_who_waits(cluster: CoreCluster, leader: int) -> None:
    key = cluster.produce(0, "a")
    cluster.change(leader=leader)
    assert cluster.outcome(0, key).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_deleted_replica_answers_who_waits(cluster: CoreCluster) -> None:
    key = cluster.produce(0, "a")
    cluster.change(replicas=(1, 2), isr=(1, 2), leader=1)
    assert cluster.outcome(0, key).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.brokers[0].parts.logs.get(*ORDERS) is None
    assert not cluster.brokers[0].disk.list("orders-0")


# --------------------------------------------------------------------------- the ISR


def test_a_stuck_replica_leaves_the_isr_and_what_waited_is_committed(cluster: CoreCluster) -> None:
    broker = cluster.brokers[0]
    cluster.produce(0, "a", acks=1)
    for _ in range(2 * LAG_MS // 1000):
        cluster.replicate(0, 1, times=3)
        broker.advance(1000)
    ((proposal, _),) = cluster.proposals
    assert proposal.isr == (0, 1)
    cluster.replicate(0, 1, times=3)
    assert broker.log().high_watermark == 0, "the maximal ISR counts until it is decided"
    assert cluster.decide() == [ErrorCode.NONE]
    cluster.replicate(0, 1, times=3)
    assert broker.log().high_watermark == 1
    assert cluster.held().isr == (0, 1)


def test_a_replica_that_left_the_isr_does_not_hold_the_high_watermark(
    cluster: CoreCluster,
) -> None:
    cluster.unregister(2)
    cluster.change(isr=(0, 1))
    key = cluster.produce(0, "a")
    cluster.replicate(0, 1, times=3)
    assert cluster.outcome(0, key).error_code == 0


def test_nobody_leaves_the_isr_of_an_idle_partition(cluster: CoreCluster) -> None:
    cluster.settle()
    cluster.brokers[0].advance(3 * LAG_MS)
    assert cluster.proposals == []


def test_a_replica_of_an_idle_partition_is_caught_up_by_the_fetches_of_its_session() -> None:
    """The fetches skip the partition, but the follower's time begins with the last fetch."""
    cluster = cluster_of(0, 1)
    cluster.settle()
    for _ in range(3 * LAG_MS // 1000):
        cluster.exchange()
        cluster.advance(1000)
    follower = cluster.brokers[0].partition().leader.followers[1]
    assert follower.caught_up_ms < cluster.brokers[0].monotonic_ms - LAG_MS
    cluster.produce(0, "a", acks=1)
    cluster.brokers[0].advance(LAG_MS // 2)
    assert cluster.proposals == []
    cluster.brokers[0].advance(LAG_MS)
    assert [proposal.isr for proposal, _ in cluster.proposals] == [(0,)]


@pytest.mark.parametrize("times", [1, 5])
def test_a_refused_proposal_is_made_again_by_the_next_fetch(times: int) -> None:
    """A follower that is not in the ISR is looked at by each of its fetches."""
    cluster = cluster_of(0)
    for _ in range(times):
        cluster.exchange()
        cluster.advance(500)
        cluster.exchange()
        ((proposal, reply),) = cluster.proposals
        assert proposal.isr == (0, 1)
        cluster.proposals.clear()
        cluster.answer_proposal(proposal, reply, ErrorCode.INELIGIBLE_REPLICA)


@pytest.mark.parametrize(
    ("way", "caught_up_ms"),
    [
        ("goes on", 900),
        ("forgets the partition", 500),
        ("is behind", 100),
    ],
)
def test_how_long_a_follower_counts_as_caught_up(way: str, caught_up_ms: int) -> None:
    """The fetches of the session have no news of the partition."""
    session = FetchSession(1, True, "follower", True, 0, {}, used_ms=100)
    follower = Follower()
    follower.on_fetch(FetchPosition(5, 0), 1, 5, 100, session)
    if way == "is behind":
        follower.on_fetch(FetchPosition(5, 0), 1, 6, 200, session)
    session.used_ms = 500
    if way == "forgets the partition":
        follower.forget_session()
    session.used_ms = 900
    assert follower.last_caught_up_ms == caught_up_ms


def test_a_replica_that_never_fetched_is_given_its_time(cluster: CoreCluster) -> None:
    cluster.produce(0, "a", acks=1)
    cluster.brokers[0].advance(LAG_MS)
    assert cluster.proposals == []
    cluster.brokers[0].advance(LAG_MS)
    assert [proposal.isr for proposal, _ in cluster.proposals] == [(0,)]


def test_a_slow_replica_that_always_fetches_the_end_of_before_stays() -> None:
    cluster = cluster_of(0, 1)
    for _ in range(40):
        cluster.produce(0, "a", acks=1)
        cluster.replicate(0, 1, times=1)
        cluster.produce(0, "b", acks=1)
        cluster.brokers[0].advance(LAG_MS // 8)
    assert cluster.proposals == []


@pytest.mark.parametrize("batches", [1, 2])
def test_a_slow_replica_that_fetches_all_the_time_and_falls_behind_leaves(batches: int) -> None:
    cluster = CoreCluster(2, replica_fetch_max_bytes=1)  # a batch each time
    cluster.create(replicated(0, 1, replicas=(0, 1)))
    broker = cluster.brokers[0]
    for _ in range(2 * LAG_MS // 1000):
        for _ in range(batches):
            cluster.produce(0, "a", acks=1)
        cluster.replicate(0, 1, times=1)
        broker.advance(1000)
    fetched = cluster.brokers[1].log().log_end_offset
    assert fetched > LAG_MS // 1000, "it has fetched to the end of its time"
    proposed = [proposal.isr for proposal, _ in cluster.proposals]
    assert proposed == ([] if batches == 1 else [(0,)])
    if proposed:
        assert cluster.decide() == [ErrorCode.NONE]
        assert broker.log().high_watermark == broker.log().log_end_offset
        assert fetched < broker.log().log_end_offset


def test_a_replica_joins_when_it_has_what_is_committed() -> None:
    cluster = cluster_of(0)
    cluster.produce(0, "a")
    assert cluster.brokers[0].log().high_watermark == 1
    cluster.replicate(0, 1, times=1)
    assert cluster.proposals == []
    cluster.replicate(0, 1, times=1)
    ((proposal, _),) = cluster.proposals
    assert (proposal.isr, proposal.leader_epoch, proposal.partition_epoch) == ((0, 1), 0, 0)
    cluster.produce(0, "b")
    assert cluster.brokers[0].log().high_watermark == 1, "the maximal ISR holds it"
    cluster.replicate(0, 1, times=2)
    assert cluster.brokers[0].log().high_watermark == 2


def test_a_replica_does_not_join_before_it_has_what_the_leader_began_with() -> None:
    cluster = cluster_of(0, 1, replicas=(0, 1, 2))
    cluster.produce(0, "a", acks=1)
    cluster.replicate(0, 1, times=1)
    cluster.change(leader=1, isr=(0, 1))
    leader = cluster.brokers[1]
    assert (leader.log().high_watermark, leader.log().log_end_offset) == (0, 1)
    for asked in cluster.of(2):
        cluster.deliver(asked)
    assert cluster.proposals == []


def test_a_replica_of_an_older_broker_epoch_does_not_join() -> None:
    cluster = cluster_of(0)
    cluster.register(1)
    cluster.settle()
    assert cluster.held().isr == (0, 1)
    cluster.change(isr=(0,))
    cluster.registered[1] = 7
    cluster.brokers[0].parts.image.brokers.pop(1)
    cluster.produce(0, "b")
    cluster.replicate(0, 1, times=4)
    assert cluster.proposals == []


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_a_refused_proposal_ends_and_one_that_may_hold_stays(error: ErrorCode) -> None:
    cluster = cluster_of(0)
    cluster.replicate(0, 1, times=1)
    ((proposal, reply),) = cluster.proposals
    cluster.proposals.clear()
    leader = cluster.brokers[0].partition().leader
    assert leader is not None
    cluster.answer_proposal(proposal, reply, error)
    refused = error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
    assert leader.maximal_isr == ({0} if refused else {0, 1})
    cluster.brokers[0].advance(LAG_MS)
    assert [each for each, _ in cluster.proposals if each is proposal] == []


def test_there_is_one_proposal_at_a_time_and_an_answer_of_before_changes_nothing(
    cluster: CoreCluster,
) -> None:
    cluster.produce(0, "a", acks=1)
    cluster.brokers[0].advance(2 * LAG_MS)
    cluster.brokers[0].advance(2 * LAG_MS)
    ((_, reply),) = cluster.proposals
    cluster.change(isr=(0, 2))
    leader = cluster.brokers[0].partition().leader
    assert leader is not None
    assert leader.proposal is None
    cluster.brokers[0].cause(lambda effects: reply(ErrorCode.INELIGIBLE_REPLICA, effects))
    assert leader.maximal_isr == {0, 2}


# --------------------------------------------------------------------------- min.insync.replicas


def test_too_few_in_sync_refuse_acks_all_before_the_append() -> None:
    cluster = cluster_of(0, min_insync_replicas=2)
    key = cluster.produce(0, "a")
    assert cluster.outcome(0, key).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.brokers[0].log().log_end_offset == 0
    assert cluster.outcome(0, cluster.produce(0, "a", acks=1)).error_code == 0


def test_under_min_isr_the_high_watermark_stays_and_acks_all_times_out() -> None:
    cluster = cluster_of(0, 1, min_insync_replicas=2)
    key = cluster.produce(0, "a")
    cluster.unregister(1)
    cluster.change(isr=(0,))
    assert cluster.brokers[0].log().high_watermark == 0
    cluster.brokers[0].advance(1000)
    assert cluster.outcome(0, key).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_too_few_in_sync_when_it_is_committed_is_an_error_after_the_append() -> None:
    cluster = cluster_of(0, 1, min_insync_replicas=2)
    cluster.produce(0, "a")
    cluster.replicate(0, 1, times=2)
    cluster.change(isr=(0,))
    partition, told = cluster.brokers[0].partition(), []
    cluster.brokers[0].cause(
        lambda effects: partition.when_committed(0, lambda error, _: told.append(error), effects)
    )
    assert told == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_no_more_in_sync_are_needed_than_there_are_replicas() -> None:
    cluster = cluster_of(0, replicas=(0,), min_insync_replicas=3)
    assert cluster.outcome(0, cluster.produce(0, "a")).error_code == 0


# --------------------------------------------------------------------------- who is refused


def test_a_follower_answers_not_leader_and_says_who_leads(cluster: CoreCluster) -> None:
    assert cluster.outcome(1, cluster.produce(1, "a")).error_code == 6
    answer = cluster.brokers[1].asked.answers.popitem()[1]
    held = answer.responses[0].partition_responses[0].current_leader
    assert (held.leader_id, held.leader_epoch) == (0, 0)
    assert [(node.node_id, node.port) for node in answer.node_endpoints] == [(0, 9000)]
    cluster.change(leader=2)
    message = fetch_request("", 0, max_wait_ms=0, leader_epoch=0)
    message.topics[0].topic_id = cluster.topics["orders"].topic_id
    told = cluster.brokers[1].ask(message, 16)
    assert told.responses[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    held = told.responses[0].partitions[0].current_leader
    assert (held.leader_id, held.leader_epoch) == (2, 1)
    assert [node.node_id for node in told.node_endpoints] == [2]


def ask_list_offsets(cluster: CoreCluster, number: int, version: int) -> Any:
    partitions = [{"partition_index": 0, "timestamp": -1}]
    message = request(ApiKey.LIST_OFFSETS, topics=[{"name": "orders", "partitions": partitions}])
    return cluster.brokers[number].ask(message, version).topics[0].partitions[0]


@pytest.mark.parametrize("number", [1, 2])
def test_list_offsets_delete_records_and_epochs_are_for_the_leader(number: int) -> None:
    """Broker 2 has no replica at all."""
    cluster = cluster_of(0, 1, brokers=3)
    refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask_list_offsets(cluster, number, 7).error_code == refusal
    place = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 0}]}
    deleted = request(ApiKey.DELETE_RECORDS, topics=[place])
    answer = cluster.brokers[number].ask(deleted, 2)
    assert answer.topics[0].partitions[0].error_code == refusal
    place = {"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": 0}]}
    epochs = request(ApiKey.OFFSET_FOR_LEADER_EPOCH, replica_id=-1, topics=[place])
    answer = cluster.brokers[number].ask(epochs, 4)
    assert answer.topics[0].partitions[0].error_code == refusal
    assert cluster.outcome(number, cluster.produce(number, "a")).error_code == 6


def test_a_new_leader_does_not_tell_the_end_before_it_knows_what_is_committed(
    cluster: CoreCluster,
) -> None:
    cluster.produce(0, "a", acks=1)
    cluster.replicate(0, 1, 2, times=1)
    cluster.change(leader=1)
    for version, error in (
        (5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (4, ErrorCode.LEADER_NOT_AVAILABLE),
    ):
        assert ask_list_offsets(cluster, 1, version).error_code == error
    cluster.settle()
    answer = ask_list_offsets(cluster, 1, 5)
    assert (answer.error_code, answer.offset) == (0, 1)


def test_who_has_no_replica_may_not_fetch_as_one() -> None:
    cluster = cluster_of(0, 1, brokers=3)
    answer = cluster.fetch(0, replica_id=2)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.fetch(0, replica_id=1).error_code == 0


def test_requests_of_another_leader_epoch_are_fenced_on_every_replica(
    cluster: CoreCluster,
) -> None:
    cluster.change(leader=1)
    for number in (0, 1):
        fenced = cluster.fetch(number, leader_epoch=0).error_code
        unknown = cluster.fetch(number, leader_epoch=2).error_code
        assert fenced == ErrorCode.FENCED_LEADER_EPOCH
        assert unknown == ErrorCode.UNKNOWN_LEADER_EPOCH
