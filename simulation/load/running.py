"""A driver that was started, as the operator of the query sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from simulation.checkers.output_witness import OutputWitness
from simulation.checkers.producer_history import check_in_transaction
from simulation.hosts.client import ClientProcess, Watcher
from simulation.hosts.spark_driver import Driver
from simulation.hosts.staging import read_with_a_fault
from simulation.hosts.stateful import StateMissing
from simulation.load.mishaps import Mishaps
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.operations.effects import (
    Failpoint,
    FileAsk,
    FileFailed,
    FileOutcome,
    ReadStaged,
    RemoveOtherRuns,
)
from txnlog_kafka.operations.producer import Bytes, StagedChunk
from txnlog_kafka.wire.messages import Message
from txnlog_spark.errors import (
    AnotherOutput,
    BatchReplanned,
    CommittedOffsetsMoved,
    DataLoss,
    GroupHasOffsets,
    ProgressBehind,
    ProgressError,
    StatefulReplanned,
    TxnLogError,
    UnknownTopic,
)

PRODUCE = "Produce"


@dataclass(slots=True, eq=False)
class Running(Watcher):
    """A driver that was started, with its process and its witness."""

    process: ClientProcess
    driver: Driver
    witness: OutputWitness
    trace: Trace
    mishaps: Callable[[], Mishaps]
    """Returns the mishaps of the query, which are others when faults have ended."""
    on_step: Callable[[Running, Failpoint], None]
    """Lets the operator see a step; the operator may end the driver, as in `on_file`."""
    on_file: Callable[[Running], None]
    produces_before: int = 0
    """Produce requests that the driver had sent when its present batch began."""
    skips_before: int = 0
    """Batches that all drivers had skipped when the present batch began."""

    # ------------------------------------------------------------------ as `Watcher`

    def on_sent(self, request: Message) -> None:
        """Have the witness look at a request that leaves the driver."""
        self.witness.on_sent(request)

    def on_answer(self, request: Message) -> None:
        """Check that the driver asked for it within its transaction."""
        check_in_transaction(self.process.name, request)

    def on_reached(self, reached: Failpoint) -> None:
        """Have the witness and the operator look at a step; the operator may end the driver."""
        self.witness.on_reached(reached)
        self._check_skip(reached)
        self.on_step(self, reached)

    def serve_file(self, ask: FileAsk) -> FileOutcome:
        """Perform a file operation; the store may fail, and the operator may end the driver."""
        if isinstance(ask, ReadStaged):
            found: FileOutcome
            try:
                found = self._read_staged(ask.piece)
            except OSError as error:  # the server is gone; the product's host says the same
                found = FileFailed(str(error))
        elif isinstance(ask, RemoveOtherRuns):
            found = None
            self.driver.remove_other_runs()
        else:
            found = self.witness.served(ask, partial(self._perform, ask))
        self.on_file(self)
        return found

    def file_delay_us(self) -> int:
        """Return the microseconds that the next file operation takes."""
        return self.mishaps().file_delay_us()

    def _perform(self, ask: FileAsk) -> FileOutcome:
        mishaps, checkpoint = self.mishaps(), self.driver.checkpoint
        if mishaps.fail_store():
            self.trace.fault("store failed")
            return checkpoint.perform_in_vain(ask, mishaps.faults)
        return checkpoint.perform(ask)

    def _read_staged(self, piece: StagedChunk) -> Bytes:
        """Return the bytes of a chunk, or the answer of a failing server. Raises OSError."""
        executors, mishaps = self.driver.application.executors, self.mishaps()
        executors.advance()
        if not mishaps.fail_staged_read():
            return piece.read()

        def stall(duration_ms: int) -> None:
            self.process.pause(duration_ms * 1000)

        return read_with_a_fault(executors.staging, piece, mishaps.faults, self.trace, stall)

    # ------------------------------------------------------------------ checks

    def _check_skip(self, reached: Failpoint) -> None:
        """Check that a driver sent no Produce for a batch that it skipped (38)."""
        if reached.step != "commit_log":
            return
        sent, skipped = self.process.sent_counts.get(PRODUCE, 0), self.driver.history.skipped
        skips = skipped[self.skips_before :]
        if reached.when == "before" and (self.driver.run_id, reached.batch_id) in skips:
            self.trace.count("batch skipped")
            if sent > self.produces_before and len(self.driver.sinks) == 1:
                violated(38, "a skipped batch sent Produce", batch_id=reached.batch_id)
        self.produces_before, self.skips_before = sent, len(skipped)

    def check_end(self, error: TxnLogError) -> None:
        """Check that the driver does not say that input or a topic is gone (75)."""
        if isinstance(error, DataLoss | UnknownTopic):
            violated(75, "what is there was taken to be gone", error=str(error))


def is_other_topic(error: ProgressError, topic: str) -> bool:
    """True if the batch is in the former topic: the query must start with that one again."""
    return isinstance(error, AnotherOutput) and f"started with topic {topic!r}" in str(error)


def is_sink_behind(error: ProgressError, sinks: int) -> bool:
    """True if another driver may be ahead by several batches.

    Without a group no driver can tell that of a sink. After a restart it knows the planned batches.
    """
    return isinstance(error, BatchReplanned) and sinks > 1


def is_left_behind(error: TxnLogError, driver: Driver) -> bool:
    """True if another driver went on with the checkpoint while this one had its batch planned.

    Started again, the query knows what is planned.
    """
    newest = max(driver.checkpoint.batches("offsets"), default=-1)
    return isinstance(error, StateMissing) and 0 <= driver.batch_id < newest


def is_purged(error: ProgressError, driver: Driver) -> bool:
    """True if another driver has purged the entry of the batch that this one had planned."""
    return driver.source.settings.retained_batches > 0 and "there is no such file" in str(error)


def is_explained(error: ProgressError, driver: Driver, *, is_only: bool) -> bool:
    """True if what was done to the checkpoints explains that a person has to look.

    A loss of power explains nothing: the sink has flushed what it needs of Spark's files.
    """
    checkpoint = driver.checkpoint
    if isinstance(error, GroupHasOffsets) and checkpoint.starts_committed:
        return _has_moved(error, driver)
    if isinstance(error, CommittedOffsetsMoved | GroupHasOffsets):
        return not is_only or checkpoint.tail_losses > 0
    settings = driver.source.settings
    if isinstance(error, BatchReplanned) and settings.leaves_out and settings.retained_batches:
        return True  # what would have stopped one of two drivers is purged, and both have planned
    if isinstance(error, BatchReplanned):
        # No entry of the log says where the first batch begins; or the source knows no group; or
        # a backup is older than a loss after which the query gave its numbers a second time.
        may_differ = driver.batch_id == 0 or settings.reads_without_group
        return checkpoint.tail_losses > (0 if may_differ else 1)
    # A batch that was begun may be planned again without rows, and its sink not be called for it.
    is_of_a_loss = isinstance(error, StatefulReplanned | ProgressBehind)
    return is_of_a_loss and checkpoint.tail_losses > 0


def _has_moved(error: ProgressError, driver: Driver) -> bool:
    """True if the group is elsewhere than where its query began, by the text of the error."""
    starts = driver.checkpoint.starts()
    found = re.findall(rf"{driver.source.topic}-(\d+) at (\d+)", str(error))
    return any(starts.get(int(partition)) != int(at) for partition, at in found)
