"""A micro-batch from its checkpoint on: which query it is of, which run, and which sink of it."""

from __future__ import annotations

import pytest
from support.query.query_job import QueryJob

from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.commit import plan
from txnlog_spark.commit.journal import read_begun, write_begun
from txnlog_spark.commit.plan import GroupOwner
from txnlog_spark.errors import (
    AnotherOutput,
    CheckpointCopied,
    GroupHasOffsets,
    ProducerFenced,
    ProgressError,
    WrongCluster,
)
from txnlog_spark.offsets import GROUP_NOTE
from txnlog_spark.tools.query_state import after_setting


@pytest.mark.parametrize("group_id", ["orders-audit", None])
def test_a_named_sink_and_a_query_whose_names_look_alike_do_not_fence_each_other(
    group_id: str | None,
) -> None:
    job = QueryJob()
    owner = {"group_id": "orders"} if group_id else {"transactional_id": "txnlog-orders"}
    plain = {"group_id": group_id} if group_id else {"transactional_id": "txnlog-orders-audit"}
    job.commit("/cp", 0, **plain)
    epoch = job.cluster.transaction("txnlog-orders-audit").producer_epoch
    job.commit("/other", 0, sink_name="audit", **owner)
    assert job.cluster.transaction("txnlog-orders-audit").producer_epoch == epoch


def test_a_named_sink_keeps_the_transactional_id_that_version_0_1_0_gave_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, sink = QueryJob(), {"group_id": "g", "sink_name": "side"}
    with monkeypatch.context() as former:
        former.setattr(plan, "query_transactional_id", plan.readable_transactional_id)
        job.commit("/cp", 0, **sink)
    for batch_id, run_id in ((1, "run-1"), (2, "run-2")):
        job.cluster.asked.clear()
        job.commit("/cp", batch_id, run_id, **sink)
        initialised = {r.transactional_id for r in job.cluster.requests(K.INIT_PRODUCER_ID)}
        assert initialised == {"txnlog-g-side"}
    assert job.commit("/cp", 2, "run-3", **sink).skipped


def test_a_moved_checkpoint_goes_on_where_it_was(job: QueryJob) -> None:
    job.copy("/cp", "/new")
    job.delete("/cp")
    assert job.commit("/new", 1, "run-2", group_id="g").skipped
    assert not job.commit("/new", 2, "run-2", group_id="g").skipped
    assert job.rows == ["/cp.0", "/cp.1", "/new.2"]


def test_a_copy_with_an_id_of_its_own_neither_reads_nor_fences_the_original(job: QueryJob) -> None:
    """Its batch 1 is written: the original's is another output's."""
    job.copy("/cp", "/copy")
    before = job.cluster.transaction("txnlog-g").producer_epoch
    for number in (1, 2):
        assert not job.commit("/copy", number, "run-2", group_id="copy").skipped
    assert job.commit("/copy", 2, "run-3", group_id="copy").skipped
    assert job.cluster.transaction("txnlog-g").producer_epoch == before
    assert not job.commit("/cp", 2, group_id="g").skipped
    assert job.rows == ["/cp.0", "/cp.1", "/copy.1", "/copy.2", "/cp.2"]


def test_each_advice_for_a_checkpoint_that_cannot_be_told_helps(job: QueryJob) -> None:
    job.copy("/cp", "/new")
    asked = len(job.cluster.requests(K.INIT_PRODUCER_ID))
    with pytest.raises(CheckpointCopied, match=r"its own kafka\.group\.id"):
        job.commit("/new", 2, "run-2", group_id="g")
    assert len(job.cluster.requests(K.INIT_PRODUCER_ID)) == asked
    job.copy("/new", "/second")
    assert not job.commit("/second", 2, "run-2", group_id="second").skipped
    job.delete("/cp")  # "If it was moved, remove"
    assert not job.commit("/new", 2, "run-2", group_id="g").skipped


OWN_GROUP = {"group_id": "mine"}
OWN_ID = {"transactional_id": "mine"}


@pytest.mark.parametrize(
    ("group", "changes", "own"),
    [
        ({"group_id": "g"}, {"topic": "other"}, OWN_GROUP),
        ({"group_id": "g"}, OWN_ID, OWN_GROUP),
        ({"group_id": "g"}, OWN_GROUP, {}),
        ({}, {"topic": "other"}, OWN_ID),
    ],
)
def test_the_advice_for_a_copy_whose_original_cannot_be_found_helps(
    group: dict[str, str], changes: dict[str, str], own: dict[str, str]
) -> None:
    job = QueryJob()
    job.commit("/cp", 0, **group)
    job.copy("/cp", "/copy")
    job.delete("/cp")
    advice = r"delete /copy/txnlog and give the copy its own kafka\.group\.id \(and its own kafka"
    with pytest.raises(CheckpointCopied, match=advice):
        job.commit("/copy", 1, "run-2", **group | changes)
    job.delete("/copy/txnlog")
    assert not job.commit("/copy", 1, "run-2", **group | changes | own).skipped


def test_the_advice_for_a_copy_at_the_same_place_helps(job: QueryJob) -> None:
    """Another machine mounts a copy of the volume, and the copy was given another id."""
    original = dict(job.cluster.files)
    assert not job.commit("/cp", 2, "run-2", group_id="g", **OWN_ID).skipped
    job.cluster.files = original
    with pytest.raises(AnotherOutput, match="another copy of the checkpoint is at work") as caught:
        job.commit("/cp", 2, group_id="g")
    assert "delete the folder /cp/txnlog and /cp/offsets/2 (with its .crc) of" in str(caught.value)
    job.delete("/cp/txnlog")
    assert not job.commit("/cp", 2, "run-3", **OWN_GROUP).skipped


def test_a_query_that_changes_its_group_keeps_its_progress_where_it_is(job: QueryJob) -> None:
    assert job.commit("/cp", 1, "run-2", group_id="another").skipped
    assert not job.commit("/cp", 2, "run-2", group_id="another").skipped
    assert job.cluster.offsets("g.progress.q")["in", 0][0] == 3
    assert job.cluster.offsets("another")["in", 0][0] == 3


def test_a_copy_that_was_planned_before_it_had_a_group_is_told_what_to_delete(
    job: QueryJob,
) -> None:
    """The advice is not to set the group of the original, the opposite of the first advice."""
    job.notes = {GROUP_NOTE + "g": {}}
    job.copy("/cp", "/copy")
    for run_id in ("run-2", "run-3"):
        with pytest.raises(
            CheckpointCopied, match=r"delete /copy/offsets/2 and \.2\.crc beside it"
        ):
            job.commit("/copy", 2, run_id, group_id="own")
    job.notes = {GROUP_NOTE + "own": {}}
    assert not job.commit("/copy", 2, "run-2", group_id="own").skipped


def test_sinks_of_one_query_do_not_see_each_other(job: QueryJob) -> None:
    for name in ("a", "b"):
        assert not job.commit("/cp", 1, "run-2", group_id="g", sink_name=name).skipped
    assert job.commit("/cp", 1, "run-2", group_id="g", sink_name="b").skipped
    assert not job.commit("/cp", 2, group_id="g").skipped
    assert {"/cp/txnlog/attempt.json", "/cp/txnlog/sinks/a/attempt.json"} <= set(job.cluster.files)


@pytest.mark.invariant(57)
def test_a_run_that_was_overtaken_fences_nobody_writes_nothing_and_says_by_whom(
    job: QueryJob,
) -> None:
    job.commit("/cp", 2, "run-2", group_id="g")
    asked, files = len(job.cluster.asked), dict(job.cluster.files)
    with pytest.raises(ProducerFenced, match="process 7 on host h has begun batch 2"):
        job.commit("/cp", 3, "run-1", group_id="g")
    assert set(job.cluster.apis()[asked:]) <= {K.METADATA}
    assert {p: b for p, b in job.cluster.files.items() if "offsets/3" not in p} == files
    assert not job.commit("/cp", 3, "run-2", group_id="g").skipped


@pytest.mark.invariant(57)
def test_a_driver_that_lives_while_progress_is_set_by_hand_stops_and_a_new_one_goes_on(
    job: QueryJob,
) -> None:
    """`progress set` does not know of it, when it is between two batches."""
    begun = job.cluster.run(read_begun("/cp/txnlog"))
    job.cluster.run(write_begun("/cp/txnlog", after_setting(begun, 2, begun.progress_partition)))
    with pytest.raises(ProducerFenced):
        job.commit("/cp", 2, "run-1", group_id="g")
    for number in (2, 3):
        assert not job.commit("/cp", number, "run-2", group_id="g").skipped


def test_another_cluster_is_refused_before_the_table_is_asked(job: QueryJob) -> None:
    """The brokers were moved, and the checkpoint with them."""
    path = "/cp/txnlog/attempt.json"
    files = job.cluster.files
    files[path] = files[path].replace(b'"cluster_id": "c"', b'"cluster_id": "d"')
    job.copy("/cp", "/new")
    with pytest.raises(WrongCluster, match="has written to cluster d so far"):
        job.commit("/new", 2, "run-2", group_id="another")


def test_the_first_batch_of_a_function_needs_a_group_that_nobody_has_used() -> None:
    job = QueryJob()
    job.cluster.commit_offsets("g", {("in", 0): (1, "")})
    with pytest.raises(GroupHasOffsets):
        job.commit("/new", 3, is_function=True, group_id="g")
    assert not job.commit("/new", 3, is_function=True, group_id="unused").skipped


@pytest.mark.parametrize("group_has", [None, 0, 5])
@pytest.mark.parametrize("overwrites", [False, True])
def test_a_partition_that_is_new_to_a_query_and_not_to_its_group_is_not_read_from_its_beginning(
    job: QueryJob, group_has: int | None, overwrites: bool
) -> None:
    """Such as of a topic that was left out for a while: its records are in the output."""
    if group_has is not None:
        job.cluster.commit_offsets("g", {("in", 1): (group_has, "")})
    job.added = {"1": 7}
    for run_id in ("run-1", "run-2"):
        if group_has and not overwrites:
            with pytest.raises(GroupHasOffsets, match=r"in-1 at 5.*overwriteGroupOffsets=true"):
                job.commit("/cp", 2, run_id, group_id="g")
    assert job.rows == ["/cp.0", "/cp.1"]
    if not group_has or overwrites:
        assert not job.commit("/cp", 2, group_id="g", overwrite_group=overwrites).skipped
        assert not job.commit("/cp", 3, group_id="g").skipped
        assert job.rows == ["/cp.0", "/cp.1", "/cp.2", "/cp.3"]


def test_an_original_that_cannot_be_read_may_be_there(job: QueryJob) -> None:
    """A store that fails for a moment makes no copy a moved checkpoint, which fences."""
    job.copy("/cp", "/new")
    job.cluster.unreadable.add("/cp/metadata")
    asked = len(job.cluster.requests(K.INIT_PRODUCER_ID))
    with pytest.raises(ProgressError, match=r"checkpoint file /cp/metadata cannot be used"):
        job.commit("/new", 2, "run-2", group_id="g")
    assert len(job.cluster.requests(K.INIT_PRODUCER_ID)) == asked


def test_a_new_query_without_a_group_is_warned_of_once_and_the_advice_can_be_followed() -> None:
    job = QueryJob()
    for number in (0, 1):
        job.commit("/cp", number)
    job.commit("/cp", 1, "run-2")
    (notice,) = job.notices
    assert "query q has no kafka.group.id: if its checkpoint is lost" in notice
    assert "earliest, it writes its output a second time" in notice
    assert "latest, the default, it never writes the records that came in between" in notice
    assert "startingOffsets=committedOrEarliest" in notice
    job.commit("/cp", 2, "run-3", group_id="g")
    with pytest.raises(GroupHasOffsets):
        job.commit("/after-the-loss", 0, "run-4", group_id="g")
    assert job.rows == ["/cp.0", "/cp.1", "/cp.2"]
    assert sum("no kafka.group.id" in text for text in job.notices) == 1


@pytest.mark.parametrize(
    ("source_cluster", "options"),
    [
        ("c", {"group_id": "g"}),
        ("another", {}),
        ("c", {"sink_name": "first", "owner": GroupOwner("last", "g")}),
    ],
)
def test_a_query_with_a_group_or_that_can_have_none_is_not_warned_of(
    source_cluster: str, options: dict[str, str]
) -> None:
    """If a query has several sinks, one sink has the group, and the other sinks have names."""
    job = QueryJob()
    job.source_cluster = source_cluster
    job.commit("/cp", 0, **options)
    assert job.notices == []
