"""Producing holds what `in_flight_bytes_max` allows, whatever the number of partitions.

Measured at the stamp: what was stamped until then, less what was acknowledged until then.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from support.commit_plans import build_plan, check_wire_discipline
from support.scripted_broker import ANSWER_LOST, LOST, ScriptedCluster, refused

from txnlog_spark.protocol import produce
from txnlog_spark.protocol.batches import PartitionQueue, Turns, queues_of
from txnlog_spark.protocol.cluster_view import ClusterView, TopicView
from txnlog_spark.protocol.produce import MISSES_MAX, Produced, produce_staged, staged_totals
from txnlog_spark.protocol.transaction import Transaction, init_producer_id
from txnlog_spark.protocol.values import StagedPartition
from txnlog_spark.wire.errors import ErrorCode as E
from txnlog_spark.wire.messages import ApiKey as K
from txnlog_spark.wire.records import Record, encode_batch, iter_batches


def part_of(partition: int, pieces: list[list[int]], *, announced: bool = True) -> StagedPartition:
    """Staged pieces of batches with values of these sizes; batch i of the partition says so."""
    numbers = iter(range(10**6))
    data = [
        b"".join(
            encode_batch([Record(None, b"%d.%d." % (partition, next(numbers)) + bytes(size), 1)])
            for size in piece
        )
        for piece in pieces
    ]
    sizes = tuple(map(len, data))
    return StagedPartition(
        topic="out",
        partition=partition,
        read=lambda: iter(data),
        size_bytes=sum(sizes),
        record_count=sum(map(len, pieces)),
        piece_bytes=sizes if announced else (),
    )


class Watched:
    """One run of S5 on a scripted cluster, with what was in memory at most."""

    def __init__(self, cluster: ScriptedCluster, plan) -> None:
        self.produced = Produced()
        self.stamped = self.most = self.unread_most = self.looks = self.largest = 0
        self.cluster, self.plan = cluster, plan
        self.queues: set[PartitionQueue] = set()

    def run(self) -> Watched:
        stamp, look = PartitionQueue._stamp, PartitionQueue.next_bytes

        def stamping(queue, piece, header):
            batch = stamp(queue, piece, header)
            self.stamped += len(batch.data)
            self.largest = max(self.largest, len(batch.data))
            self.most = max(self.most, self.stamped - self.produced.bytes)
            self.queues.add(queue)
            self.unread_most = max(self.unread_most, sum(q.unstamped_bytes for q in self.queues))
            return batch

        def looking(queue):
            self.looks += 1
            return look(queue)

        with (
            mock.patch.object(PartitionQueue, "_stamp", stamping),
            mock.patch.object(PartitionQueue, "next_bytes", looking),
        ):
            session = self.cluster.session(request_timeout_ms=100)
            self.cluster.run(self._operation(session))
        return self

    def _operation(self, session):
        identity = yield from init_producer_id(session, "t", 60_000)
        transaction = Transaction("t", identity.producer_id, identity.producer_epoch, 2)
        yield from produce_staged(session, transaction, self.plan, self.produced)

    def rounds(self) -> Iterator[list[tuple[int, list[int]]]]:
        """Each round's requests: the node and the partitions in it."""
        for calls in self.cluster.rounds:
            found = [
                (c.node, [p.index for t in c.message.topic_data for p in t.partition_data])
                for c in calls
                if type(c.message).__name__ == "ProduceRequest"
            ]
            if found:
                yield found

    def check(self) -> None:
        limit = max(self.plan.in_flight_bytes_max, self.largest)
        assert self.most <= limit, "stamped and not acknowledged"
        assert self.produced == staged_totals(self.plan.staged)
        check_wire_discipline(self.cluster)
        for part in self.plan.staged:
            sent = [a.raw for a in self.cluster.state.logs["out", part.partition]]
            staged = b"".join(bytes(piece) for piece in part.read())
            assert [r[61:] for r in sent] == [
                staged[at + 61 : at + h.size_bytes] for h, at in iter_batches(staged)
            ]


def cluster_of(partition_count: int, node_count: int) -> ScriptedCluster:
    nodes = tuple(range(1, node_count + 1))
    leaders = {("out", p): 1 + p % node_count for p in range(partition_count)}
    return ScriptedCluster(2, leaders=leaders | {("in", 0): 1}, nodes=nodes)


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
    st.booleans(),
)
@settings(max_examples=80)
def test_memory_is_bounded_and_every_batch_arrives_once_and_in_order(
    partitions, node_count, limits, faults, announced
):
    in_flight_bytes_max, request_bytes, misses_max = limits
    parts = tuple(part_of(p, pieces, announced=announced) for p, pieces in enumerate(partitions))
    cluster = cluster_of(len(parts), node_count)
    cluster.script(K.PRODUCE, *faults)
    plan = build_plan(
        staged=parts, in_flight_bytes_max=in_flight_bytes_max, produce_request_bytes=request_bytes
    )
    with mock.patch.object(produce, "MISSES_MAX", misses_max):
        Watched(cluster, plan).run().check()


def test_a_thousand_partitions_take_no_more_memory_than_ten():
    batch = 1000
    for count in (10, 1000):
        parts = tuple(part_of(p, [[batch], [batch], [batch]]) for p in range(count))
        plan = build_plan(staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
        watched = Watched(cluster_of(count, 3), plan).run()
        watched.check()
        assert watched.most <= 20_000
        assert watched.unread_most <= 20_000


def test_pieces_of_many_batches_are_read_ahead_within_the_limit_too():
    parts = tuple(part_of(p, [[100] * 20, [100] * 20]) for p in range(200))
    plan = build_plan(staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(200, 1), plan).run()
    watched.check()
    assert watched.unread_most <= 20_000


def test_a_round_looks_only_at_the_partitions_that_it_serves():
    parts = tuple(part_of(p, [[900], [900]]) for p in range(1000))
    plan = build_plan(staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(1000, 2), plan).run()
    rounds = list(watched.rounds())
    assert len(rounds) > 50
    assert watched.looks <= 10 * 2000 + len(rounds) * 2 * 5 * MISSES_MAX


def test_partitions_take_turns_so_that_none_waits_for_the_whole_batch():
    parts = tuple(part_of(p, [[900]] * 10) for p in range(100))
    plan = build_plan(staged=parts, in_flight_bytes_max=20_000, produce_request_bytes=5000)
    watched = Watched(cluster_of(100, 2), plan).run()
    turns: Counter[int] = Counter()
    for requests in watched.rounds():
        turns.update({p for _, partitions in requests for p in partitions})
        if len(turns) == 100:
            break
    assert max(turns.values()) <= 2


def test_who_sends_again_comes_before_who_holds_a_piece():
    parts = [part_of(p, [[10, 10], [10]]) for p in range(4)]
    turns = Turns(queues_of(parts, Transaction("t", 1, 0, 2)))
    before = ClusterView(topics={"out": TopicView(bytes(16), dict.fromkeys(range(4), 1))})
    moved = ClusterView(topics={"out": TopicView(bytes(16), dict.fromkeys(range(4), 2))})
    assert turns.arrange(before) == []
    taken = {p: queue.pop() for p, queue in turns.of(1)}
    turns.put_back(("out", 2), [taken["out", 2]])
    for number in (0, 1, 3):
        turns.served(1, ("out", number))
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
    plan = build_plan(staged=parts, in_flight_bytes_max=4000, produce_request_bytes=2000)
    Watched(cluster, dataclasses.replace(plan)).run().check()
