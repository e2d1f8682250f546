"""A batch whose plan, or the plans before it, Spark's offset log no longer has."""

from __future__ import annotations

import pytest
from support.query.query_job import QueryJob

from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.errors import (
    BatchReplanned,
    CommittedOffsetsMoved,
    ProducerFenced,
    ProgressBehind,
    StatefulReplanned,
)
from txnlog_spark.group_note import GroupNote, format_note


@pytest.mark.parametrize("moved_to", [1, 2])
@pytest.mark.parametrize("is_purged", [False, True])
def test_the_first_batch_that_a_function_writes_begins_where_the_group_stands(
    moved_to: int, is_purged: bool
) -> None:
    """It leaves out batch 0, which has no rows and says where the query started from, and Spark
    may have purged that since. Meanwhile a driver of the checkpoint that was believed to be lost
    may have committed another batch."""
    job = QueryJob()
    job.cluster.commit_offsets("g", {("in", 0): (1, "")})
    job.start_committed("/new", 1)
    job.cluster.commit_offsets("g", {("in", 0): (moved_to, "")})
    if is_purged:
        job.delete("/new/offsets")
    if moved_to == 1:
        assert not job.commit("/new", 101, is_function=True, group_id="g").skipped
        assert job.rows == ["/new.101"]
        return
    for run_id in ("run-1", "run-2"):
        with pytest.raises(CommittedOffsetsMoved, match="it is at in-0 at 2"):
            job.commit("/new", 101, run_id, is_function=True, group_id="g")
    assert job.rows == []


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_function_that_was_quiet_finds_that_its_group_went_on_without_it(is_purged: bool) -> None:
    """Its checkpoint was believed to be lost, and another one went on; Spark purges the entry of
    the last batch that the function wrote after `minBatchesToRetain` quiet ones."""
    job = QueryJob()
    job.commit("/cp", 0, is_function=True, group_id="g")
    if is_purged:
        job.delete("/cp/offsets")
    assert not job.commit("/cp", 102, "run-1", is_function=True, group_id="g").skipped
    if is_purged:
        job.delete("/cp/offsets")
    note = format_note(GroupNote("other-query", 7, "positions"))
    job.cluster.commit_offsets("g", {("in", 0): (104, note)})
    for run_id in ("run-1", "run-2"):
        with pytest.raises(CommittedOffsetsMoved, match="Query other-query has committed them"):
            job.commit("/cp", 205, run_id, is_function=True, group_id="g")
    assert job.rows == ["/cp.0", "/cp.102"]


def test_a_function_whose_first_batch_was_lost_after_its_baseline_goes_on_with_a_later_one() -> (
    None
):
    """Killed before the batch was begun; planned again, the function leaves that batch out."""
    job = QueryJob()
    job.cluster.on_reached = _kill_at
    with pytest.raises(_Killed):
        job.commit("/cp", 2, is_function=True, group_id="g")
    job.cluster.on_reached = lambda step, when: None
    assert job.cluster.offsets("g.progress.q")["in", 0][0] == 2
    job.delete("/cp/txnlog")
    assert not job.commit("/cp", 4, "run-2", is_function=True, group_id="g").skipped
    assert job.rows == ["/cp.4"]


def test_a_function_whose_begun_batch_was_lost_goes_on_with_a_later_one_of_the_same_rows() -> None:
    """Killed in its transaction; planned again, the rows have a later number, and none is between.

    If the function had read rows since, and had left them out, nobody could tell.
    """
    job = QueryJob()
    options = {"group_id": "g", "is_function": True}
    job.commit("/cp", 0, **options)
    job.cluster.on_reached = _kill_in_the_transaction
    with pytest.raises(_Killed):
        job.commit("/cp", 3, **options)
    job.cluster.on_reached = lambda step, when: None
    job.lose_tail("/cp", 1)
    job.ends = {4: 1, 5: 2, 6: 3, 7: 4}
    job.log("/cp", 4)
    assert not job.commit("/cp", 5, "run-2", **options).skipped
    assert job.rows == ["/cp.0", "/cp.5"]
    job.cluster.on_reached = _kill_in_the_transaction
    with pytest.raises(_Killed):
        job.commit("/cp", 6, "run-2", **options)
    job.cluster.on_reached = lambda step, when: None
    with pytest.raises(ProgressBehind, match="although writing batch 6 had failed"):
        job.commit("/cp", 7, "run-2", **options)


class _Killed(BaseException):
    """The driver is gone."""


def _kill_at(step: str, when: str) -> None:
    if (step, when) == ("judge", "after"):
        raise _Killed


def _kill_in_the_transaction(step: str, when: str) -> None:
    if (step, when) == ("end_txn", "before"):
        raise _Killed


@pytest.fixture
def stateful() -> QueryJob:
    """On which batches 0, 1 and 2 of a query that keeps state are committed."""
    made = QueryJob()
    made.cluster.files["/cp/state/0/0/1.delta"] = b""
    for number in range(3):
        made.commit("/cp", number, group_id="g")
    return made


@pytest.mark.invariant(59)
@pytest.mark.parametrize("batch_id", [1, 2])
@pytest.mark.parametrize("is_function", [False, True])
def test_a_stateful_batch_that_was_planned_anew_is_neither_skipped_nor_done(
    stateful: QueryJob, batch_id: int, is_function: bool
) -> None:
    """Equal end offsets are not equal output: it depends on the watermark and the time as well."""
    files = dict(stateful.cluster.files)
    stateful.lose_tail("/cp", batch_id)
    stateful.planned_again = "another watermark"
    for run_id in ("run-2", "run-3"):
        with pytest.raises(StatefulReplanned, match=r"restore the folders offsets, commits"):
            stateful.commit("/cp", batch_id, run_id, group_id="g", is_function=is_function)
    stateful.planned_again = ""
    stateful.cluster.files = files
    assert stateful.commit("/cp", 2, "run-2", group_id="g").skipped, "restored, as the text says"
    assert not stateful.commit("/cp", 3, "run-2", group_id="g").skipped
    assert stateful.rows == ["/cp.0", "/cp.1", "/cp.2", "/cp.3"]


@pytest.mark.invariant(59)
def test_a_stateful_batch_behind_one_that_was_planned_anew_and_left_out_is_refused(
    stateful: QueryJob,
) -> None:
    """The function of foreachBatch did not call its sink for the batch that was planned anew."""
    stateful.planned_again = "another watermark"
    stateful.log("/cp", 2)
    stateful.planned_again = ""
    with pytest.raises(StatefulReplanned):
        stateful.commit("/cp", 3, "run-2", group_id="g", is_function=True)


@pytest.mark.parametrize("is_function", [False, True])
def test_a_stateless_query_goes_forward_from_a_backup_of_any_age(is_function: bool) -> None:
    """Its first batch ends where the group is, whatever its number, and the next begins there."""
    job = QueryJob()
    options = {"group_id": "g", "is_function": is_function}
    for number in range(6):
        job.commit("/cp", number, **options)
    job.lose_tail("/cp", 2)
    job.ends = {2: 6, 3: 8, 4: 9}
    assert job.commit("/cp", 2, "run-2", **options).skipped
    for number in (3, 4):
        assert not job.commit("/cp", number, "run-2", **options).skipped
    assert job.commit("/cp", 4, "run-3", **options).skipped
    assert job.rows == [f"/cp.{n}" for n in (0, 1, 2, 3, 4, 5, 3, 4)]
    assert job.cluster.offsets("g")["in", 0][0] == 9


def test_a_driver_of_before_that_has_begun_no_batch_stops_at_a_later_plan(job: QueryJob) -> None:
    """Spark has purged the entries that would have stopped it."""
    job.commit("/cp", 2, "run-2", group_id="g")
    asked = len(job.cluster.requests(K.INIT_PRODUCER_ID))
    job.ends = {1: 3}
    with pytest.raises(
        ProducerFenced, match="has begun batch 2, this one was about to begin batch 1"
    ):
        job.commit("/cp", 1, "paused", group_id="g")
    assert len(job.cluster.requests(K.INIT_PRODUCER_ID)) == asked, "nobody was fenced"


@pytest.mark.invariant(39)
@pytest.mark.parametrize("has_state", [False, True])
def test_a_driver_of_before_stops_where_spark_has_purged_all_that_was_begun_since(
    has_state: bool,
) -> None:
    """Batches that a function left out came since: the log goes on behind what was begun."""
    job = QueryJob()
    if has_state:
        job.cluster.files["/cp/state/0/0/1.delta"] = b""
    for number in range(4):
        job.commit("/cp", number, "run-2", group_id="g", is_function=True)
    job.lose_tail("/cp", 1)
    job.log("/cp", 5)
    asked = len(job.cluster.requests(K.INIT_PRODUCER_ID))
    job.planned_again, job.ends = "by the driver that stood still", {1: 4, 2: 9}
    for number in (1, 2):
        with pytest.raises(ProducerFenced, match="another driver of query q went on"):
            job.commit("/cp", number, "paused", group_id="g", is_function=True)
    assert len(job.cluster.requests(K.INIT_PRODUCER_ID)) == asked, "nobody was fenced"
    assert job.rows == ["/cp.0", "/cp.1", "/cp.2", "/cp.3"]


@pytest.mark.invariant(59)
@pytest.mark.parametrize("end", [5, 7])
def test_a_batch_across_the_end_of_the_output_is_refused(end: int) -> None:
    """It has rows that are in the output and rows that are not."""
    job = QueryJob()
    for number in range(6):
        job.commit("/cp", number, group_id="g")
    job.lose_tail("/cp", 2)
    job.ends = {2: end, 3: 8}
    if end == 7:
        with pytest.raises(BatchReplanned):
            job.commit("/cp", 2, "run-2", group_id="g")
    else:
        assert job.commit("/cp", 2, "run-2", group_id="g").skipped
    with pytest.raises(BatchReplanned):
        job.commit("/cp", 3, "run-2", group_id="g")
    assert len(job.rows) == 6


def test_the_plan_of_a_batch_is_on_the_disk_before_its_transaction_begins(job: QueryJob) -> None:
    """Both entries that say what it reads; a loss of power takes what Spark did not flush."""
    cluster, flushed = job.cluster, []
    cluster.on_flush = lambda path: flushed.append((path, len(cluster.requests(K.END_TXN))))
    ended = len(cluster.requests(K.END_TXN))
    job.commit("/cp", 2, group_id="g")
    assert flushed == [("/cp/offsets/1", ended), ("/cp/offsets/2", ended)]
