"""Producing holds what `in_flight_bytes_max` allows, whatever the number of partitions.

Measured at the stamp: what was stamped until then, less what was acknowledged until then.
"""

from __future__ import annotations

from collections import Counter
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.scripted_faults import ANSWER_LOST, LOST, refused
from support.query.produce_run import Watched, cluster_of, part_of
from support.query.staged_pieces import read_back

from txnlog_kafka.operations import produce
from txnlog_kafka.operations.batches import queues_of
from txnlog_kafka.operations.cluster_view import ClusterView, TopicView
from txnlog_kafka.operations.drain_order import DrainOrder
from txnlog_kafka.operations.produce import MISSES_MAX
from txnlog_kafka.operations.producer import ProducePlan
from txnlog_kafka.operations.transaction import Transaction
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K

PIECES = st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=4), min_size=1, max_size=5)
FAULT = st.sampled_from(
    [
        None,
        None,
        LOST,
        ANSWER_LOST,
        refused(E.NOT_LEADER_OR_FOLLOWER),
        refused(E.NOT_ENOUGH_REPLICAS),
    ]
)


@given(
    st.lists(PIECES, min_size=1, max_size=8),
    st.integers(1, 3),
    st.tuples(st.integers(1, 6000), st.integers(1, 3000), st.integers(1, MISSES_MAX)),
    st.lists(FAULT, max_size=12),
)
@settings(max_examples=80)
def test_memory_is_bounded_and_every_batch_arrives_once_and_in_order(
    partitions, node_count, limits, faults
):
    in_flight_bytes_max, request_bytes, misses_max = limits
    parts = tuple(part_of(p, pieces) for p, pieces in enumerate(partitions))
    cluster = cluster_of(len(parts), node_count)
    cluster.script(K.PRODUCE, *faults)
    plan = ProducePlan(
        0,
        staged=parts,
        in_flight_bytes_max=in_flight_bytes_max,
        produce_request_bytes=request_bytes,
    )
    with mock.patch.object(produce, "MISSES_MAX", misses_max):
        Watched(cluster, plan).run().check()


def test_a_thousand_partitions_take_no_more_memory_than_ten():
    batch = 1000
    for count in (10, 1000):
        parts = tuple(part_of(p, [[batch], [batch], [batch]]) for p in range(count))
        plan = ProducePlan(0, staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
        watched = Watched(cluster_of(count, 3), plan).run()
        watched.check()
        assert watched.most <= 20_000
        assert watched.unread_most <= 20_000


def test_pieces_of_many_batches_are_read_ahead_within_the_limit_too():
    parts = tuple(part_of(p, [[100] * 20, [100] * 20]) for p in range(200))
    plan = ProducePlan(0, staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(200, 1), plan).run()
    watched.check()
    assert watched.unread_most <= 20_000


def test_a_request_looks_only_at_the_partitions_that_it_serves():
    parts = tuple(part_of(p, [[900], [900]]) for p in range(1000))
    plan = ProducePlan(0, staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(1000, 2), plan).run()
    requests = watched.requests()
    assert len(requests) > 200
    assert watched.looks <= 10 * 2000 + len(requests) * 2 * MISSES_MAX


def test_partitions_take_turns_so_that_none_waits_for_the_whole_batch():
    parts = tuple(part_of(p, [[900]] * 10) for p in range(100))
    plan = ProducePlan(0, staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(100, 2), plan).run()
    turns: Counter[int] = Counter()
    for partitions in watched.requests():
        turns.update(partitions)
        if len(turns) == 100:
            break
    assert max(turns.values()) <= 2


def test_who_sends_again_comes_before_who_holds_a_piece():
    parts = [part_of(p, [[10, 10], [10]]) for p in range(4)]
    turns = DrainOrder(queues_of(parts, Transaction("t", 1, 0, 2)))
    before = ClusterView(topics={"out": TopicView(bytes(16), dict.fromkeys(range(4), 1))})
    moved = ClusterView(topics={"out": TopicView(bytes(16), dict.fromkeys(range(4), 2))})
    assert turns.arrange(before) == []
    taken = {}
    for partition, queue in turns.of(1):
        queue.give(read_back(queue.next_piece))
        taken[partition] = queue.pop()
    turns.put_back(("out", 2), [taken["out", 2]])
    for number in (0, 1, 3):
        turns.served(("out", number))
    for view, node in ((before, 1), (moved, 2)):
        assert turns.arrange(view) == []
        order = [partition for (_, partition), _ in turns.of(node)]
        assert sorted(order) == [0, 1, 2, 3]
        assert order[0] == 2
        assert turns.leaders() == [node]


def test_a_leader_whose_answers_are_lost_stops_nobody_for_ever():
    parts = tuple(part_of(p, [[900]] * 4) for p in range(30))
    cluster = cluster_of(30, 3)
    cluster.script(K.PRODUCE, *[LOST, None, ANSWER_LOST] * 8)
    plan = ProducePlan(0, staged=parts, in_flight_bytes_max=4000, produce_request_bytes=2000)
    Watched(cluster, plan).run().check()
