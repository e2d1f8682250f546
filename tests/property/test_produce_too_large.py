"""Produce to a topic with a small max.message.bytes, on virtual time: each record once."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.query.produce_run import FAULTS, Watched, move_leaders, slow_cluster_of
from support.query.staged_pieces import piece_of

from txnlog_kafka.operations.produce import staged_totals
from txnlog_kafka.operations.producer import ProducePlan
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import Record, encode_batch

RECORD_BYTES_MAX = 400
"""A record of 300 bytes fits alone into each of the limits."""


def values(partition: int, sizes: list[list[int]]) -> list[list[bytes]]:
    """Return the values of each batch, with their places."""
    return [
        [b"%d.%d.%d." % (partition, b, r) + bytes(size) for r, size in enumerate(batch)]
        for b, batch in enumerate(sizes)
    ]


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=40), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.integers(RECORD_BYTES_MAX, 4_000),
    st.lists(st.integers(0, 300), min_size=1, max_size=2),
    st.tuples(st.integers(1, 9000), st.integers(1, 3000)),
    st.lists(st.one_of(st.none(), st.sampled_from(FAULTS)), max_size=25),
    st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 0.3])),
)
@settings(max_examples=150)
def test_whatever_the_limit_is_and_leaders_do_every_record_arrives_once_and_in_order(
    partitions, limit, delays_ms, limits, faults, moves
):
    seed, chance = moves
    cluster = slow_cluster_of(len(partitions), delays_ms, seed=seed)
    cluster.configure("out", max_message_bytes=limit)
    move_leaders(cluster, random.Random(seed), chance)
    cluster.script(K.PRODUCE, *faults)
    batches = [values(p, sizes) for p, sizes in enumerate(partitions)]
    plan = ProducePlan(
        0,
        staged=tuple(
            piece_of(encode_batch([Record(None, value, 1) for value in batch]), "out", p)
            for p, each in enumerate(batches)
            for batch in each
        ),
        in_flight_bytes_max=limits[0],
        produce_request_bytes=limits[1],
    )
    watched = Watched(cluster, plan).run()
    assert watched.produced == staged_totals(plan.staged)
    for p, each in enumerate(batches):
        assert cluster.values("out", p) == [v for batch in each for v in batch]
        assert max(b.header.size_bytes for b in cluster.batches("out", p)) <= limit
    assert max(cluster.most_in_flight.values()) <= 5
