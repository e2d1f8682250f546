"""Produce on virtual time: leaders with delays of their own, that fail, move and forget nothing.

Every record is appended once and in order, whatever happens. And each leader goes on when its own
answer comes: while there is something to send to it, it has requests to handle.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.core.scripted_faults import ANSWER_LOST, LOST
from support.query.produce_run import FAULTS, Watched, move_leaders, part_of, slow_cluster_of

from txnlog_kafka.operations import produce
from txnlog_kafka.operations.producer import ProducePlan
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=3), min_size=1, max_size=5),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 300), min_size=1, max_size=3),
    st.tuples(st.integers(1, 9000), st.integers(1, 3000), st.integers(1, produce.MISSES_MAX)),
    st.lists(st.one_of(st.none(), st.sampled_from(FAULTS)), max_size=25),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.05, 0.3]),
)
# A partition that has no leader for a while, with batches in flight to the former one.
@example(
    [[[0]], [[0]], [[0], [0] * 3, [0] * 3], [[0]]],
    [22, 22, 0],
    (867, 1, produce.MISSES_MAX),
    [],
    6576,
    0.3,
)
# A batch that is sent a third time while others behind it were acknowledged at the second.
@example(
    [[[0], [0] * 3, [0] * 3]],
    [0],
    (288, 1, 9),
    [None, FAULTS[3], LOST, None, ANSWER_LOST, None, FAULTS[3], None, None, LOST],
    7775,
    0.0,
)
@settings(max_examples=150)
def test_whatever_leaders_do_every_batch_arrives_once_and_in_order(
    partitions, delays_ms, limits, faults, seed, chance
):
    cluster = slow_cluster_of(len(partitions), delays_ms, seed=seed)
    move_leaders(cluster, random.Random(seed), chance)
    cluster.script(K.PRODUCE, *faults)
    plan = ProducePlan(
        0,
        staged=tuple(chunk for p, pieces in enumerate(partitions) for chunk in part_of(p, pieces)),
        in_flight_bytes_max=limits[0],
        produce_request_bytes=limits[1],
    )
    with mock.patch.object(produce, "MISSES_MAX", limits[2]):
        Watched(cluster, plan).run().check()
    assert max(cluster.most_in_flight.values()) <= 5


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=9),
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.integers(1, 3000),
)
@settings(max_examples=60)
def test_no_leader_is_idle_while_there_is_something_to_send_to_it(
    batch_counts, delays_ms, request_bytes
):
    cluster = slow_cluster_of(len(batch_counts), delays_ms)
    plan = ProducePlan(
        0,
        staged=tuple(
            chunk for p, count in enumerate(batch_counts) for chunk in part_of(p, [[500]] * count)
        ),
        in_flight_bytes_max=10**7,
        produce_request_bytes=request_bytes,
    )
    watched = Watched(cluster, plan)

    def check() -> None:
        sent = Counter(
            (t.name, p.index)
            for asked in cluster.asked
            if asked.api_key == K.PRODUCE
            for t in asked.message.topic_data
            for p in t.partition_data
        )
        for number, count in enumerate(batch_counts):
            node = cluster.leaders["out", number]
            is_idle = sent["out", number] < count and not cluster.in_flight(node)
            assert not sent or not is_idle, "an idle leader"

    cluster.on_wait = check
    watched.run().check()


def test_a_partition_that_moves_is_sent_to_its_new_leader_when_the_old_one_has_answered():
    cluster = slow_cluster_of(3, [500, 10])
    parts = tuple(
        chunk for p in range(3) for chunk in part_of(p, [[500]] * (400 if p == 1 else 40))
    )
    watched = Watched(cluster, ProducePlan(0, staged=parts, produce_request_bytes=500))
    moved = []

    def move() -> None:
        if ("out", 0) in watched.produced.partitions and cluster.in_flight(1) == 5 and not moved:
            # The other one's NOT_LEADER_OR_FOLLOWER makes the client look both up.
            cluster.leaders.update({("out", 0): 2, ("out", 1): 1})
            moved.append(cluster.now_ms)

    cluster.on_wait = move
    watched.run().check()
    assert moved


def test_a_slow_leader_keeps_no_other_waiting():
    finished_ms: dict[int, int] = defaultdict(int)
    cluster = slow_cluster_of(2, [1000, 10])
    carry_out = cluster.carry_out

    def noting(asked):
        finished_ms[asked.node] = cluster.now_ms
        return carry_out(asked)

    cluster.carry_out = noting
    parts = tuple(chunk for p in range(2) for chunk in part_of(p, [[500]] * 20))
    started_ms = cluster.now_ms
    Watched(cluster, ProducePlan(0, staged=parts, produce_request_bytes=500)).run().check()
    assert finished_ms[2] - started_ms < 20 * 10 + 10
    assert finished_ms[1] - started_ms < 20 * 1000 + 10


def test_a_partition_that_waits_for_replicas_keeps_no_other_waiting():
    cluster = slow_cluster_of(2, [10])
    done_ms = {}

    def refuse(partition):
        if partition == ("out", 0) and cluster.now_ms < 5_000:
            return E.NOT_ENOUGH_REPLICAS
        done_ms[partition] = cluster.now_ms
        return None

    cluster.refuses = refuse
    parts = tuple(chunk for p in range(2) for chunk in part_of(p, [[500]] * 20))
    Watched(cluster, ProducePlan(0, staged=parts, produce_request_bytes=500)).run().check()
    assert done_ms["out", 1] < 1_000
    assert done_ms["out", 0] < 8_000


def test_while_the_transaction_takes_no_partition_little_is_sent_in_vain():
    cluster = slow_cluster_of(40, [10])
    refusals = 0

    def refuse(_partition):
        nonlocal refusals
        if cluster.now_ms < 2_000:
            refusals += 1
            return E.CONCURRENT_TRANSACTIONS
        return None

    cluster.refuses = refuse
    parts = tuple(chunk for p in range(40) for chunk in part_of(p, [[500]] * 2))
    plan = ProducePlan(0, staged=parts, produce_request_bytes=1200, in_flight_bytes_max=12_000)
    Watched(cluster, plan).run().check()
    assert refusals <= 8 * 10
