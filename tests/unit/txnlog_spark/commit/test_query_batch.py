"""A micro-batch from its checkpoint on: which query it is of, which run, and which sink of it."""

from __future__ import annotations

import json

import pytest
from support.core.core_broker import CoreBroker
from support.query.commit_plans import record_batch, staged

from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import plan
from txnlog_spark.commit.journal import read_begun, write_begun
from txnlog_spark.commit.plan import CommitOptions, CommitOutcome, GroupOwner
from txnlog_spark.commit.query import QueryBatch, commit_query_batch
from txnlog_spark.errors import (
    AnotherOutput,
    BatchReplanned,
    CheckpointCopied,
    CommittedOffsetsMoved,
    GroupHasOffsets,
    ProducerFenced,
    ProgressError,
    StatefulReplanned,
    WrongCluster,
)
from txnlog_spark.group_note import GroupNote, format_note
from txnlog_spark.offsets import (
    GROUP_NOTE,
    START_NOTE,
    SourceNote,
    positions_digest,
    to_json_value,
    with_source_note,
)
from txnlog_spark.tools.query_state import after_setting

OUT = ("out", 0)


class Job:
    """The queries of one cluster; rows of batch n are called n, with the checkpoint before it."""

    def __init__(self) -> None:
        self.cluster = CoreBroker(2)
        self.added: dict[str, int] = {}
        """Ends of further partitions of its source."""
        self.notes: dict[str, dict[str, int]] = {}
        """Further notes in each of its offsets."""
        self.ends: dict[int, int] = {}
        """Of batches that do not end one record behind the batch before."""
        self.planned_again = ""
        """In the metadata of what is planned from now on."""
        self.source_cluster = "c"
        self.notices: list[str] = []

    def commit(
        self,
        place: str,
        batch_id: int,
        run_id: str = "run-1",
        *,
        is_function: bool = False,
        **options: object,
    ) -> CommitOutcome:
        """What Spark's driver asks for, with the checkpoint at this place."""
        self.log(place, batch_id)
        batch = QueryBatch(
            checkpoint=place,
            location=place,
            batch_id=batch_id,
            options=CommitOptions(**{"topic": "out", **options}),  # type: ignore[arg-type]
            staged=[staged("out", 0, record_batch(f"{place}.{batch_id}"))],
            run_id=run_id,
            query_id="q",
            is_function=is_function,
            host="h",
            pid=7,
        )
        cluster, session = self.cluster, self.cluster.session()
        session.notice = self.notices.append
        outcome: CommitOutcome = cluster.run(commit_query_batch(session, batch))
        return outcome

    def log(self, place: str, batch_id: int) -> None:
        """Plan the batch, as Spark does."""
        end = self.ends.get(batch_id, batch_id + 1)
        note = f"txnlog/cluster.id/{self.source_cluster}"
        source = json.dumps({"in": {"0": end, **self.added}, note: {}, **self.notes})
        self.cluster.files[f"{place}/metadata"] = b'{"id":"q"}'
        self.cluster.files[f"{place}/offsets/{batch_id}"] = (
            f"v1\n{json.dumps({'batch': self.planned_again})}\n{source}".encode()
        )

    def start_committed(self, place: str, at: int) -> None:
        """Batch 0 of a query with startingOffsets=committed: it is empty, and notes the start,
        which is noted in each offset behind it."""
        offsets = {TopicPartition("in", 0): at}
        self.notes = {GROUP_NOTE + "g": {}, START_NOTE + positions_digest(offsets): {}}
        note = SourceNote("c", "g", group_start=positions_digest(offsets))
        source = json.dumps(with_source_note(to_json_value(offsets), note))
        self.cluster.files[f"{place}/metadata"] = b'{"id":"q"}'
        self.cluster.files[f"{place}/offsets/0"] = f"v1\n{{}}\n{source}".encode()

    def lose_tail(self, place: str, batch_id: int) -> None:
        """Spark's log has no plan of this batch and of those behind it any more."""
        for number in range(batch_id, batch_id + 10):
            self.cluster.files.pop(f"{place}/offsets/{number}", None)

    def copy(self, place: str, to: str) -> None:
        """All files of a checkpoint."""
        files = self.cluster.files
        files |= {to + p.removeprefix(place): b for p, b in files.items() if p.startswith(place)}

    def delete(self, folder: str) -> None:
        """A folder with all that is in it."""
        files = self.cluster.files
        for path in [path for path in files if path.startswith(f"{folder}/")]:
            del files[path]

    @property
    def rows(self) -> list[str]:
        """What is in the output."""
        return [value.decode() for value in self.cluster.committed_values(*OUT)]


@pytest.fixture
def job() -> Job:
    """On which batches 0 and 1 of /cp are committed, with group g."""
    made = Job()
    for number in (0, 1):
        made.commit("/cp", number, group_id="g")
    return made


@pytest.mark.parametrize("group_id", ["orders-audit", None])
def test_a_named_sink_and_a_query_whose_names_look_alike_do_not_fence_each_other(
    group_id: str | None,
) -> None:
    job = Job()
    owner = {"group_id": "orders"} if group_id else {"transactional_id": "txnlog-orders"}
    plain = {"group_id": group_id} if group_id else {"transactional_id": "txnlog-orders-audit"}
    job.commit("/cp", 0, **plain)
    epoch = job.cluster.transaction("txnlog-orders-audit").producer_epoch
    job.commit("/other", 0, sink_name="audit", **owner)
    assert job.cluster.transaction("txnlog-orders-audit").producer_epoch == epoch


def test_a_named_sink_keeps_the_transactional_id_that_version_0_1_0_gave_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, sink = Job(), {"group_id": "g", "sink_name": "side"}
    with monkeypatch.context() as former:
        former.setattr(plan, "query_transactional_id", plan.readable_transactional_id)
        job.commit("/cp", 0, **sink)
    for batch_id, run_id in ((1, "run-1"), (2, "run-2")):
        job.cluster.asked.clear()
        job.commit("/cp", batch_id, run_id, **sink)
        initialised = {r.transactional_id for r in job.cluster.requests(K.INIT_PRODUCER_ID)}
        assert initialised == {"txnlog-g-side"}
    assert job.commit("/cp", 2, "run-3", **sink).skipped


def test_a_moved_checkpoint_goes_on_where_it_was(job: Job) -> None:
    job.copy("/cp", "/new")
    job.delete("/cp")
    assert job.commit("/new", 1, "run-2", group_id="g").skipped
    assert not job.commit("/new", 2, "run-2", group_id="g").skipped
    assert job.rows == ["/cp.0", "/cp.1", "/new.2"]


def test_a_copy_with_an_id_of_its_own_neither_reads_nor_fences_the_original(job: Job) -> None:
    """Its batch 1 is written: the original's is another output's."""
    job.copy("/cp", "/copy")
    before = job.cluster.transaction("txnlog-g").producer_epoch
    for number in (1, 2):
        assert not job.commit("/copy", number, "run-2", group_id="copy").skipped
    assert job.commit("/copy", 2, "run-3", group_id="copy").skipped
    assert job.cluster.transaction("txnlog-g").producer_epoch == before
    assert not job.commit("/cp", 2, group_id="g").skipped
    assert job.rows == ["/cp.0", "/cp.1", "/copy.1", "/copy.2", "/cp.2"]


def test_each_advice_for_a_checkpoint_that_cannot_be_told_helps(job: Job) -> None:
    job.copy("/cp", "/new")
    asked = len(job.cluster.requests(K.INIT_PRODUCER_ID))
    with pytest.raises(CheckpointCopied, match=r"a kafka\.group\.id of its own"):
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
    job = Job()
    job.commit("/cp", 0, **group)
    job.copy("/cp", "/copy")
    job.delete("/cp")
    advice = r"delete /copy/txnlog and give it a kafka\.group\.id of its own \(and a kafka\.trans"
    with pytest.raises(CheckpointCopied, match=advice):
        job.commit("/copy", 1, "run-2", **group | changes)
    job.delete("/copy/txnlog")
    assert not job.commit("/copy", 1, "run-2", **group | changes | own).skipped


def test_the_advice_for_a_copy_at_the_same_place_helps(job: Job) -> None:
    """On another machine, where a copy of the volume is mounted; it was given another id."""
    original = dict(job.cluster.files)
    assert not job.commit("/cp", 2, "run-2", group_id="g", **OWN_ID).skipped
    job.cluster.files = original
    with pytest.raises(AnotherOutput, match="another copy of the checkpoint is at work") as caught:
        job.commit("/cp", 2, group_id="g")
    assert "delete the folder /cp/txnlog and /cp/offsets/2 (with its .crc) of" in str(caught.value)
    job.delete("/cp/txnlog")
    assert not job.commit("/cp", 2, "run-3", **OWN_GROUP).skipped


def test_a_query_that_changes_its_group_keeps_its_progress_where_it_is(job: Job) -> None:
    assert job.commit("/cp", 1, "run-2", group_id="another").skipped
    assert not job.commit("/cp", 2, "run-2", group_id="another").skipped
    assert job.cluster.offsets("g.progress.q")["in", 0][0] == 3
    assert job.cluster.offsets("another")["in", 0][0] == 3


def test_a_copy_that_was_planned_before_it_had_a_group_is_told_what_to_delete(job: Job) -> None:
    """And not to set the group of the original, which is the opposite of the first advice."""
    job.notes = {GROUP_NOTE + "g": {}}
    job.copy("/cp", "/copy")
    for run_id in ("run-2", "run-3"):
        with pytest.raises(
            CheckpointCopied, match=r"delete /copy/offsets/2 and \.2\.crc beside it"
        ):
            job.commit("/copy", 2, run_id, group_id="own")
    job.notes = {GROUP_NOTE + "own": {}}
    assert not job.commit("/copy", 2, "run-2", group_id="own").skipped


def test_sinks_of_one_query_do_not_see_each_other(job: Job) -> None:
    for name in ("a", "b"):
        assert not job.commit("/cp", 1, "run-2", group_id="g", sink_name=name).skipped
    assert job.commit("/cp", 1, "run-2", group_id="g", sink_name="b").skipped
    assert not job.commit("/cp", 2, group_id="g").skipped
    assert {"/cp/txnlog/attempt.json", "/cp/txnlog/sinks/a/attempt.json"} <= set(job.cluster.files)


@pytest.mark.invariant(57)
def test_a_run_that_was_overtaken_fences_nobody_writes_nothing_and_says_by_whom(job: Job) -> None:
    job.commit("/cp", 2, "run-2", group_id="g")
    asked, files = len(job.cluster.asked), dict(job.cluster.files)
    with pytest.raises(ProducerFenced, match="process 7 on host h has begun batch 2"):
        job.commit("/cp", 3, "run-1", group_id="g")
    assert set(job.cluster.apis()[asked:]) <= {K.METADATA}
    assert {p: b for p, b in job.cluster.files.items() if "offsets/3" not in p} == files
    assert not job.commit("/cp", 3, "run-2", group_id="g").skipped


@pytest.mark.invariant(57)
def test_a_driver_that_lives_while_progress_is_set_by_hand_stops_and_a_new_one_goes_on(
    job: Job,
) -> None:
    """`progress set` does not know of it, when it is between two batches."""
    begun = job.cluster.run(read_begun("/cp/txnlog"))
    job.cluster.run(write_begun("/cp/txnlog", after_setting(begun, 2, begun.progress_partition)))
    with pytest.raises(ProducerFenced):
        job.commit("/cp", 2, "run-1", group_id="g")
    for number in (2, 3):
        assert not job.commit("/cp", number, "run-2", group_id="g").skipped


def test_another_cluster_is_refused_before_the_table_is_asked(job: Job) -> None:
    """Where the brokers moved, and the checkpoint with them."""
    path = "/cp/txnlog/attempt.json"
    files = job.cluster.files
    files[path] = files[path].replace(b'"cluster_id": "c"', b'"cluster_id": "d"')
    job.copy("/cp", "/new")
    with pytest.raises(WrongCluster, match="has written to cluster d so far"):
        job.commit("/new", 2, "run-2", group_id="another")


@pytest.mark.parametrize("moved_to", [1, 2])
@pytest.mark.parametrize("is_purged", [False, True])
def test_the_first_batch_that_a_function_writes_begins_where_the_group_stands(
    moved_to: int, is_purged: bool
) -> None:
    """It leaves out batch 0, which has no rows and says where the query started from, and Spark
    may have purged that since. Meanwhile a driver of the checkpoint that was believed to be lost
    may have committed another batch."""
    job = Job()
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
    job = Job()
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
    job = Job()
    job.cluster.on_reached = _kill_at
    with pytest.raises(_Killed):
        job.commit("/cp", 2, is_function=True, group_id="g")
    job.cluster.on_reached = lambda step, when: None
    assert job.cluster.offsets("g.progress.q")["in", 0][0] == 2
    job.delete("/cp/txnlog")
    assert not job.commit("/cp", 4, "run-2", is_function=True, group_id="g").skipped
    assert job.rows == ["/cp.4"]


class _Killed(BaseException):
    """The driver is gone."""


def _kill_at(step: str, when: str) -> None:
    if (step, when) == ("judge", "after"):
        raise _Killed


@pytest.fixture
def stateful() -> Job:
    """On which batches 0, 1 and 2 of a query that keeps state are committed."""
    made = Job()
    made.cluster.files["/cp/state/0/0/1.delta"] = b""
    for number in range(3):
        made.commit("/cp", number, group_id="g")
    return made


@pytest.mark.invariant(59)
@pytest.mark.parametrize("batch_id", [1, 2])
@pytest.mark.parametrize("is_function", [False, True])
def test_a_stateful_batch_that_was_planned_anew_is_neither_skipped_nor_done(
    stateful: Job, batch_id: int, is_function: bool
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
    stateful: Job,
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
    job = Job()
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


def test_a_driver_of_before_that_has_begun_no_batch_stops_at_a_later_plan(job: Job) -> None:
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
    job = Job()
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
    job = Job()
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


def test_the_plan_of_a_batch_is_on_the_disk_before_its_transaction_begins(job: Job) -> None:
    """Both entries that say what it reads; a loss of power takes what Spark did not flush."""
    cluster, flushed = job.cluster, []
    cluster.on_flush = lambda path: flushed.append((path, len(cluster.requests(K.END_TXN))))
    ended = len(cluster.requests(K.END_TXN))
    job.commit("/cp", 2, group_id="g")
    assert flushed == [("/cp/offsets/1", ended), ("/cp/offsets/2", ended)]


def test_the_first_batch_of_a_function_needs_a_group_that_nobody_has_used() -> None:
    job = Job()
    job.cluster.commit_offsets("g", {("in", 0): (1, "")})
    with pytest.raises(GroupHasOffsets):
        job.commit("/new", 3, is_function=True, group_id="g")
    assert not job.commit("/new", 3, is_function=True, group_id="unused").skipped


@pytest.mark.parametrize("group_has", [None, 0, 5])
@pytest.mark.parametrize("overwrites", [False, True])
def test_a_partition_that_is_new_to_a_query_and_not_to_its_group_is_not_read_from_its_beginning(
    job: Job, group_has: int | None, overwrites: bool
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


def test_an_original_that_cannot_be_read_may_be_there(job: Job) -> None:
    """A store that fails for a moment makes no copy a moved checkpoint, which fences."""
    job.copy("/cp", "/new")
    job.cluster.unreadable.add("/cp/metadata")
    asked = len(job.cluster.requests(K.INIT_PRODUCER_ID))
    with pytest.raises(ProgressError, match=r"checkpoint file /cp/metadata cannot be used"):
        job.commit("/new", 2, "run-2", group_id="g")
    assert len(job.cluster.requests(K.INIT_PRODUCER_ID)) == asked


def test_a_new_query_without_a_group_is_warned_of_once_and_the_advice_can_be_followed() -> None:
    job = Job()
    for number in (0, 1):
        job.commit("/cp", number)
    job.commit("/cp", 1, "run-2")
    (notice,) = job.notices
    assert "query q has no kafka.group.id: if its checkpoint is lost" in notice
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
    """Of several sinks of a query one alone has the group, and the others have names."""
    job = Job()
    job.source_cluster = source_cluster
    job.commit("/cp", 0, **options)
    assert job.notices == []
