"""DeleteRecords at a leader: answered when all replicas that are up begin there, too."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import request
from support.core.core_cluster import CoreCluster, replicated

from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey


@pytest.fixture
def cluster() -> CoreCluster:
    made = CoreCluster(3)
    made.create(replicated(0, 1, 2))
    for value in "abc":
        made.produce(0, value)
        made.settle()
    return made


def delete(cluster: CoreCluster, offset: int, timeout_ms: int = 5_000) -> tuple[int, int]:
    topic = {"name": "orders", "partitions": [{"partition_index": 0, "offset": offset}]}
    message = request(ApiKey.DELETE_RECORDS, timeout_ms=timeout_ms, topics=[topic])
    return cluster.brokers[0].send(message, 2)


def outcome(cluster: CoreCluster, key: tuple[int, int]) -> Any:
    answer = cluster.brokers[0].asked.answers.get(key)
    if answer is None:
        return None
    (entry,) = answer.topics[0].partitions
    return E(entry.error_code), entry.low_watermark


def test_it_is_answered_when_the_followers_have_said_that_they_begin_there(cluster) -> None:
    key = delete(cluster, 2)
    assert outcome(cluster, key) is None
    assert cluster.brokers[0].log().log_start_offset == 2
    cluster.settle()
    assert outcome(cluster, key) == (E.NONE, 2)
    assert [b.log().log_start_offset for b in cluster.brokers.values()] == [2, 2, 2]


def test_the_high_watermark_stands_for_all_that_is_committed(cluster) -> None:
    key = delete(cluster, -1)
    cluster.settle()
    assert outcome(cluster, key) == (E.NONE, 3)


def test_a_follower_that_is_away_is_waited_for_until_the_time_is_over(cluster) -> None:
    key = delete(cluster, 2, timeout_ms=1_000)
    cluster.brokers[0].advance(999)
    assert outcome(cluster, key) is None
    cluster.brokers[0].advance(1)
    assert outcome(cluster, key) == (E.REQUEST_TIMED_OUT, -1)


def test_a_follower_that_is_down_is_not_waited_for(cluster) -> None:
    cluster.kill(2)
    key = delete(cluster, 2)
    for _ in range(4):
        cluster.exchange()
        cluster.advance(500)
    assert outcome(cluster, key) is None
    cluster.unregister(2)
    cluster.change(isr=(0, 1))
    assert outcome(cluster, key) == (E.NONE, 2)


def test_what_all_have_deleted_before_is_answered_at_once(cluster) -> None:
    delete(cluster, 2)
    cluster.settle()
    assert outcome(cluster, delete(cluster, 1)) == (E.NONE, 2)


def test_who_leads_no_more_says_so(cluster) -> None:
    key = delete(cluster, 2)
    cluster.change(leader=1)
    assert outcome(cluster, key) == (E.NOT_LEADER_OR_FOLLOWER, -1)
