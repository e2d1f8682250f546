"""Consumers and followers: who is sent to which replica, and what it answers (KIP-392)."""

from __future__ import annotations

import pytest
from support.core.broker_build import fetch_request
from support.core.core_cluster import CoreCluster, replicated

from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.config.cluster_options import LEADER_SELECTOR, RACK_AWARE_SELECTOR
from txnlog_kafka.wire.error_codes import ErrorCode

RACKS = ("a", "b", "b")
NOBODY = -1


@pytest.fixture
def cluster() -> CoreCluster:
    """Broker 0 leads, in a rack of its own; both others are in rack b."""
    made = CoreCluster(3, RACKS, replica_selector_class=RACK_AWARE_SELECTOR)
    made.create(replicated(0, 1, 2))
    made.produce(0, "a")
    made.settle()
    return made


def preferred(cluster: CoreCluster, rack: str, offset: int = 0, **fields: int) -> int:
    entry = cluster.fetch(0, offset, rack_id=rack, **fields)
    assert entry.error_code == 0
    assert bool(entry.records) == (entry.preferred_read_replica == NOBODY and offset == 0)
    return entry.preferred_read_replica


def test_a_consumer_is_sent_to_the_replica_of_its_rack_that_has_most(cluster: CoreCluster) -> None:
    assert preferred(cluster, "b") in (1, 2)
    leader = cluster.brokers[0].partition().leader
    leader.followers[1].caught_up_ms = leader.followers[2].last_caught_up_ms + 1
    assert preferred(cluster, "b") == 1
    leader.followers[2].caught_up_ms = leader.followers[1].last_caught_up_ms
    assert preferred(cluster, "b") == 2  # of equal ones the highest id, as in Kafka
    leader.followers[1].log_end_offset = 2
    assert preferred(cluster, "b") == 1


@pytest.mark.parametrize("rack", ["", "a", "c"])
def test_who_is_in_the_leaders_rack_or_in_none_reads_from_the_leader(cluster, rack) -> None:
    assert preferred(cluster, rack) == NOBODY


def test_the_answer_that_names_a_replica_says_how_far_the_leader_is(cluster: CoreCluster) -> None:
    entry = cluster.fetch(0, rack_id="b")
    found = entry.high_watermark, entry.last_stable_offset, entry.log_start_offset
    assert found == (1, 1, 0)


def test_the_answer_that_names_where_histories_part_says_how_far_the_leader_is(cluster) -> None:
    """Kafka's `Partition.readRecords` answers alike."""
    message = fetch_request("orders", 2, max_wait_ms=0)
    message.topics[0].partitions[0].last_fetched_epoch = 0
    entry = cluster.brokers[0].ask(message, 12).responses[0].partitions[0]
    assert (entry.diverging_epoch.epoch, entry.diverging_epoch.end_offset) == (0, 1)
    found = entry.high_watermark, entry.last_stable_offset, entry.log_start_offset
    assert found == (1, 1, 0)


def test_a_long_poll_is_answered_at_once_with_the_replica(cluster: CoreCluster) -> None:
    message = fetch_request("orders", 1, rack_id="b")
    answer = cluster.brokers[0].ask(message, 12)
    assert answer.responses[0].partitions[0].preferred_read_replica in (1, 2)


def test_a_replica_that_is_down_or_not_in_sync_or_lacks_the_offset_is_not_named(cluster) -> None:
    cluster.change(isr=(0, 2))
    assert preferred(cluster, "b") == 2
    leader = cluster.brokers[0].partition().leader
    leader.followers[2].log_start_offset = 1
    assert preferred(cluster, "b") == NOBODY
    leader.followers[2].log_start_offset, leader.followers[2].log_end_offset = 0, 0
    assert preferred(cluster, "b", offset=1) == NOBODY
    leader.followers[2].log_end_offset = 1
    cluster.unregister(2)
    assert preferred(cluster, "b") == NOBODY


def test_a_consumer_before_version_11_reads_from_the_leader_alone(cluster: CoreCluster) -> None:
    assert cluster.fetch(0, version=10).records
    assert cluster.fetch(1, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("selector", ["", LEADER_SELECTOR])
def test_without_the_selector_of_racks_nobody_is_sent_anywhere(selector: str) -> None:
    cluster = CoreCluster(3, RACKS, replica_selector_class=selector)
    cluster.create(replicated(0, 1, 2))
    cluster.produce(0, "a")
    cluster.settle()
    assert preferred(cluster, "b") == NOBODY


def test_another_selector_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"replica\.selector\.class"):
        BrokerConfig({"replica.selector.class": "com.example.Mine"})


# --------------------------------------------------------------------------- at a follower


def test_a_follower_serves_up_to_its_own_high_watermark(cluster: CoreCluster) -> None:
    assert cluster.fetch(1).records
    assert cluster.fetch(1).high_watermark == 1
    cluster.produce(0, "b")
    cluster.replicate(0, 1, times=2)
    assert cluster.brokers[1].log().log_end_offset == 2
    assert cluster.fetch(1, 1).records in (None, b"")
    cluster.settle()
    assert cluster.fetch(1, 1).records


def test_a_long_poll_at_a_follower_ends_when_its_high_watermark_moves(cluster) -> None:
    key = cluster.brokers[1].send(fetch_request("orders", 1), 12)
    cluster.produce(0, "b")
    cluster.exchange()
    assert key not in cluster.brokers[1].asked.answers
    cluster.brokers[0].advance(100)
    cluster.produce(0, "c")  # the next fetches say how far the followers are
    cluster.exchange()
    answer = cluster.brokers[1].asked.answers[key]
    assert answer.responses[0].partitions[0].records


def test_read_committed_at_a_follower_ends_at_its_last_stable_offset(cluster) -> None:
    cluster.produce(0, "b", producer=(7, 0, 0), transactional=True)
    cluster.settle()
    entry = cluster.fetch(1, 1, committed=True)
    assert (entry.high_watermark, entry.last_stable_offset) == (2, 1)
    assert entry.records in (None, b"")
    assert cluster.fetch(1, 1).records
    cluster.write_marker(0, 7, commit=False)
    cluster.settle()
    entry = cluster.fetch(1, 1, committed=True)
    assert entry.last_stable_offset == 3
    assert [(a.producer_id, a.first_offset) for a in entry.aborted_transactions] == [(7, 1)]


@pytest.mark.parametrize(
    ("offset", "error"),
    [(0, ErrorCode.NONE), (1, ErrorCode.NONE), (2, ErrorCode.OFFSET_OUT_OF_RANGE)],
)
def test_a_follower_refuses_what_its_log_has_not(cluster, offset, error) -> None:
    assert cluster.fetch(1, offset).error_code == error


def test_a_follower_knows_which_leader_epoch_holds(cluster: CoreCluster) -> None:
    assert cluster.fetch(1, leader_epoch=0).error_code == 0
    assert cluster.fetch(1, leader_epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    cluster.change(leader=2)
    assert cluster.fetch(1, leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_broker_without_a_replica_refuses() -> None:
    other = CoreCluster(3)
    other.create(replicated(0, 1, replicas=(0, 1)))
    assert other.fetch(2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_another_broker_is_no_consumer_and_reads_from_the_leader_alone(cluster) -> None:
    message = fetch_request("orders", 0, max_wait_ms=0, replica_id=2)
    answer = cluster.brokers[1].ask(message, 12)
    entry = answer.responses[0].partitions[0]
    assert entry.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
