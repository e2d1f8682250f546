"""Reports of commits: a line on the console, and a datagram to each listener.

A micro-batch is committed in one of Spark's worker processes, and Spark gives a Python sink no way
to add figures to the query's progress. So the worker sends a `CommitReport` as one datagram to each
socket in a folder of this user on this machine. Listeners of `txnlog_spark.metrics` open these
sockets in the driver. The worker writes nothing to a disk and waits for nothing. Without a listener
there is no folder, so a commit neither fails nor slows down. A report may be lost (a full socket, a
killed worker): the figures are for watching, the output is what counts.

The failpoints that the commit reaches separate the phases (`commit.micro_batch`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from txnlog_kafka.operations.effects import Ask, Failpoint, Operation, Outcome, relayed
from txnlog_kafka.operations.produce import staged_totals
from txnlog_kafka.operations.producer import StagedChunk
from txnlog_kafka.processes import is_private
from txnlog_spark import console
from txnlog_spark.commit.plan import CommitOutcome
from txnlog_spark.errors import CommitStateUnknown, ProducerFenced, TxnLogError

T = TypeVar("T")

PHASES = {
    ("collect", "before"): "checkpoint",
    ("look_up", "before"): "takeover",
    ("judge", "after"): "produce",
    ("end_txn", "before"): "end_transaction",
}
"""Phase that begins at a failpoint. "takeover" covers the look-ups, the fencing and the progress,
"produce" also the offsets, which are committed at the same time."""
REPORT_BYTES_MAX = 8_192
SOCKET_SUFFIX = ".commits"
SHOWN_ID_LENGTH = 8
"""Characters of a query's id that tell it from the other queries of a driver."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CommitReport:
    """Try of Spark's to commit a batch; times are in ms.

    `outcome` is committed, replayed (the batch was committed before), fenced, unknown or failed.
    """

    query_id: str
    batch_id: int
    outcome: str = "failed"
    transactions_aborted: int = 0
    staged_records: int = 0
    staged_bytes: int = 0
    produced_records: int = 0
    produced_bytes: int = 0
    produced_partitions: int = 0
    phases_ms: dict[str, float] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float:
        """Time of all phases together."""
        return sum(self.phases_ms.values())

    def __str__(self) -> str:
        """Return one line for the log."""
        phases = ", ".join(f"{name} {ms:.0f}" for name, ms in self.phases_ms.items())
        return (
            f"batch {self.batch_id} of query {self.query_id}: {self.outcome}, "
            f"{self.produced_records} records ({self.produced_bytes} bytes) in "
            f"{self.produced_partitions} partitions, {self.transactions_aborted} transactions "
            f"aborted, {self.duration_ms:.0f} ms ({phases})"
        )


class Stopwatch:
    """Measures the phases of a commit, and fills in its report."""

    def __init__(self, report: CommitReport, now: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._now = now
        self._phase: str | None = None
        self._since = now()
        self._begun = 0

    def measured(self, operation: Operation[T]) -> Operation[T]:
        """Return `operation` with its failpoints noted; all asks go on to the host."""
        return relayed(operation, self._noted)

    def _noted(self, ask: Ask) -> Operation[Outcome]:
        if isinstance(ask, Failpoint):
            self._reached(ask)
        return (yield ask)

    def finish(self, outcome: CommitOutcome | BaseException) -> None:
        """Complete the report at the commit's end, with its outcome or its error."""
        self._enter_phase(None)
        report = self._report
        ended = 0
        if isinstance(outcome, CommitOutcome):
            report.outcome = "replayed" if outcome.skipped else "committed"
            report.produced_records = outcome.produced_records
            report.produced_bytes = outcome.produced_bytes
            report.produced_partitions = outcome.produced_partitions
            report.query_id = outcome.progress.query_id
            ended = 0 if outcome.skipped else 1
        elif isinstance(outcome, ProducerFenced | CommitStateUnknown):
            report.outcome = "fenced" if isinstance(outcome, ProducerFenced) else "unknown"
            ended = 1
        report.transactions_aborted = max(0, self._begun - ended)

    def _reached(self, failpoint: Failpoint) -> None:
        place = (failpoint.step, failpoint.when)
        if place == ("add_partitions", "before"):
            self._begun += 1
        if place in PHASES:
            self._enter_phase(PHASES[place])

    def _enter_phase(self, phase: str | None) -> None:
        now = self._now()
        if self._phase is not None:
            spent = self._report.phases_ms
            spent[self._phase] = spent.get(self._phase, 0.0) + 1000 * (now - self._since)
        self._phase, self._since = phase, now


def run_reported(
    query_id: str,
    batch_id: int,
    staged: Sequence[StagedChunk],
    operation: Operation[CommitOutcome],
    run: Callable[[Operation[CommitOutcome]], CommitOutcome],
    *,
    shown_as: str = "",
) -> CommitOutcome:
    """Run the operation, then log and send its report, even if it raises.

    `shown_as` begins the console's line; without it the query's id and the batch do.
    """
    totals = staged_totals(staged)
    report = CommitReport(
        query_id, batch_id, staged_records=totals.records, staged_bytes=totals.bytes
    )
    watch = Stopwatch(report)
    ended: CommitOutcome | BaseException | None = None
    try:
        ended = run(watch.measured(operation))
        return ended
    except TxnLogError as error:
        ended = error
        raise
    finally:
        if ended is not None:
            watch.finish(ended)
            logger.debug("%s", report)
            _log_report(report, shown_as, {part.topic for part in staged})
            send(report)


def _log_report(report: CommitReport, shown_as: str, topics: Collection[str]) -> None:
    """Log a line for a batch with rows, or for a replay. Spark shows a failed batch's error."""
    name = shown_as or f"query {report.query_id[:SHOWN_ID_LENGTH]}, batch {report.batch_id}"
    if report.outcome == "replayed":
        console.tell(f"{name}: was committed before, nothing is written again")
    elif report.outcome == "committed" and report.produced_records:
        rows = console.counted(report.produced_records, "row")
        took = console.lasting(report.duration_ms)
        console.tell(f"{name}: {rows} to {console.named(topics)}, committed in {took}")


def folder() -> Path:
    """Return the folder of the sockets of this user's listeners."""
    return Path(tempfile.gettempdir()) / f"txnlog-metrics-{os.getuid()}"


def send(report: CommitReport) -> None:
    """Send the report to every listener, without waiting. A socket without a listener is removed.

    Raises nothing: the batch may be committed, and an error would say that it is not.
    """
    try:
        _send_report(report)
    except OSError as error:
        logger.debug("no process got the report of a commit: %s", error)


def _send_report(report: CommitReport) -> None:
    names = sorted(folder().glob(f"*{SOCKET_SUFFIX}"))
    if not names or not is_private(folder()):
        return
    data = json.dumps(asdict(report)).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        for name in names:
            try:
                sender.sendto(data, str(name))
            except ConnectionRefusedError:
                # The listener was killed. Another driver may have removed its socket just now, and
                # a socket that stays is found again at the next commit.
                with contextlib.suppress(OSError):
                    name.unlink()
            except OSError as error:
                logger.debug("a listener did not get the report of a commit: %s", error)


class Receiver:
    """Socket of one listener. Close it to end `reports` and to remove the socket."""

    def __init__(self, name: str) -> None:
        """Open the socket. Raises TxnLogError if the folder belongs to another user; OSError."""
        folder().mkdir(mode=0o700, exist_ok=True)
        if not is_private(folder()):
            raise TxnLogError(f"{folder()} must belong to this user alone: remove it")
        self._path = folder() / f"{name}{SOCKET_SUFFIX}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))

    def reports(self) -> Iterator[CommitReport]:
        """Yield each report as it arrives, until the receiver is closed."""
        with self._socket:
            while data := self._socket.recv(REPORT_BYTES_MAX):
                try:
                    yield CommitReport(**json.loads(data))
                except (TypeError, ValueError) as error:
                    logger.warning("a report of a commit is of another version: %s", error)

    def close(self) -> None:
        """Receive no more; a thread that waits for a report is woken."""
        with contextlib.suppress(OSError):  # closed by `reports` when it has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._path.unlink(missing_ok=True)
