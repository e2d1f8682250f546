"""A model of the Spark driver and its checkpoint around the real commit of a micro-batch.

The driver does what Spark and the sink do: write `offsets/N`, run the batch (here: make its rows),
`commit_micro_batch`, write `commits/N`. The checkpoint outlives drivers; each driver is a query run
with an id of its own. A row is known by its source coordinates, and carries the run that wrote it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from txnlog_spark.commit.micro_batch import commit_micro_batch
from txnlog_spark.commit.plan import CommitOutcome, CommitPlan
from txnlog_spark.errors import ProducerFenced, TxnLogError
from txnlog_spark.protocol.effects import Operation, Reached, Sleep
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import ProducerIdentity, StagedPartition
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import Record, encode_batch

INPUT_TOPIC = "input"
OUTPUT_TOPIC = "output"
GROUP_ID = "job"
PROGRESS_GROUP_ID = "job.progress"
TRANSACTIONAL_ID = "job"
QUERY_ID = "query-1"
KEYS = 5
RECORDS_PER_BATCH = 7
"""So that a partition's rows make several record batches, and produces are pipelined."""
TRIGGER_MS = 100


class ConcurrentQuery(TxnLogError):
    """Another run wrote this checkpoint file first (Spark's own check): this run must stop."""

    condition = "SIM_CONCURRENT_QUERY"


@dataclass(slots=True)
class Checkpoint:
    """The directory that outlives drivers: write-ahead log, commit log, our record of attempts."""

    offsets: dict[int, dict[int, int]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    attempted: int | None = None

    def write_offsets(self, batch_id: int, ends: dict[int, int]) -> None:
        """`offsets/N`, refused when another run was first."""
        if batch_id in self.offsets:
            raise ConcurrentQuery(f"offsets/{batch_id} exists")
        self.offsets[batch_id] = ends

    def write_commit(self, batch_id: int) -> None:
        """`commits/N`, refused when another run was first."""
        if batch_id in self.commits:
            raise ConcurrentQuery(f"commits/{batch_id} exists")
        self.commits.add(batch_id)

    @property
    def ends(self) -> dict[int, int]:
        """The end offsets of the last planned batch."""
        return self.offsets[max(self.offsets)] if self.offsets else {}


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """`protocol.values.Journal` on the model of a checkpoint, for one batch."""

    checkpoint: Checkpoint
    batch_id: int

    def confirm_holder(self) -> None:
        """The query has one transactional id."""

    def take_over(self) -> None:
        """The query has one transactional id."""

    def begin(self) -> None:
        """Note the batch, as the sink does before the transaction begins."""
        attempted = self.checkpoint.attempted
        if attempted is not None and attempted > self.batch_id:
            raise ProducerFenced(ErrorCode.PRODUCER_FENCED, f"batch {attempted} was begun")
        self.checkpoint.attempted = self.batch_id


@dataclass(frozen=True, slots=True)
class Source:
    """Input records by coordinates: partition p holds offsets [0, rows)."""

    partitions: int
    rows: int
    rows_per_batch: int
    output_partitions: int
    empty_batches: float

    def key(self, partition: int, position: int) -> bytes:
        """The row's key; order per key is part of exactly-once."""
        return b"%d-%d" % (partition, position % KEYS)

    def output_partition(self, key: bytes) -> int:
        """Where a key's rows go."""
        return zlib.crc32(key) % self.output_partitions

    def plan_ends(self, before: dict[int, int], rng: random.Random) -> dict[int, int]:
        """The next batch's end offsets; a share of `empty_batches` has no rows."""
        if rng.random() < self.empty_batches:
            return {p: before.get(p, 0) for p in range(self.partitions)}
        rows_min = 0 if self.empty_batches else (self.rows_per_batch + 1) // 2
        return {
            p: min(self.rows, before.get(p, 0) + rng.randint(rows_min, self.rows_per_batch))
            for p in range(self.partitions)
        }

    def is_done(self, ends: dict[int, int]) -> bool:
        """All rows are planned."""
        return all(ends.get(p, 0) == self.rows for p in range(self.partitions))


@dataclass(slots=True)
class DriverHistory:
    """What all drivers of a run report, for the invariants."""

    committed: list[tuple[str, int]] = field(default_factory=list)
    """(run id, batch id) whose commit returned."""
    skipped: list[tuple[str, int]] = field(default_factory=list)
    """(run id, batch id) that was found committed at the first try: nothing may be produced."""


@dataclass(slots=True)
class Driver:
    """One query run."""

    run_id: str
    checkpoint: Checkpoint
    source: Source
    session: Session
    history: DriverHistory
    rng: random.Random
    transaction_timeout_ms: int

    def query(self) -> Operation[None]:
        """Run micro-batches until the source is at its end. Raises what stops a query."""
        identity: ProducerIdentity | None = None
        while True:
            batch_id, ends = yield from self._plan()
            if batch_id < 0:
                return
            plan = self._commit_plan(batch_id, ends)
            outcome = yield from commit_micro_batch(self.session, identity, plan)
            identity = outcome.identity
            self._note(batch_id, outcome)
            yield Reached("S14", "before", batch_id)
            self.checkpoint.write_commit(batch_id)
            yield Reached("S14", "after", batch_id)
            yield Sleep(TRIGGER_MS)

    def _plan(self) -> Operation[tuple[int, dict[int, int]]]:
        last = max(self.checkpoint.offsets, default=-1)
        if last >= 0 and last not in self.checkpoint.commits:
            return last, self.checkpoint.offsets[last]
        if self.source.is_done(self.checkpoint.ends):
            return -1, {}
        batch_id = last + 1
        ends = self.source.plan_ends(self.checkpoint.ends, self.rng)
        yield Reached("S0", "before", batch_id)
        self.checkpoint.write_offsets(batch_id, ends)
        yield Reached("S0", "after", batch_id)
        return batch_id, ends

    def _note(self, batch_id: int, outcome: CommitOutcome) -> None:
        if not outcome.skipped:
            self.history.committed.append((self.run_id, batch_id))
        elif outcome.attempts == 1:
            self.history.skipped.append((self.run_id, batch_id))

    def _commit_plan(self, batch_id: int, ends: dict[int, int]) -> CommitPlan:
        return CommitPlan(
            query_id=QUERY_ID,
            run_id=self.run_id,
            batch_id=batch_id,
            transactional_id=TRANSACTIONAL_ID,
            progress_group_id=PROGRESS_GROUP_ID,
            progress_partition=(OUTPUT_TOPIC, 0),
            staged=self._stage(batch_id, ends),
            group_id=GROUP_ID,
            source_offsets={(INPUT_TOPIC, p): end for p, end in ends.items()},
            source_digest=",".join(f"{p}:{end}" for p, end in sorted(ends.items())),
            batch_hash=f"{batch_id}:{ends}",
            is_pinned=True,
            must_exist=self.checkpoint.attempted is not None,
            attempted_batch_id=self.checkpoint.attempted,
            journal=AttemptRecord(self.checkpoint, batch_id),
            transaction_timeout_ms=self.transaction_timeout_ms,
            produce_request_bytes=600,
        )

    def _stage(self, batch_id: int, ends: dict[int, int]) -> list[StagedPartition]:
        before = self.checkpoint.offsets.get(batch_id - 1, {})
        rows: dict[int, list[Record]] = {}
        for partition, end in sorted(ends.items()):
            for position in range(before.get(partition, 0), end):
                key = self.source.key(partition, position)
                value = b"%d:%d:%s" % (partition, position, self.run_id.encode())
                record = Record(key, value, batch_id)
                rows.setdefault(self.source.output_partition(key), []).append(record)
        return [_staged(number, records) for number, records in sorted(rows.items())]


def _staged(partition: int, records: list[Record]) -> StagedPartition:
    pieces = [
        encode_batch(records[start : start + RECORDS_PER_BATCH])
        for start in range(0, len(records), RECORDS_PER_BATCH)
    ]

    def read() -> Iterable[bytes]:
        return iter(pieces)

    size_bytes = sum(map(len, pieces))
    return StagedPartition(OUTPUT_TOPIC, partition, read, size_bytes, len(records))
