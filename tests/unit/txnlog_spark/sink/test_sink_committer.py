"""The committer over a scripted cluster: unknown outcomes of batch writes, and what it reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commit_plans import record_batch
from support.scripted_broker import MALFORMED, NOT_SENT, Fault, ScriptedCluster
from support.staged_messages import stage

from txnlog_spark.commit import batch_write
from txnlog_spark.commit.plan import CommitOutcome
from txnlog_spark.errors import (
    CommitStateUnknown,
    ProducerFenced,
    ProgressError,
    StagingFailed,
)
from txnlog_spark.sink import committer
from txnlog_spark.sink.committer import commit_batch_write, commit_streaming
from txnlog_spark.sink.settings import SinkSettings, read_sink_settings
from txnlog_spark.staging import reader
from txnlog_spark.staging.frames import Attempt
from txnlog_spark.wire.messages import ApiKey as K

NOT_APPLIED = Fault(applied=False, retriable=False)
"""It arrived and was not carried out; the answer is no answer."""


class Host:
    """What `client_for` gives: operations run on the scripted cluster."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.session = cluster.session()
        self.run = cluster.run


@pytest.fixture(params=[1, 2])
def cluster(request, monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    made = ScriptedCluster(request.param)
    monkeypatch.setattr(committer, "client_for", lambda *_where: Host(made))
    monkeypatch.setattr(batch_write, "delete_group", lambda *_args, **_options: iter(()))
    return made


@pytest.fixture(autouse=True)
def worker() -> Iterator[None]:
    """A committer's process that knows nothing yet."""
    committer.workers.clear()
    yield
    committer.workers.clear()


class Killed(BaseException):
    """The worker's process is gone."""


def kill_at(step: str) -> Callable[..., None]:
    """What the cluster is to do when a worker reaches a step."""

    def kill(*place: str) -> None:
        if ":".join(place) == step:
            raise Killed

    return kill


def write(folder: Path | None) -> CommitOutcome | None:
    """Two rows as one batch write, with `stagingLocation` or without."""
    options = {"kafka.bootstrap.servers": "h:1", "topic": "out"}
    if folder is not None:
        options["stagingLocation"] = str(folder)
    rows = [("out", 0, record_batch("a", "b"))]
    message = stage(Attempt("w", 0, "w", "w-0-0"), rows, counts={"out": 2})
    return commit_batch_write(read_sink_settings(options, streaming=False), [message], "w")


class Stream:
    """A streaming query's checkpoint, made by hand; batch n ends before offset 5 * (n + 1)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text('{"id": "q"}')
        options = {"kafka.bootstrap.servers": "h:1", "topic": "out", "kafka.group.id": "g"}
        self.settings = read_sink_settings(
            options | {"checkpointLocation": str(folder)}, streaming=True
        )

    def offsets(self, batch_id: int) -> Path:
        """Spark's log entry of a batch."""
        return self.folder / "offsets" / str(batch_id)

    def commit(self, batch_id: int, run_id: str, *batches: bytes) -> None:
        """One batch with these record batches for out-0, or none."""
        source = json.dumps({"in": {"0": 5 * (batch_id + 1)}, "txnlog/cluster.id/c": {}})
        self.offsets(batch_id).write_text(f"v1\n{{}}\n{source}")
        rows = [("out", 0, batch) for batch in batches]
        commit_streaming(
            self.settings, [stage(Attempt("q", batch_id, run_id, run_id), rows)], batch_id
        )


def test_the_batch_before_is_looked_up_after_a_takeover_only(
    cluster: ScriptedCluster, tmp_path: Path
) -> None:
    query = Stream(tmp_path)
    query.commit(0, "run-1")
    query.commit(1, "run-1")
    for batch_id in (0, 1):
        query.offsets(batch_id).write_text("torn")
    query.commit(2, "run-1")
    assert cluster.state.offsets["g"] == {("in", 0): (15, "")}
    query.offsets(2).write_text("torn")
    with pytest.raises(ProgressError, match="offsets/2"):
        query.commit(3, "run-2")


def test_a_write_that_is_committed_is_not_reported_as_failed_for_what_cannot_be_removed(
    cluster: ScriptedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    def refuse(*_: object) -> None:
        raise StagingFailed("not a directory of this user alone")

    monkeypatch.setattr(reader, "running_server", refuse)
    monkeypatch.setattr(reader, "_not_forgotten", set())
    with caplog.at_level(logging.WARNING):
        outcome = write(None)
    assert outcome is not None
    assert cluster.state.committed_values(("out", 0)) == [b"a", b"b"]
    assert "is not removed" in caplog.text


@pytest.mark.parametrize(("fault", "skipped"), [(MALFORMED, True), (NOT_APPLIED, False)])
def test_an_unknown_outcome_is_found_out_and_the_rows_are_there_once(
    cluster: ScriptedCluster, tmp_path: Path, fault: Fault, skipped: bool
) -> None:
    cluster.script(K.END_TXN, fault)
    outcome = write(tmp_path)
    assert outcome is not None
    assert outcome.skipped == skipped
    assert cluster.state.committed_values(("out", 0)) == [b"a", b"b"]


@pytest.mark.parametrize("fault", [MALFORMED, NOT_APPLIED])
def test_an_outcome_that_stays_unknown_says_where_to_look_before_writing_again(
    cluster: ScriptedCluster, tmp_path: Path, fault: Fault
) -> None:
    cluster.script(K.END_TXN, fault)
    down = {("end_txn", "before"): {K.INIT_PRODUCER_ID: NOT_SENT, K.OFFSET_FETCH: NOT_SENT}}
    cluster.on_reached = lambda *place: cluster.always.update(down.get(place, {}))
    with pytest.raises(CommitStateUnknown, match=r"group 'txnlog-w\.progress\.w'") as caught:
        write(tmp_path)
    assert "Restart the query" not in str(caught.value)


@pytest.mark.invariant(57)
def test_workers_of_one_run_take_turns_on_either_transaction_version(
    cluster: ScriptedCluster, tmp_path: Path
) -> None:
    query = Stream(tmp_path)
    workers: list[dict] = [{}, {}, {}]
    for batch_id in range(9):
        committer.workers.clear()
        committer.workers.update(workers[batch_id % 3])
        query.commit(batch_id, "run-1")
        workers[batch_id % 3] = dict(committer.workers)
    assert cluster.state.offsets["g"] == {("in", 0): (45, "")}
    plain = [r for r in cluster.requests(K.INIT_PRODUCER_ID) if r.producer_id < 0]
    assert len(plain) == 1, "nobody of the run fences another"


@pytest.mark.invariant(57)
def test_a_new_run_is_not_set_back_by_a_worker_of_the_old_one(
    cluster: ScriptedCluster, tmp_path: Path
) -> None:
    query = Stream(tmp_path)
    query.commit(0, "old")
    held_by_old = dict(committer.workers)
    committer.workers.clear()
    query.commit(1, "new")
    recorded = (tmp_path / "txnlog" / "identity.json").read_bytes()
    committer.workers.clear()
    committer.workers.update(held_by_old)
    with pytest.raises(ProducerFenced):
        query.commit(2, "old")
    assert (tmp_path / "txnlog" / "identity.json").read_bytes() == recorded


def test_an_id_that_was_left_is_fenced_whatever_crashed_and_by_each_later_run(
    cluster: ScriptedCluster, tmp_path: Path
) -> None:
    query = Stream(tmp_path)
    query.commit(0, "run-1")
    options = {"kafka.bootstrap.servers": "h:1", "topic": "out", "kafka.group.id": "g"}
    named = options | {"checkpointLocation": str(tmp_path), "kafka.transactional.id": "other"}
    query.settings = read_sink_settings(named, streaming=True)
    asked = cluster._call

    def dies(call):
        found = asked(call)
        if getattr(call.message, "transactional_id", None) == "other":
            raise RuntimeError("the driver dies here")
        return found

    cluster._call = dies
    committer.workers.clear()
    with pytest.raises(RuntimeError, match="dies here"):
        query.commit(1, "run-2")
    cluster._call = asked
    for batch_id, run_id in enumerate(("run-3", "run-4"), 1):
        cluster.asked.clear()
        committer.workers.clear()
        query.commit(batch_id, run_id)
        fenced = [r.transactional_id for r in cluster.requests(K.INIT_PRODUCER_ID)]
        assert fenced[:2] == ["other", "txnlog-g"]


@pytest.mark.invariant(35, 57)
@pytest.mark.parametrize(
    "step", ["produce.first:after", "txn_offset_commit:after", "end_txn:after"]
)
def test_a_batch_that_a_lost_worker_had_begun_is_done_once_and_whole_by_another_of_the_run(
    cluster: ScriptedCluster, tmp_path: Path, step: str
) -> None:
    """Who calls `foreach_batch`'s function may call it again, with the rows in another order."""
    query = Stream(tmp_path)
    query.commit(0, "run-1", record_batch("x"))

    cluster.on_reached = kill_at(step)
    with pytest.raises(Killed):
        query.commit(1, "run-1", record_batch("a", "b"), record_batch("c", "d"))
    cluster.on_reached = lambda *_place: None
    committer.workers.clear()
    query.commit(1, "run-1", record_batch("c", "d"), record_batch("a", "b"))
    query.commit(2, "run-1", record_batch("e"))
    found = cluster.state.committed_values(("out", 0))
    assert sorted(found) == [b"a", b"b", b"c", b"d", b"e", b"x"]


@pytest.mark.invariant(35, 57)
@pytest.mark.parametrize("set_back", ["by an overtaken driver", "by a late write of the store"])
def test_a_batch_is_tried_again_whole_although_the_attempt_was_set_back(
    cluster: ScriptedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_back: str
) -> None:
    """Where writes may come late, as in an object store, a run that may try again asks first."""
    query = Stream(tmp_path)
    path = tmp_path / "txnlog" / "attempt.json"
    query.commit(0, "run-0", record_batch("x"))
    left = json.loads(path.read_text())
    query.commit(1, "run-1", record_batch("y"))
    if set_back == "by a late write of the store":
        left = json.loads(path.read_text())
        monkeypatch.setattr(SinkSettings, "asks_first", True)
    cluster.on_reached = kill_at("produce.first:after")
    with pytest.raises(Killed):
        query.commit(2, "run-1", record_batch("a", "b"), record_batch("c", "d"))
    cluster.on_reached = lambda *_place: None
    committer.workers.clear()
    path.write_text(json.dumps(left | {"batch_id": 1}))
    again = record_batch("c", "d"), record_batch("a", "b")
    try:
        query.commit(2, "run-1", *again)
    except ProducerFenced:
        query.commit(2, "run-2", *again)
    found = cluster.state.committed_values(("out", 0))
    assert sorted(found) == [b"a", b"b", b"c", b"d", b"x", b"y"]


@pytest.mark.parametrize("step", ["init_producer_id:after", "judge:before", "judge:after"])
def test_a_run_that_asks_first_goes_on_however_often_its_workers_were_lost_before_they_wrote(
    cluster: ScriptedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Each time the epoch is higher than the recorded one, by more than a retry would be given."""
    monkeypatch.setattr(SinkSettings, "asks_first", True)
    query = Stream(tmp_path)
    query.commit(0, "run-1", record_batch("x"))
    cluster.on_reached = kill_at(step)
    for _ in range(3):
        with pytest.raises(Killed):
            query.commit(1, "run-1", record_batch("y"))
        committer.workers.clear()
    cluster.on_reached = lambda *_place: None
    query.commit(1, "run-1", record_batch("y"))
    assert cluster.state.committed_values(("out", 0)) == [b"x", b"y"]


def write_for(version: int, *values: str) -> None:
    """A write with txnAppId."""
    options = {"kafka.bootstrap.servers": "h:1", "topic": "out", "txnAppId": "app"}
    settings = read_sink_settings(options | {"txnVersion": str(version)}, streaming=False)
    rows = [("out", 0, record_batch(*values))]
    message = stage(Attempt("w", 0, "w", "w-0-0"), rows, counts={"out": 2})
    commit_batch_write(settings, [message], "w")


@pytest.mark.parametrize("fault", [MALFORMED, NOT_APPLIED])
def test_the_advice_for_a_write_of_an_application_whose_outcome_stays_unknown_writes_it_once(
    cluster: ScriptedCluster, fault: Fault
) -> None:
    """Its group has an offset of the version before."""
    write_for(0, "a", "b")
    cluster.script(K.END_TXN, fault)
    down = {("end_txn", "before"): {K.INIT_PRODUCER_ID: NOT_SENT, K.OFFSET_FETCH: NOT_SENT}}
    cluster.on_reached = lambda *place: cluster.always.update(down.get(place, {}))
    with pytest.raises(CommitStateUnknown, match="again with txnAppId=app and txnVersion=1:"):
        write_for(1, "c", "d")
    cluster.on_reached = lambda *_place: None
    cluster.always.clear()
    write_for(1, "c", "d")
    assert cluster.state.committed_values(("out", 0)) == [b"a", b"b", b"c", b"d"]
