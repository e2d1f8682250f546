"""What a commit did and how long it took: a line on the console, a datagram to each listener.

Theory of operation. A micro-batch is committed in one of Spark's worker processes, and Spark gives
a Python sink no way to hand figures to the query's progress. So the worker sends a `CommitReport`
as one datagram to each socket in a folder of this user on this machine, which listeners of
`txnlog_spark.metrics` open in the driver. Nothing is written to a disk, nothing is waited for, and
a commit neither fails nor slows down when nobody listens: then there is no folder. A report may be
lost (a full socket, a killed worker): the figures are for watching, the output is what counts.

The failpoints that the commit reaches anyway separate the phases (`commit.micro_batch`).
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

from txnlog_kafka.host.processes import is_private
from txnlog_kafka.operations.effects import Ask, Milestone, Operation, Outcome, relayed
from txnlog_kafka.operations.produce import staged_totals
from txnlog_kafka.operations.producer import StagedPartition
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
"""Which phase begins at a failpoint. "takeover" has the look-ups, the fencing and the progress,
"produce" the offsets too, which are committed at the same time."""
REPORT_BYTES_MAX = 8_192
SOCKET_SUFFIX = ".commits"
SHOWN_ID_LENGTH = 8
"""Characters of a query's id that tell it from the other queries of a driver."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CommitReport:
    """One try of Spark's to commit a batch. `outcome` is committed, replayed (it was committed
    before), fenced, unknown or failed; times are in ms."""

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
        """All phases together."""
        return sum(self.phases_ms.values())

    def __str__(self) -> str:
        """One line for the log."""
        phases = ", ".join(f"{name} {ms:.0f}" for name, ms in self.phases_ms.items())
        return (
            f"batch {self.batch_id} of query {self.query_id}: {self.outcome}, "
            f"{self.produced_records} records ({self.produced_bytes} bytes) in "
            f"{self.produced_partitions} partitions, {self.transactions_aborted} transactions "
            f"aborted, {self.duration_ms:.0f} ms ({phases})"
        )


class Stopwatch:
    """Fills a report while its commit goes on."""

    def __init__(self, report: CommitReport, now: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._now = now
        self._phase: str | None = None
        self._since = now()
        self._begun = 0

    def measured(self, operation: Operation[T]) -> Operation[T]:
        """`operation`, with each failpoint that it reaches noted; all asks go on to the host."""
        return relayed(operation, self._noted)

    def _noted(self, ask: Ask) -> Operation[Outcome]:
        if isinstance(ask, Milestone):
            self._reached(ask)
        return (yield ask)

    def finish(self, outcome: CommitOutcome | BaseException) -> None:
        """The commit has ended, one way or the other."""
        self._enter(None)
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

    def _reached(self, failpoint: Milestone) -> None:
        place = (failpoint.step, failpoint.when)
        if place == ("add_partitions", "before"):
            self._begun += 1
        if place in PHASES:
            self._enter(PHASES[place])

    def _enter(self, phase: str | None) -> None:
        now = self._now()
        if self._phase is not None:
            spent = self._report.phases_ms
            spent[self._phase] = spent.get(self._phase, 0.0) + 1000 * (now - self._since)
        self._phase, self._since = phase, now


def run_reported(
    query_id: str,
    batch_id: int,
    staged: Sequence[StagedPartition],
    operation: Operation[CommitOutcome],
    run: Callable[[Operation[CommitOutcome]], CommitOutcome],
    *,
    shown_as: str = "",
) -> CommitOutcome:
    """`run(operation)`, and the report of it logged and sent, also when it raises.

    `shown_as` begins the console's line, else the query's id and the batch do.
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
            _tell(report, shown_as, {part.topic for part in staged})
            send(report)


def _tell(report: CommitReport, shown_as: str, topics: Collection[str]) -> None:
    """Tell of a batch with rows, or that came again. Spark shows the error of a failed one."""
    name = shown_as or f"query {report.query_id[:SHOWN_ID_LENGTH]}, batch {report.batch_id}"
    if report.outcome == "replayed":
        console.tell(f"{name}: was committed before, nothing is written again")
    elif report.outcome == "committed" and report.produced_records:
        rows = console.counted(report.produced_records, "row")
        took = console.lasting(report.duration_ms)
        console.tell(f"{name}: {rows} to {console.named(topics)}, committed in {took}")


def folder() -> Path:
    """Where this user's listeners have their sockets."""
    return Path(tempfile.gettempdir()) / f"txnlog-metrics-{os.getuid()}"


def send(report: CommitReport) -> None:
    """To every listener that is there, without waiting. A socket that nobody holds is removed.

    Raises nothing: the batch may be committed, and an error would say that it is not.
    """
    try:
        _send(report)
    except OSError as error:
        logger.debug("nobody got the report of a commit: %s", error)


def _send(report: CommitReport) -> None:
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
                with contextlib.suppress(OSError):
                    name.unlink()
            except OSError as error:
                logger.debug("a listener did not get the report of a commit: %s", error)


class Receiver:
    """One listener's socket. Close it: that ends `reports`, and removes the socket."""

    def __init__(self, name: str) -> None:
        """Raises TxnLogError for a folder that is somebody else's, and OSError."""
        folder().mkdir(mode=0o700, exist_ok=True)
        if not is_private(folder()):
            raise TxnLogError(f"{folder()} must belong to this user alone: remove it")
        self._path = folder() / f"{name}{SOCKET_SUFFIX}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))

    def reports(self) -> Iterator[CommitReport]:
        """Each report as it arrives, until the receiver is closed."""
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
