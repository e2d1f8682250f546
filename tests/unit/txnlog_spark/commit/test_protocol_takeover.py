"""Who may fence, what is asked on the way, and what a batch without progress means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.commit_plans import EXPECTED, PROGRESS_GROUP, QUERY, build_plan, nothing_is_written
from support.scripted_broker import ScriptedCluster, refused

from txnlog_spark.commit.micro_batch import commit_micro_batch
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.commit.progress import group_digest
from txnlog_spark.commit.takeover import initialise
from txnlog_spark.commit.transactional_ids import record_ids
from txnlog_spark.errors import (
    BatchReplanned,
    CommittedOffsetsMoved,
    FatalError,
    GroupHasOffsets,
    ProducerFenced,
    ProgressError,
    ProgressMissing,
    TransactionTimedOut,
)
from txnlog_spark.protocol.effects import ListFolder, Operation, WriteFile
from txnlog_spark.protocol.transaction import init_producer_id
from txnlog_spark.wire.errors import ErrorCode as E
from txnlog_spark.wire.messages import ApiKey as K


@dataclass
class Record:
    """A journal that remembers what it was told."""

    said: list[str] = field(default_factory=list)
    folder: str = "txnlog"

    def begin(self, plan: CommitPlan) -> Operation[None]:
        self.said.append("begin")
        yield from ()


def commit(cluster: ScriptedCluster, plan: Any, identity: Any = None) -> Any:
    return cluster.run(commit_micro_batch(cluster.session(), identity, plan))


def with_progress(next_batch_id: int, metadata: str) -> ScriptedCluster:
    cluster = ScriptedCluster(2)
    cluster.state.offsets[PROGRESS_GROUP][("out", 1)] = (next_batch_id, metadata)
    return cluster


def progress_of(**digests: str) -> str:
    parts = "".join(f',"{name}":"{value}"' for name, value in digests.items())
    return f'{{"v":1,"q":"{QUERY}"{parts}}}'


# ------------------------------------------------------------------ who may fence


@pytest.mark.invariant(61)
@pytest.mark.parametrize("version", [1, 2])
def test_a_driver_that_finds_the_batch_committed_fences_nobody(version: int) -> None:
    cluster = ScriptedCluster(version)
    healthy = commit(cluster, build_plan(0))
    cluster.asked.clear()
    outcome = commit(cluster, build_plan(0))
    assert outcome.skipped
    assert outcome.identity is None
    assert K.INIT_PRODUCER_ID not in cluster.apis()
    assert not commit(cluster, build_plan(1), healthy.identity).skipped


@pytest.mark.invariant(61)
def test_a_batch_that_is_refused_fences_nobody_either() -> None:
    cluster = with_progress(8, progress_of(e="other"))
    with pytest.raises(BatchReplanned):
        commit(cluster, build_plan(7))
    assert K.INIT_PRODUCER_ID not in cluster.apis()


def test_an_open_transaction_of_another_driver_does_not_hold_up_a_skip() -> None:
    cluster = ScriptedCluster(2)
    commit(cluster, build_plan(0))
    unstable = refused(E.UNSTABLE_OFFSET_COMMIT)
    perform = cluster._call

    def answer(call: Any) -> Any:
        if getattr(call.message, "require_stable", False):
            cluster.script(K.OFFSET_FETCH, unstable)
        return perform(call)

    cluster._call = answer  # type: ignore[method-assign]
    assert commit(cluster, build_plan(0)).skipped


def with_late_markers(*, next_hangs: bool = False) -> ScriptedCluster:
    """Batches 0 and 1 are committed, and the first OffsetFetch does not show the second one yet;
    later ones do, and may find a transaction of the next batch open."""
    cluster = ScriptedCluster(2)
    first = commit(cluster, build_plan(0))
    progress = cluster.state.offsets[PROGRESS_GROUP]
    visible = dict(progress)
    commit(cluster, build_plan(1), first.identity)
    decided = dict(progress)
    progress.update(visible)
    cluster.asked.clear()
    perform = cluster._call

    def answer(call: Any) -> Any:
        if call.message.API_KEY == K.OFFSET_FETCH and K.OFFSET_FETCH in cluster.apis():
            progress.update(decided)
            if next_hangs and call.message.require_stable:
                cluster.script(K.OFFSET_FETCH, refused(E.UNSTABLE_OFFSET_COMMIT))
        return perform(call)

    cluster._call = answer  # type: ignore[method-assign]
    return cluster


@pytest.mark.invariant(41, 61)
@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_commit_whose_markers_are_late_is_waited_for_and_not_missed(batch_id: int) -> None:
    """The record says that batches 0 and 1 are committed; who did that may be at the next one."""
    cluster = with_late_markers()
    assert commit(cluster, build_plan(batch_id, next_batch_id_min=2)).skipped
    assert K.INIT_PRODUCER_ID not in cluster.apis()


def test_who_waits_for_late_markers_is_not_held_up_by_the_next_transaction_of_a_hung_driver() -> (
    None
):
    cluster = with_late_markers(next_hangs=True)
    assert commit(cluster, build_plan(1, next_batch_id_min=2)).skipped


# ------------------------------------------------------------------ what is asked


def test_the_next_batch_of_a_run_asks_for_nothing_that_it_knows() -> None:
    cluster = ScriptedCluster(2)
    session = cluster.session()
    first = cluster.run(commit_micro_batch(session, None, build_plan(0)))
    cluster.asked.clear()
    cluster.rounds.clear()
    cluster.run(commit_micro_batch(session, first.identity, build_plan(1)))
    asked = set(cluster.apis())
    assert asked == {K.PRODUCE, K.TXN_OFFSET_COMMIT, K.END_TXN}
    offsets = [r for r in cluster.rounds if any(c.message.API_KEY == 28 for c in r)]
    assert [len(calls) for calls in offsets] == [2], "both groups at once"


def test_a_batch_is_noted_before_its_transaction_begins_and_a_skipped_one_is_not() -> None:
    cluster = ScriptedCluster(2)
    journal = Record()
    writes = {K.PRODUCE, K.TXN_OFFSET_COMMIT, K.END_TXN}
    seen: list[bool] = []
    begin = journal.begin

    def noted(plan: CommitPlan) -> Operation[None]:
        yield from begin(plan)
        seen.append(K.PRODUCE in writes & set(cluster.apis()))

    journal.begin = noted  # type: ignore[method-assign]
    commit(cluster, build_plan(0, journal=journal))
    assert journal.said == ["begin"]
    assert seen == [False]
    commit(cluster, build_plan(0, journal=journal))
    assert journal.said == ["begin"]


# ------------------------------------------------------------------ several transactional ids


def initialised(cluster: ScriptedCluster) -> list[str]:
    return [each.transactional_id for each in cluster.requests(K.INIT_PRODUCER_ID)]


def test_a_takeover_records_its_id_initialises_it_and_fences_all_others_in_this_order() -> None:
    cluster = ScriptedCluster(2)
    plans = [build_plan(0, transactional_id=name, journal=Record()) for name in ("a", "b", "c")]
    for plan in plans:
        cluster.run(record_ids("txnlog", plan))
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

    cluster.run(watched(initialise(cluster.session(), plans[1], None)))
    assert seen[:3] == ["WriteFile", "b", "ListFolder"]
    assert sorted(seen[3:]) == ["a", "c"]


def test_who_goes_on_with_its_own_epoch_looks_for_no_other_id() -> None:
    cluster = ScriptedCluster(1)
    plan = build_plan(0, journal=Record())
    first = commit(cluster, plan)
    cluster.files.clear()
    commit(cluster, build_plan(1, journal=Record()), replace(first.identity, initialised=False))
    assert not cluster.files


def test_a_checkpoint_that_has_recorded_no_ids_has_that_of_its_last_attempt() -> None:
    cluster = ScriptedCluster(2)
    commit(cluster, build_plan(0, journal=Record(), previous_transactional_id="old"))
    assert initialised(cluster) == ["t", "old"]
    cluster.asked.clear()
    commit(cluster, build_plan(1, journal=Record()))
    assert initialised(cluster) == ["t", "old"]


def test_an_id_that_may_not_be_fenced_is_named_and_the_advice_helps() -> None:
    cluster = ScriptedCluster(2)
    commit(cluster, build_plan(0, journal=Record(), transactional_id="old"))
    cluster.script(K.INIT_PRODUCER_ID, None, refused(E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    plan = build_plan(1, journal=Record(), previous_transactional_id="old")
    with pytest.raises(FatalError, match="had transactional id 'old' before 't'") as caught:
        commit(cluster, plan)
    assert not {K.PRODUCE, K.TXN_OFFSET_COMMIT} & set(cluster.apis()[-3:])
    named = re.search(r"delete (\S+) and start the query again", str(caught.value))
    assert named is not None
    del cluster.files[named[1]]
    cluster.asked.clear()
    assert not commit(cluster, plan).skipped
    assert initialised(cluster) == ["t"]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"version":1}', b'{"version":2}', b"\xff"])
def test_an_id_that_cannot_be_read_is_an_error_and_not_no_id(text: bytes) -> None:
    cluster = ScriptedCluster(2)
    cluster.files["txnlog/ids/some.json"] = text
    with pytest.raises(ProgressError, match=r"txnlog/ids/some\.json cannot be used"):
        commit(cluster, build_plan(0, journal=Record()))


# ------------------------------------------------------------------ a batch without progress


def test_a_batch_that_was_never_begun_is_done_and_its_progress_exists_before() -> None:
    cluster = ScriptedCluster(2)
    journal = Record()
    commit(cluster, build_plan(7, attempted_batch_id=6, journal=journal))
    assert {p: cluster.state.committed_values(p) for p in EXPECTED} == EXPECTED
    ended = [r.committed for r in cluster.requests(K.END_TXN)]
    assert ended == [True, True], "a baseline, and the batch"
    assert cluster.state.offsets[PROGRESS_GROUP][("out", 0)][0] == 8


@pytest.mark.parametrize("attempted", [None, 7, 8])
def test_a_batch_that_may_have_been_begun_is_not(attempted: int | None) -> None:
    cluster = ScriptedCluster(2)
    plan = build_plan(7, attempted_batch_id=attempted, journal=Record())
    with pytest.raises(ProgressMissing, match="--next-batch-id N") as caught:
        commit(cluster, plan)
    assert "N = 8 if they are in the output, N = 7 if they are not" in str(caught.value)
    assert nothing_is_written(cluster)


def test_a_batch_that_was_never_begun_is_refused_when_its_group_went_on_without_it() -> None:
    cluster = ScriptedCluster(2)
    cluster.state.offsets["g"][("in", 0)] = (9, "")
    plan = build_plan(
        7,
        attempted_batch_id=6,
        attempted_group_digest=group_digest("g"),
        previous_offsets={("in", 0): 4},
        journal=Record(),
    )
    with pytest.raises(CommittedOffsetsMoved, match="in-0 from 4 to 9"):
        commit(cluster, plan)


def test_a_first_batch_that_was_begun_before_a_newer_checkpoint_went_on_is_refused() -> None:
    """The old checkpoint has its baseline and no committed batch: its group is somebody else's."""
    cluster = with_progress(0, progress_of())
    cluster.state.offsets["g"][("in", 0)] = (9, "")
    plan = build_plan(0, must_exist=True, attempted_batch_id=0, journal=Record())
    with pytest.raises(GroupHasOffsets, match="in-0 at 9"):
        commit(cluster, plan)
    assert nothing_is_written(cluster)


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_refusal_is_a_fence_when_another_driver_came_between_two_questions(
    is_overtaken: bool,
) -> None:
    cluster = ScriptedCluster(2)
    session = cluster.session()
    asked = cluster._call

    def answer(call: Any) -> Any:
        if call.message.API_KEY == K.OFFSET_FETCH and call.message.groups[0].group_id == "g":
            cluster._call = asked  # type: ignore[method-assign]
            cluster.state.offsets["g"][("in", 0)] = (9, "")
            if is_overtaken:
                cluster.run(init_producer_id(cluster.session(), "t", 60_000))
        return asked(call)

    cluster._call = answer  # type: ignore[method-assign]
    plan = build_plan(
        7,
        attempted_batch_id=6,
        attempted_group_digest=group_digest("g"),
        previous_offsets={("in", 0): 4},
        journal=Record(),
    )
    with pytest.raises(ProducerFenced if is_overtaken else CommittedOffsetsMoved):
        cluster.run(commit_micro_batch(session, None, plan))


# ------------------------------------------------------------------ what pins a batch


@pytest.mark.invariant(36, 59)
@pytest.mark.parametrize(
    ("digests", "is_pinned", "skipped"),
    [
        ({"h": "planned-7"}, False, True),
        ({"e": "digest-5", "h": "another"}, True, True),
        ({"e": "digest-5", "h": "another"}, False, False),
        ({"e": "digest-5"}, False, False),
        ({"e": "another", "h": "another"}, True, False),
        ({}, True, False),
    ],
)
def test_a_committed_batch_is_skipped_only_when_it_is_known_to_be_the_same(
    digests: dict[str, str], is_pinned: bool, skipped: bool
) -> None:
    cluster = with_progress(8, progress_of(**digests))
    plan = build_plan(7, is_pinned=is_pinned)
    if skipped:
        assert commit(cluster, plan).skipped
        return
    with pytest.raises(BatchReplanned, match="planned again"):
        commit(cluster, plan)


# ------------------------------------------------------------------ versions of a batch write


@pytest.mark.parametrize(("version", "skipped"), [(4, True), (5, True), (6, False), (9, False)])
def test_a_version_at_or_below_the_committed_one_is_skipped(version: int, skipped: bool) -> None:
    cluster = with_progress(6, progress_of(e="whatever"))
    plan = build_plan(version, is_stream=False, must_exist=False)
    assert commit(cluster, plan).skipped == skipped


# ------------------------------------------------------------------ the transaction timeout


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_longer_than_the_timeout_says_so_and_is_not_tried_again(version: int) -> None:
    cluster = ScriptedCluster(version)
    cluster.broker_configs["transaction.max.timeout.ms"] = "900000"
    plan = build_plan(transaction_timeout_ms=60_000, produce_request_bytes=1)

    def late(step: str, _when: str) -> None:
        if step == "produce.first":
            cluster.now_ms += 61_000
            cluster.always[K.PRODUCE] = refused(E.INVALID_PRODUCER_EPOCH)

    cluster.on_reached = late
    with pytest.raises(TransactionTimedOut) as caught:
        commit(cluster, plan)
    text = str(caught.value)
    done = sum(p.size_bytes for p in plan.staged)
    assert f"of {done} staged bytes were produced" in text
    assert "kafka.transaction.timeout.ms=60000" in text
    assert "transaction.max.timeout.ms, 900000 here" in text
    assert cluster.apis().count(K.INIT_PRODUCER_ID) == 1, "not tried again"


def test_a_fence_before_the_timeout_is_a_fence() -> None:
    cluster = ScriptedCluster(2)
    cluster.script(K.PRODUCE, refused(E.INVALID_PRODUCER_EPOCH))
    assert commit(cluster, build_plan()).attempts == 2


@pytest.mark.parametrize("records", [0, 1, 3])
def test_what_is_not_what_was_staged_is_never_committed(records: int) -> None:
    plan = build_plan()
    first, second = plan.staged
    piece, *others = first.pieces
    lying = replace(first, pieces=[replace(piece, record_count=records), *others])
    plan = replace(plan, staged=(lying, second))
    cluster = ScriptedCluster(2)
    with pytest.raises(AssertionError, match="not what was staged"):
        commit(cluster, plan)
    assert K.END_TXN not in cluster.apis()
