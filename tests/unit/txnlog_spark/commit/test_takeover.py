"""Takeover of a query: the right to fence, the questions before, and missing progress."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from support.core.core_broker import Asked, CoreBroker
from support.core.scripted_faults import refused
from support.query.commit_plans import (
    CHECKPOINT,
    EXPECTED,
    FOLDER,
    PROGRESS_GROUP,
    build_plan,
    changed,
    commit,
    commit_recorded,
    nothing_is_written,
    put_begun,
    put_progress,
    recorded,
    recorded_on,
    with_baseline,
)

from txnlog_kafka.operations.effects import ListFolder, Operation, WriteFile
from txnlog_kafka.operations.transaction import init_producer_id
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.commit.attempt import initialise
from txnlog_spark.commit.journal import record_output, record_path
from txnlog_spark.commit.progress import group_digest
from txnlog_spark.errors import (
    BROKERS,
    AnotherOutput,
    BatchReplanned,
    CommittedOffsetsMoved,
    FatalError,
    GroupHasOffsets,
    ProducerFenced,
    ProgressError,
    ProgressMissing,
    RecordRefused,
    TransactionTimedOut,
)


def with_progress(next_batch_id: int, **digests: str) -> CoreBroker:
    cluster = CoreBroker(2)
    put_progress(cluster, next_batch_id, ("out", 1), **digests)
    return cluster


# ------------------------------------------------------------------ who may fence


@pytest.mark.invariant(61)
@pytest.mark.parametrize("version", [1, 2])
def test_a_driver_that_finds_the_batch_committed_fences_nobody(version: int) -> None:
    cluster = CoreBroker(version)
    commit(cluster, build_plan(0))
    healthy = commit_recorded(cluster.session(), build_plan(1))
    cluster.run_until(healthy, "end_txn")
    cluster.asked.clear()
    assert commit(cluster, build_plan(0, run_id="by mistake")).skipped
    assert K.INIT_PRODUCER_ID not in cluster.apis()
    assert not cluster.run(healthy).skipped


@pytest.mark.invariant(61)
def test_a_batch_that_is_refused_fences_nobody_either() -> None:
    cluster = with_progress(8, source_digest="other")
    with pytest.raises(BatchReplanned):
        commit(cluster, build_plan(7))
    assert K.INIT_PRODUCER_ID not in cluster.apis()


def test_an_open_transaction_of_another_driver_does_not_hold_up_a_skip(cluster: CoreBroker) -> None:
    commit(cluster, build_plan(0))
    unstable = refused(E.UNSTABLE_OFFSET_COMMIT)
    handle = cluster.handle

    def answer(asked: Asked) -> Any:
        if getattr(asked.message, "require_stable", False):
            cluster.script(K.OFFSET_FETCH, unstable)
        return handle(asked)

    cluster.handle = answer  # type: ignore[method-assign]
    assert commit(cluster, build_plan(0)).skipped


@pytest.mark.invariant(41)
def test_a_commit_whose_markers_are_late_is_waited_for_and_not_missed(cluster: CoreBroker) -> None:
    """Batch 1 is committed, and only the stable OffsetFetch after InitProducerId shows it."""
    commit(cluster, build_plan(0))
    before: list[CoreBroker] = []
    cluster.on_reached = lambda *place: before.extend(
        [cluster.fork()] if place == ("end_txn", "before") else []
    )
    commit(cluster, build_plan(1))
    carry_out = cluster.carry_out

    def answer(asked: Asked) -> Any:
        if asked.api_key != K.OFFSET_FETCH or not before:
            return carry_out(asked)
        holder = before.pop() if asked.message.require_stable else before[0]
        return holder.carry_out(asked)

    cluster.carry_out = answer  # type: ignore[method-assign]
    assert commit(cluster, build_plan(1, run_id="run-2")).skipped
    assert cluster.slept_ms


# ------------------------------------------------------------------ the record


@pytest.mark.invariant(37)
def test_a_batch_is_recorded_before_its_transaction_begins_and_a_skipped_one_is_not() -> None:
    cluster = with_baseline()
    seen = []

    def note(step: str, when: str) -> None:
        if (step, when) == ("judge", "after"):
            begun = recorded_on(cluster)
            assert begun is not None
            seen.append((begun.batch_id, K.PRODUCE in cluster.apis()))

    cluster.on_reached = note
    commit(cluster, build_plan(0))
    assert seen == [(0, False)]
    cluster.files.clear()
    assert commit(cluster, build_plan(0)).skipped
    assert not cluster.files


# ------------------------------------------------------------------ whose progress it is


@pytest.mark.invariant(36, 61)
@pytest.mark.parametrize(
    "other",
    [
        {"transactional_id": "u"},
        {"sink_name": "side"},
        {"copy": "c0ffee"},
        {"checkpoint": "another"},
        {"cluster_id": "d"},
    ],
)
@pytest.mark.parametrize("next_batch_id", [7, 8])
def test_progress_of_another_output_is_refused_before_anybody_is_fenced(
    cluster: CoreBroker, other: dict[str, str], next_batch_id: int
) -> None:
    put_progress(cluster, next_batch_id, of=build_plan(**other), batch_hash="planned-7")
    with pytest.raises(AnotherOutput, match="another copy of the checkpoint is at work"):
        commit(cluster, build_plan(7))
    assert K.INIT_PRODUCER_ID not in cluster.apis()
    assert nothing_is_written(cluster)


def test_a_batch_is_not_skipped_for_a_topic_that_its_rows_are_not_in(cluster: CoreBroker) -> None:
    commit(cluster, build_plan(0))
    elsewhere = build_plan(0, target="other")
    with pytest.raises(AnotherOutput, match=r"in topic 'out' already.* topic 'other'"):
        commit(cluster, elsewhere)
    assert commit(cluster, build_plan(0)).skipped, "as the error says"
    assert not commit(cluster, build_plan(1, target="other")).skipped


def test_another_topic_may_be_gone_on_with_though_its_first_batch_failed(
    cluster: CoreBroker,
) -> None:
    """Until the batch is committed, the progress belongs to the topic before."""
    commit(cluster, build_plan(0))
    elsewhere = build_plan(1, target="other")
    for _ in range(2):
        cluster.script(K.PRODUCE, refused(E.MESSAGE_TOO_LARGE))
        with pytest.raises(RecordRefused):
            commit(cluster, elsewhere)
    assert not commit(cluster, elsewhere).skipped


def test_the_topic_of_the_last_batch_is_known_whatever_the_record_says(cluster: CoreBroker) -> None:
    """An object store set the record back, to a topic that was left again before any batch."""
    commit(cluster, build_plan(0))
    set_back = cluster.files[f"{FOLDER}/attempt.json"]
    assert not commit(cluster, build_plan(1, target="b")).skipped
    cluster.files[f"{FOLDER}/attempt.json"] = set_back
    with pytest.raises(AnotherOutput, match="in topic 'b' already"):
        commit(cluster, build_plan(1, target="c"))
    assert commit(cluster, build_plan(1, target="b")).skipped
    assert not commit(cluster, build_plan(2, target="c")).skipped


def test_what_a_driver_with_a_third_id_has_committed_is_known_by_the_recorded_ids(
    cluster: CoreBroker,
) -> None:
    """The third driver committed the batch, and a driver that it fenced had recorded the batch as
    begun."""
    first, second, third = (build_plan(1, transactional_id=name) for name in "abc")
    put_progress(cluster, 2, of=first, batch_hash="planned-1")
    put_begun(cluster, recorded(second))
    cluster.run(record_output(second.committer))
    with pytest.raises(AnotherOutput):
        commit(cluster, third)
    cluster.run(record_output(first.committer))
    assert commit(cluster, third).skipped
    assert K.INIT_PRODUCER_ID not in cluster.apis()


# ------------------------------------------------------------------ several transactional ids


def initialised(cluster: CoreBroker) -> list[str]:
    return [each.transactional_id for each in cluster.requests(K.INIT_PRODUCER_ID)]


def test_a_takeover_records_its_id_initialises_it_and_fences_all_others_in_this_order(
    cluster: CoreBroker,
) -> None:
    plans = [build_plan(0, transactional_id=name) for name in ("a", "b", "c")]
    for plan in plans:
        cluster.run(record_output(plan.committer))
    seen = []

    def watched(operation: Operation[Any]) -> Operation[Any]:
        outcome = None
        while True:
            try:
                ask = operation.send(outcome)
            except StopIteration as stop:
                return stop.value
            if isinstance(ask, WriteFile | ListFolder):
                seen.append(type(ask).__name__)
            outcome = yield ask
            seen.extend(initialised(cluster))
            cluster.asked.clear()

    cluster.run(watched(initialise(cluster.session(), plans[1])))
    assert seen[:3] == ["WriteFile", "b", "ListFolder"]
    assert sorted(seen[3:]) == ["a", "c"]


def test_an_id_that_was_left_is_fenced_by_each_batch_and_the_own_one_recorded_once_in_a_run(
    cluster: CoreBroker,
) -> None:
    commit(cluster, build_plan(0, transactional_id="old"))
    own = record_path(build_plan().committer)
    for number, run_id, is_recorded in ((1, "a", True), (2, "a", False), (3, "b", True)):
        cluster.asked.clear()
        cluster.files.pop(own, None)
        assert not commit(cluster, build_plan(number, run_id=run_id)).skipped
        assert initialised(cluster) == ["t", "old"]
        assert (own in cluster.files) == is_recorded
    commit(cluster, build_plan(4, run_id="b", transactional_id="u"))
    assert record_path(build_plan(transactional_id="u").committer) in cluster.files


def test_an_id_that_may_not_be_fenced_is_named_and_the_advice_helps(cluster: CoreBroker) -> None:
    """The former id has two records, because the checkpoint was moved."""
    commit(cluster, build_plan(0, transactional_id="old"))
    cluster.run(record_output(build_plan(transactional_id="old", checkpoint="/before").committer))
    cluster.script(K.INIT_PRODUCER_ID, None, refused(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    asked = len(cluster.asked)
    with pytest.raises(FatalError, match="had transactional id 'old' before 't'") as caught:
        commit(cluster, build_plan(1))
    assert nothing_is_written(cluster, asked)
    named = re.search(r"delete (\S+) and (\S+) and start the query again", str(caught.value))
    assert named is not None
    for path in named.groups():
        del cluster.files[path]
    cluster.asked.clear()
    assert not commit(cluster, build_plan(1)).skipped
    assert initialised(cluster) == ["t"]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"version":1}', b'{"version":2}', b"\xff"])
def test_an_id_that_cannot_be_read_is_an_error_and_not_no_id(
    cluster: CoreBroker, text: bytes
) -> None:
    cluster.files[f"{FOLDER}/outputs/some.json"] = text
    with pytest.raises(ProgressError, match=r"txnlog/outputs/some\.json cannot be used"):
        commit(cluster, build_plan(0))


# ------------------------------------------------------------------ a batch without progress


def at_batch_7(group_is_at: int, begun: int = 6) -> CoreBroker:
    """Batch 6 left the group at 4; the progress is gone."""
    cluster = CoreBroker(2)
    cluster.files["cp/offsets/6"] = b'v1\n{}\n{"in":{"0":4}}'
    put_begun(cluster, recorded(build_plan(begun), group_digest=group_digest("g")))
    cluster.commit_offsets("g", {("in", 0): (group_is_at, "")})
    return cluster


def test_a_batch_that_was_never_begun_is_done_and_its_progress_exists_before() -> None:
    cluster = at_batch_7(4)
    commit(cluster, build_plan(7))
    assert {p: cluster.committed_values(*p) for p in EXPECTED} == EXPECTED
    ended = [r.committed for r in cluster.requests(K.END_TXN)]
    assert ended == [True, True], "a baseline, and the batch"
    assert cluster.offsets(PROGRESS_GROUP)[("out", 0)][0] == 8


@pytest.mark.parametrize("begun", [7, 8])
def test_a_batch_that_may_have_been_begun_is_not(begun: int) -> None:
    cluster = at_batch_7(4, begun)
    with pytest.raises(ProgressMissing, match="Check whether the output ends with") as caught:
        commit(cluster, build_plan(7))
    command = f"python -m txnlog_spark progress set {BROKERS} --checkpoint {CHECKPOINT}"
    assert caught.value.commands == (
        f"Do this if the output has batch 7: {command} --next-batch-id 8 --execute",
        f"Do this if the output lacks batch 7: {command} --next-batch-id 7 --execute",
    )
    assert nothing_is_written(cluster)


def test_a_batch_that_was_never_begun_is_refused_when_its_group_went_on_without_it() -> None:
    with pytest.raises(CommittedOffsetsMoved, match="in-0 from 4 to 9"):
        commit(at_batch_7(9), build_plan(7))


def test_a_first_batch_that_was_begun_before_a_newer_checkpoint_went_on_is_refused() -> None:
    """The old checkpoint has its baseline and no committed batch: its group is somebody else's."""
    cluster = with_progress(0)
    cluster.commit_offsets("g", {("in", 0): (9, "")})
    put_begun(cluster, recorded(build_plan(0)))
    with pytest.raises(GroupHasOffsets, match="in-0 at 9"):
        commit(cluster, build_plan(0))
    assert nothing_is_written(cluster)


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_refusal_is_a_fence_when_another_driver_came_between_two_questions(
    is_overtaken: bool,
) -> None:
    cluster = at_batch_7(4)
    carry_out = cluster.carry_out

    def answer(asked: Asked) -> Any:
        if asked.api_key == K.OFFSET_FETCH and asked.message.groups[0].group_id == "g":
            cluster.carry_out = carry_out  # type: ignore[method-assign]
            cluster.commit_offsets("g", {("in", 0): (9, "")})
            if is_overtaken:
                cluster.run(init_producer_id(cluster.session(), "t", 60_000))
        return carry_out(asked)

    cluster.carry_out = answer  # type: ignore[method-assign]
    with pytest.raises(ProducerFenced if is_overtaken else CommittedOffsetsMoved):
        commit(cluster, build_plan(7))


# ------------------------------------------------------------------ what pins a batch


@pytest.mark.invariant(36, 59)
@pytest.mark.parametrize(
    ("digests", "is_pinned", "skipped"),
    [
        ({"batch_hash": "planned-7"}, False, True),
        ({"source_digest": "digest-5", "batch_hash": "another"}, True, True),
        ({"source_digest": "digest-5", "batch_hash": "another"}, False, False),
        ({"source_digest": "digest-5"}, False, False),
        ({"source_digest": "another", "batch_hash": "another"}, True, False),
        ({}, True, False),
    ],
)
def test_a_committed_batch_is_skipped_only_when_it_is_known_to_be_the_same(
    digests: dict[str, str], is_pinned: bool, skipped: bool
) -> None:
    cluster = with_progress(8, **digests)
    plan = build_plan(7, is_pinned=is_pinned)
    if skipped:
        assert commit(cluster, plan).skipped
        return
    with pytest.raises(BatchReplanned, match="planned again"):
        commit(cluster, plan)


def test_rows_that_name_their_topics_are_not_known_by_the_offsets_of_another_id(
    cluster: CoreBroker,
) -> None:
    """A copy of the volume at the same place may have sent the same offsets' rows elsewhere."""
    old = build_plan(7, target="", transactional_id="old")
    new = build_plan(7, target="", batch_hash="another")
    put_progress(cluster, 8, of=old, source_digest="digest-5", batch_hash="planned-7")
    put_begun(cluster, recorded(old))
    with pytest.raises(AnotherOutput):
        commit(cluster, new)
    assert commit(cluster, changed(new, batch_hash="planned-7")).skipped


# ------------------------------------------------------------------ the transaction timeout


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_longer_than_the_timeout_says_so_and_is_not_tried_again(version: int) -> None:
    cluster = with_baseline(version)
    plan = build_plan(transaction_timeout_ms=60_000, produce_request_bytes=1)

    def late(step: str, _when: str) -> None:
        if step == "produce.first":
            cluster.now_ms += 61_000
            cluster.always[K.PRODUCE] = refused(E.INVALID_PRODUCER_EPOCH)

    cluster.on_reached = late
    with pytest.raises(TransactionTimedOut) as caught:
        commit(cluster, plan)
    text = str(caught.value)
    done = sum(p.size_bytes for p in plan.batch.staged)
    assert f"of {done} staged bytes were produced" in text
    assert "kafka.transaction.timeout.ms=60000" in text
    assert "transaction.max.timeout.ms, 900000 here" in text
    assert cluster.apis().count(K.INIT_PRODUCER_ID) == 1, "not tried again"


def test_a_fence_before_the_timeout_is_a_fence(cluster: CoreBroker) -> None:
    cluster.script(K.PRODUCE, refused(E.INVALID_PRODUCER_EPOCH))
    assert commit(cluster, build_plan()).attempts == 2


@pytest.mark.parametrize("records", [0, 1, 3])
def test_what_is_not_what_was_staged_is_never_committed(records: int) -> None:
    plan = build_plan()
    first, *others = plan.batch.staged
    plan = changed(plan, staged=(replace(first, record_count=records), *others))
    cluster = with_baseline()
    with pytest.raises(AssertionError, match="not what was staged"):
        commit(cluster, plan)
    assert K.END_TXN not in cluster.apis()
