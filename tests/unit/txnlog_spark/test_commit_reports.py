"""Reports of a commit, and their way to a listener in another process."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.query.staged_pieces import piece_of

from txnlog_kafka.operations.effects import Failpoint, Sleep
from txnlog_kafka.operations.producer import StagedChunk
from txnlog_spark.commit.plan import CommitOutcome, Progress
from txnlog_spark.errors import AbortableError, ProducerFenced, TxnLogError
from txnlog_spark.sink import commit_reports
from txnlog_spark.sink.commit_reports import CommitReport, Receiver, run_reported, send

COMMITTED = CommitOutcome(
    False, Progress("q", 8), produced_records=9, produced_bytes=90, produced_partitions=2
)
SKIPPED = CommitOutcome(True, Progress("q", 8))
STEPS = (
    "collect before",
    "look_up before",
    "judge after",
    "add_partitions before",
    "end_txn before",
)


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Collects the reports that arrive until it is called."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    receiver, found = Receiver("listener"), []
    thread = threading.Thread(target=lambda: found.extend(receiver.reports()))
    thread.start()

    def stop() -> list[CommitReport]:
        receiver.close()
        thread.join(10)
        return found

    yield stop
    stop()


def commit(steps, ends_with):
    """An operation that takes 10 ms a failpoint."""
    for step in steps:
        yield Failpoint(*step.split(), 7)
        yield Sleep(10)
    if isinstance(ends_with, Exception):
        raise ends_with
    return ends_with


class Host:
    """Performs the asks on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        init = commit_reports.Stopwatch.__init__
        monkeypatch.setattr(init, "__defaults__", (lambda: self.now_s,))

    def run(self, operation):
        ask = next(operation)
        try:
            while True:
                self.now_s += ask.duration_ms / 1000 if isinstance(ask, Sleep) else 0
                ask = operation.send(None)
        except StopIteration as stop:
            return stop.value


def report_of(host: Host, steps, ends_with) -> CommitOutcome:
    return run_reported("q", 7, (), commit(steps, ends_with), host.run)


def test_a_commit_is_one_line_and_one_report_with_the_time_of_each_phase(
    heard, monkeypatch, caplog
) -> None:
    with caplog.at_level(logging.DEBUG, logger=commit_reports.__name__):
        report_of(Host(monkeypatch), STEPS, COMMITTED)
    (report,) = heard()
    assert list(report.phases_ms) == list(commit_reports.PHASES.values())
    assert [round(ms) for ms in report.phases_ms.values()] == [10, 10, 20, 10]
    assert (report.outcome, report.produced_records, report.transactions_aborted) == (
        "committed", 9, 0,
    )  # fmt: skip
    (line,) = [r.getMessage() for r in caplog.records if r.name == commit_reports.__name__]
    assert line.startswith("batch 7 of query q: committed, 9 records (90 bytes) in 2 partitions, 0")
    assert line.endswith("50 ms (checkpoint 10, takeover 10, produce 20, end_transaction 10)")


@pytest.mark.parametrize(
    ("steps", "ends_with", "outcome", "aborted"),
    [
        (STEPS[:2], SKIPPED, "replayed", 0),
        (STEPS[:3], SKIPPED, "replayed", 0),
        ((*STEPS[:4], *STEPS[1:3]), SKIPPED, "replayed", 1),
        ((*STEPS[:4], *STEPS[1:]), COMMITTED, "committed", 1),
        (STEPS[:4], ProducerFenced(90, "x"), "fenced", 0),
        ((*STEPS[:4], *STEPS[1:4]), AbortableError(48, "x"), "failed", 2),
        (STEPS[:1], TxnLogError("x"), "failed", 0),
    ],
)
def test_the_outcome_says_what_became_of_the_transactions(
    heard, monkeypatch, steps, ends_with, outcome: str, aborted: int
) -> None:
    host = Host(monkeypatch)
    if isinstance(ends_with, Exception):
        with pytest.raises(type(ends_with)):
            report_of(host, steps, ends_with)
    else:
        report_of(host, steps, ends_with)
    (report,) = heard()
    assert (report.outcome, report.transactions_aborted) == (outcome, aborted)


def staged(*topics: str) -> tuple[StagedChunk, ...]:
    """A batch that has these topics."""
    return tuple(piece_of(b"", topic) for topic in topics)


@pytest.mark.parametrize(
    ("parts", "ends_with", "shown_as", "line"),
    [
        (
            ("out", "out"),
            COMMITTED,
            "",
            "query 8c6f2a10, batch 7: 9 rows to out, committed in 50 ms",
        ),
        (
            ("b", "a"),
            COMMITTED,
            "loud, batch 7",
            "loud, batch 7: 9 rows to a, b, committed in 50 ms",
        ),
        (
            "dcba",
            replace(COMMITTED, produced_records=1),
            "batch write",
            "batch write: 1 row to 4 topics, committed in 50 ms",
        ),
        (
            ("out",),
            SKIPPED,
            "",
            "query 8c6f2a10, batch 7: was committed before, nothing is written again",
        ),
        ((), replace(COMMITTED, produced_records=0), "", None),
        (("out",), ProducerFenced(90, "x"), "", None),
    ],
)
def test_a_commit_with_rows_is_one_line_on_the_console(
    monkeypatch, caplog, parts, ends_with, shown_as: str, line: str | None
) -> None:
    host, query_id = Host(monkeypatch), "8c6f2a10-5d1e-4f6b-9c8e-000000000000"
    if isinstance(ends_with, CommitOutcome):
        ends_with = replace(ends_with, progress=Progress(query_id, 8))
    with caplog.at_level(logging.INFO), contextlib.suppress(ProducerFenced):
        run_reported(
            query_id, 7, staged(*parts), commit(STEPS, ends_with), host.run, shown_as=shown_as
        )
    assert [r.getMessage() for r in caplog.records] == ([] if line is None else [line])


def test_a_commit_does_not_care_who_listens(heard, tmp_path: Path) -> None:
    second, third = Receiver("second"), Receiver("third")
    second._socket.close()  # its process was killed
    send(CommitReport("q", 1))
    assert {p.name for p in commit_reports.folder().iterdir()} == {
        "listener.commits", "third.commits",
    }  # fmt: skip
    for number in range(1000):  # the third never looks: its socket is full
        send(CommitReport("q", number))
    third.close()
    third._socket.close()
    assert heard()[0] == CommitReport("q", 1)
    send(CommitReport("q", 2))


def test_a_folder_that_others_may_write_to_is_not_used(heard) -> None:
    commit_reports.folder().chmod(0o770)
    send(CommitReport("q", 1))
    with pytest.raises(TxnLogError, match="must belong to this user alone"):
        Receiver("other")
    assert heard() == []


@pytest.mark.parametrize("place", ["socket.socket", "txnlog_spark.sink.commit_reports.is_private"])
def test_a_commit_that_cannot_be_reported_is_a_commit_all_the_same(
    heard, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(place, refuse)
        assert report_of(Host(patched), STEPS, COMMITTED) is COMMITTED
    assert heard() == []
