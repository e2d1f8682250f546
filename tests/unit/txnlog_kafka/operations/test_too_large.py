"""Record batches over a topic's max.message.bytes are divided; only single records are refused."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import ANSWER_LOST, refused
from support.query.commit_plans import (
    build_plan,
    check_wire_discipline,
    commit,
    record_batch,
    staged,
    with_baseline,
)

from txnlog_kafka.errors import RecordRefused
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K

ROWS = [f"{n:04}" + "x" * 100 for n in range(400)]
LIMIT = 5_000
IN_ORDER = [row.encode() for row in ROWS]
"""44 kB in four batches of 11 kB; two of them are over the limit even when halved."""


def four_batches(partition: int = 0):
    return staged("out", partition, *(record_batch(*ROWS[n : n + 100]) for n in range(0, 400, 100)))


def limited(limit: int = LIMIT) -> CoreBroker:
    cluster = with_baseline()
    cluster.configure("out", max_message_bytes=limit)
    return cluster


def sizes(cluster: CoreBroker) -> list[int]:
    """Return the size of each record batch that was sent."""
    return [
        len(p.records)
        for m in cluster.requests(K.PRODUCE)
        for t in m.topic_data
        for p in t.partition_data
    ]


def test_what_a_refusal_said_holds_for_all_later_batches_of_the_topic():
    cluster = limited()
    plan = build_plan(staged=(*four_batches(), *four_batches(1)), produce_request_bytes=12_000)
    outcome = commit(cluster, plan)
    assert outcome.produced_bytes == sum(part.size_bytes for part in plan.batch.staged)
    refusals = [size for size in sizes(cluster) if size > LIMIT]
    # Both partitions' first batches go out at once, and are halved once more.
    assert len(refusals) <= 2 * 2
    assert len(sizes(cluster)) - len(refusals) == 2 * 4 * 4
    assert cluster.slept_ms == [], "there is nothing to wait for"


def test_a_limit_that_is_lowered_in_the_middle_divides_what_is_left():
    cluster = with_baseline()

    def lower(step, _when):
        if step == "produce.first":
            cluster.configure("out", max_message_bytes=LIMIT)

    cluster.on_reached = lower
    outcome = commit(cluster, build_plan(staged=four_batches(), produce_request_bytes=12_000))
    assert (outcome.attempts, outcome.produced_records) == (1, 400)
    assert cluster.committed_values("out", 0) == IN_ORDER
    check_wire_discipline(cluster)


def test_a_batch_over_the_segments_size_is_divided_as_well():
    cluster = with_baseline()
    cluster.script(K.PRODUCE, refused(E.RECORD_LIST_TOO_LARGE))
    commit(cluster, build_plan(staged=four_batches()))
    assert cluster.committed_values("out", 0) == IN_ORDER


def test_a_batch_of_which_an_earlier_try_was_appended_is_not_appended_again_in_parts():
    """The limit is lowered between a try whose answer was lost and the next one."""
    cluster = with_baseline()
    cluster.script(K.PRODUCE, ANSWER_LOST, refused(E.MESSAGE_TOO_LARGE))
    outcome = commit(cluster, build_plan(staged=four_batches(), produce_request_bytes=12_000))
    assert outcome.attempts == 2, "the leader finds another sequence than the next"
    assert cluster.committed_values("out", 0) == IN_ORDER


def test_a_record_that_is_too_large_says_which_limit_and_nothing_becomes_visible():
    """docs/internals/faults.md L11: what the error advises helps."""
    cluster = limited(300)
    rows = record_batch("small", "y" * 600, "small")
    with pytest.raises(RecordRefused) as caught:
        commit(cluster, build_plan(staged=staged("out", 0, rows)))
    needed = len(record_batch("y" * 600))
    text = str(caught.value)
    assert f"a record with key null (a record batch of {needed} bytes, sequence 1) to out-0" in text
    assert "the topic's max.message.bytes is smaller: raise it to at least this size" in text
    assert not cluster.committed_values("out", 0)
    assert [m.committed for m in cluster.requests(K.END_TXN)] == [False]
    cluster.configure("out", max_message_bytes=needed)
    commit(cluster, build_plan(staged=staged("out", 0, rows)))
    assert len(cluster.committed_values("out", 0)) == 3
