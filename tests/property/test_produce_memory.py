"""Producing holds what `in_flight_bytes_max` allows, whatever the number of partitions.

Measured at the stamp: what was stamped until then, less what was acknowledged until then.
"""

from __future__ import annotations

from collections import Counter

import pytest
from support.query.produce_run import Watched, cluster_of, part_of
from support.query.staged_pieces import read_back

from txnlog_kafka.operations.batches import queues_of
from txnlog_kafka.operations.cluster_view import ClusterView, TopicView
from txnlog_kafka.operations.drain_order import DrainOrder
from txnlog_kafka.operations.produce import MISSES_MAX
from txnlog_kafka.operations.producer import ProducePlan
from txnlog_kafka.operations.transaction import Transaction


@pytest.mark.parametrize(
    ("count", "pieces", "nodes"),
    [(10, [[1000]] * 3, 3), (1000, [[1000]] * 3, 3), (200, [[100] * 20] * 2, 1)],
)
def test_a_thousand_partitions_take_no_more_memory_than_ten(count, pieces, nodes):
    parts = tuple(chunk for p in range(count) for chunk in part_of(p, pieces))
    plan = ProducePlan(0, staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(count, nodes), plan).run()
    watched.check()
    assert watched.most <= 20_000
    assert watched.unread_most <= 20_000


def test_a_request_looks_only_at_the_partitions_that_it_serves():
    parts = tuple(chunk for p in range(1000) for chunk in part_of(p, [[900], [900]]))
    plan = ProducePlan(0, staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(1000, 2), plan).run()
    requests = watched.requests()
    assert len(requests) > 200
    assert watched.looks <= 10 * 2000 + len(requests) * 2 * MISSES_MAX


def test_partitions_take_turns_so_that_none_waits_for_the_whole_batch():
    parts = tuple(chunk for p in range(100) for chunk in part_of(p, [[900]] * 10))
    plan = ProducePlan(0, staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(100, 2), plan).run()
    turns: Counter[int] = Counter()
    for partitions in watched.requests():
        turns.update(partitions)
        if len(turns) == 100:
            break
    assert max(turns.values()) <= 2


def test_who_sends_again_comes_before_who_holds_a_piece():
    parts = [chunk for p in range(4) for chunk in part_of(p, [[10, 10], [10]])]
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
