"""A batch whose plan, or the plans before it, Spark's offset log no longer has."""

from __future__ import annotations

import pytest
from support.query.query_job import QueryJob

from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.errors import (
    AnotherOutput,
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
    """Batch 0 is missing because Spark calls the function for batches with rows alone.

    Batch 0 only records the query's start, and Spark may already have purged its plan. Meanwhile a
    driver of the checkpoint that was believed to be lost may have committed another batch.
    """
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


def test_a_lost_batch_that_ends_before_the_group_is_committed(job: QueryJob) -> None:
    job.planned_again, job.ends = "again", {1: 1}
    assert job.commit("/cp", 1, "run-2", group_id="g").skipped
    assert job.rows == ["/cp.0", "/cp.1"]


def test_a_lost_batch_whose_rows_name_their_topics_is_known_by_its_own_output() -> None:
    """Without one topic for all rows, another driver's output is not known to be the same."""
    job = QueryJob()
    for batch_id in (0, 1):
        assert not job.commit("/cp", batch_id, topic=None, group_id="g").skipped
    job.planned_again, job.ends = "again", {1: 1}
    with pytest.raises(AnotherOutput):
        job.commit("/cp", 1, "run-2", topic=None, group_id="g", transactional_id="other")
    assert job.commit("/cp", 1, "run-3", topic=None, group_id="g").skipped
    assert job.rows == ["/cp.0", "/cp.1"]


def test_a_group_that_another_query_moved_does_not_prove_that_a_lost_batch_is_committed(
    job: QueryJob,
) -> None:
    note = format_note(GroupNote("other-query", 7, "positions"))
    job.cluster.commit_offsets("g", {("in", 0): (9, note)})
    job.planned_again, job.ends = "again", {1: 5}
    for run_id in ("run-2", "run-3"):
        with pytest.raises(CommittedOffsetsMoved, match="Query other-query has committed them"):
            job.commit("/cp", 1, run_id, group_id="g")
    assert job.rows == ["/cp.0", "/cp.1"]


def test_a_function_is_left_behind_where_another_driver_has_purged_the_entry_before_its_batch(
    job: QueryJob,
) -> None:
    """Both left out batches, and gave their numbers a second time. The entry that would show that
    the rows of the batch begin before the group is gone, and a newer one shows who took it."""
    job.delete("/cp/offsets")
    job.log("/cp", 19)
    job.ends = {16: 2}
    with pytest.raises(ProducerFenced, match="the offset log has a plan of batch 19"):
        job.commit("/cp", 16, "run-2", is_function=True, group_id="g")
    assert job.rows == ["/cp.0", "/cp.1"]


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
    """The driver was killed in its transaction, and Spark gave the same rows a later batch number.

    No batch lies between the two numbers. If the function had read rows in between and had left
    them out, the commit could not tell the difference.
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
    """Return the job of a query with state, whose batches 0, 1 and 2 are committed."""
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
        ProducerFenced, match="has begun batch 2, but this driver was about to begin batch 1"
    ):
        job.commit("/cp", 1, "paused", group_id="g")
    assert len(job.cluster.requests(K.INIT_PRODUCER_ID)) == asked, "no driver was fenced"


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
        with pytest.raises(ProducerFenced, match="another driver of query q has taken over"):
            job.commit("/cp", number, "paused", group_id="g", is_function=True)
    assert len(job.cluster.requests(K.INIT_PRODUCER_ID)) == asked, "no driver was fenced"
    assert job.rows == ["/cp.0", "/cp.1", "/cp.2", "/cp.3"]


@pytest.mark.invariant(59)
@pytest.mark.parametrize("end", [5, 7])
def test_a_batch_across_the_end_of_the_output_is_refused(end: int) -> None:
    """The batch has rows that are in the output, and rows that are not."""
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


def test_the_plan_of_a_first_batch_is_on_the_disk_before_its_baseline(job: QueryJob) -> None:
    """The baseline says which batches are done; a replan of one of them would contradict it."""
    cluster, flushed = job.cluster, []
    cluster.on_flush = lambda path: flushed.append((path, len(cluster.requests(K.END_TXN))))
    ended = len(cluster.requests(K.END_TXN))
    job.log("/new", 3)
    job.commit("/new", 4, is_function=True, group_id="h")
    assert flushed == [("/new/offsets/3", ended), ("/new/offsets/4", ended)]
    assert len(cluster.requests(K.END_TXN)) == ended + 2
