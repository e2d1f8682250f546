"""The committer over a scripted cluster: unknown outcomes of batch writes, and what it reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import MALFORMED, NOT_SENT, Fault
from support.query.commit_plans import record_batch
from support.query.staged_messages import stage

from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.commit import batch_write
from txnlog_spark.commit.plan import CommitOutcome
from txnlog_spark.errors import CommitStateUnknown, StagingFailed
from txnlog_spark.log_once import Warned
from txnlog_spark.process_local import process_local
from txnlog_spark.sink import committer
from txnlog_spark.sink.committer import commit_batch_write, commit_streaming
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.staging import reader
from txnlog_spark.staging.frames import TaskAttempt

NOT_APPLIED = Fault(applied=False, retriable=False)
"""Fault: the request arrives and is not carried out, and the client gets no answer."""


class Host:
    """A client as `client_for` returns it, whose operations run on the scripted cluster."""

    def __init__(self, cluster: CoreBroker) -> None:
        self.session = cluster.session()
        self.run = cluster.run


@pytest.fixture(params=[1, 2])
def cluster(request, monkeypatch: pytest.MonkeyPatch) -> CoreBroker:
    made = CoreBroker(request.param)
    monkeypatch.setattr(committer, "client_for", lambda *_where: Host(made))
    monkeypatch.setattr(batch_write, "delete_group", lambda *_args, **_options: iter(()))
    return made


class Killed(BaseException):
    """The worker's process is gone."""


def kill_at(step: str) -> Callable[..., None]:
    """Return a function that raises Killed when a worker reaches this step."""

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
    message = stage(TaskAttempt("w", 0, "w", "w-0-0"), rows, counts={"out": 2})
    return commit_batch_write(read_sink_settings(options, streaming=False), [message], "w")


def test_a_write_without_rows_commits_its_offsets_and_asks_nothing_without_any(
    cluster: CoreBroker,
) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "topic": "out"}
    nothing = stage(TaskAttempt("w", 0, "w", "w-0-0"), [])
    plain = read_sink_settings(options, streaming=False)
    assert commit_batch_write(plain, [nothing], "w") is None
    assert not cluster.asked
    options |= {"kafka.group.id": "g", "sourceOffsets": '{"in":{"0":7}}'}
    outcome = commit_batch_write(read_sink_settings(options, streaming=False), [nothing], "w")
    assert outcome is not None
    assert cluster.offsets("g") == {("in", 0): (7, "")}


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
        """Commit a batch that has these record batches for out-0, if any."""
        source = json.dumps({"in": {"0": 5 * (batch_id + 1)}, "txnlog/cluster.id/c": {}})
        self.offsets(batch_id).write_text(f"v1\n{{}}\n{source}")
        rows = [("out", 0, batch) for batch in batches]
        attempt = TaskAttempt(self.settings.write_name("q"), batch_id, "plan", "plan")
        message = stage(attempt, rows, query_id="q")
        commit_streaming(self.settings, [message], batch_id, run_id)


def test_a_write_that_is_committed_is_not_reported_as_failed_for_what_cannot_be_removed(
    cluster: CoreBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    def refuse(*_: object) -> None:
        raise StagingFailed("not a directory of this user alone")

    monkeypatch.setattr(reader, "running_server", refuse)
    process_local(Warned).clear()
    with caplog.at_level(logging.WARNING):
        outcome = write(None)
    assert outcome is not None
    assert cluster.committed_values("out", 0) == [b"a", b"b"]
    assert "are not removed" in caplog.text


@pytest.mark.parametrize(("fault", "skipped"), [(MALFORMED, True), (NOT_APPLIED, False)])
def test_an_unknown_outcome_is_found_out_and_the_rows_are_there_once(
    cluster: CoreBroker, tmp_path: Path, fault: Fault, skipped: bool
) -> None:
    cluster.script(K.END_TXN, fault)
    outcome = write(tmp_path)
    assert outcome is not None
    assert outcome.skipped == skipped
    assert cluster.committed_values("out", 0) == [b"a", b"b"]


@pytest.mark.parametrize("fault", [MALFORMED, NOT_APPLIED])
def test_an_outcome_that_stays_unknown_says_where_to_look_before_writing_again(
    cluster: CoreBroker, tmp_path: Path, fault: Fault
) -> None:
    cluster.script(K.END_TXN, fault)
    down = {("end_txn", "before"): {K.INIT_PRODUCER_ID: NOT_SENT, K.OFFSET_FETCH: NOT_SENT}}
    cluster.on_reached = lambda *place: cluster.always.update(down.get(place, {}))
    with pytest.raises(CommitStateUnknown, match=r"group 'txnlog-w\.progress\.w'") as caught:
        write(tmp_path)
    assert "Restart the query" not in str(caught.value)


def test_an_id_that_was_left_is_fenced_whatever_crashed_and_by_each_later_run(
    cluster: CoreBroker, tmp_path: Path
) -> None:
    query = Stream(tmp_path)
    query.commit(0, "run-1")
    options = {"kafka.bootstrap.servers": "h:1", "topic": "out", "kafka.group.id": "g"}
    named = options | {"checkpointLocation": str(tmp_path), "kafka.transactional.id": "other"}
    query.settings = read_sink_settings(named, streaming=True)
    handle = cluster.handle

    def dies(asked):
        found = handle(asked)
        if getattr(asked.message, "transactional_id", None) == "other":
            raise RuntimeError("the driver dies here")
        return found

    cluster.handle = dies  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="dies here"):
        query.commit(1, "run-2")
    cluster.handle = handle  # type: ignore[method-assign]
    for batch_id, run_id in enumerate(("run-3", "run-4"), 1):
        cluster.asked.clear()
        query.commit(batch_id, run_id)
        fenced = [r.transactional_id for r in cluster.requests(K.INIT_PRODUCER_ID)]
        assert fenced[:2] == ["other", "txnlog-g"]


@pytest.mark.invariant(35, 57)
@pytest.mark.parametrize("run_id", ["run-1", "run-2"])
@pytest.mark.parametrize(
    "step", ["produce.first:after", "txn_offset_commit:after", "end_txn:after"]
)
def test_a_batch_that_was_begun_is_done_once_and_whole_when_it_is_tried_again(
    cluster: CoreBroker, tmp_path: Path, step: str, run_id: str
) -> None:
    """The caller may repeat the batch of a failed call, with its rows in another order."""
    query = Stream(tmp_path)
    query.commit(0, "run-1", record_batch("x"))

    cluster.on_reached = kill_at(step)
    with pytest.raises(Killed):
        query.commit(1, "run-1", record_batch("a", "b"), record_batch("c", "d"))
    cluster.on_reached = lambda *_place: None
    query.commit(1, run_id, record_batch("c", "d"), record_batch("a", "b"))
    query.commit(2, run_id, record_batch("e"))
    found = cluster.committed_values("out", 0)
    assert sorted(found) == [b"a", b"b", b"c", b"d", b"e", b"x"]


@pytest.mark.invariant(35, 57)
@pytest.mark.parametrize("run_id", ["run-1", "run-2"])
def test_a_batch_is_tried_again_whole_although_a_late_write_has_set_the_record_back(
    cluster: CoreBroker, tmp_path: Path, run_id: str
) -> None:
    """Object stores behave so: a write that the client gave up may be carried out later."""
    query = Stream(tmp_path)
    path = tmp_path / "txnlog" / "attempt.json"
    for number, value in enumerate(("x", "y")):
        query.commit(number, "run-1", record_batch(value))
    left = path.read_bytes()
    cluster.on_reached = kill_at("produce.first:after")
    with pytest.raises(Killed):
        query.commit(2, "run-1", record_batch("a", "b"), record_batch("c", "d"))
    cluster.on_reached = lambda *_place: None
    path.write_bytes(left)
    query.commit(2, run_id, record_batch("c", "d"), record_batch("a", "b"))
    found = cluster.committed_values("out", 0)
    assert sorted(found) == [b"a", b"b", b"c", b"d", b"x", b"y"]


def write_for(version: int, *values: str) -> None:
    """A write with txnAppId."""
    options = {"kafka.bootstrap.servers": "h:1", "topic": "out", "txnAppId": "app"}
    settings = read_sink_settings(options | {"txnVersion": str(version)}, streaming=False)
    rows = [("out", 0, record_batch(*values))]
    message = stage(TaskAttempt("w", 0, "w", "w-0-0"), rows, counts={"out": 2})
    commit_batch_write(settings, [message], "w")


@pytest.mark.parametrize("fault", [MALFORMED, NOT_APPLIED])
def test_the_advice_for_a_write_of_an_application_whose_outcome_stays_unknown_writes_it_once(
    cluster: CoreBroker, fault: Fault
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
    assert cluster.committed_values("out", 0) == [b"a", b"b", b"c", b"d"]
