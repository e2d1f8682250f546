"""Rows of a query: its input, the batches that were planned of it, and what drivers have reported.

A row is known by its source coordinates. The checkpoint says which rows a batch has.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

from simulation.hosts.checkpoint import Checkpoint
from simulation.hosts.spark_tasks import Row
from simulation.scenario import QuerySettings
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import parse_batch_offsets
from txnlog_spark.commit.plan import CommitOptions

KEYS = 5

Offsets = dict[TopicPartition, int]


def written_as(query_id: str, sink: CommitOptions) -> str:
    """Return the name under which one sink of a query writes."""
    return f"{query_id}-{sink.sink_name}" if sink.sink_name else query_id


def ends_of(checkpoint: Checkpoint, batch_id: int) -> Offsets:
    """Return the end offsets of a planned batch; {} before the first."""
    text = checkpoint.recalled("offsets", batch_id)
    return {} if text is None else parse_batch_offsets("offsets", text).source_offsets


def rows_of(checkpoint: Checkpoint, batch_id: int) -> list[Row]:
    """Return the rows of a planned batch; a batch that starts from committed offsets has none."""
    text = checkpoint.recalled("offsets", batch_id)
    planned = None if text is None else parse_batch_offsets("offsets", text)
    starts = [] if planned is None else [s.note for s in planned.sources if s.note is not None]
    if planned is None or (batch_id == 0 and any(note.group_start for note in starts)):
        return []
    before, ends = ends_of(checkpoint, batch_id - 1), planned.source_offsets
    return [(p.partition, n) for p, end in ends.items() for n in range(before.get(p, 0), end)]


@dataclass(frozen=True, slots=True)
class Source:
    """Input records by coordinates: partition p of `topic` holds offsets [0, rows)."""

    topic: str
    rows: int
    output_topic: str
    settings: QuerySettings
    first_stamp_ms: int = 0
    """Timestamp of the records of batch 0, where no clock has jumped; later batches have more."""

    def key(self, partition: int, position: int) -> bytes:
        """Return the key of a row; order per key is part of exactly-once."""
        return b"%d-%d" % (partition, position % KEYS)

    def output_partition(self, key: bytes) -> int:
        """Return the output partition of a key's rows."""
        return zlib.crc32(key) % self.settings.output_partitions

    @property
    def ends(self) -> Offsets:
        """End of the input, by partition."""
        numbers = range(self.settings.source_partitions)
        return {TopicPartition(self.topic, p): self.rows for p in numbers}

    def rows_max(self, rng: random.Random) -> int:
        """Draw the row limit of the next batch; a share of `empty_batches` has no rows."""
        empty_batches, rows_max = self.settings.empty_batches, self.settings.rows_per_batch
        if rng.random() < empty_batches:
            return 0
        rows_min = 0 if empty_batches else (rows_max + 1) // 2
        return sum(rng.randint(rows_min, rows_max) for _ in range(self.settings.source_partitions))


@dataclass(slots=True)
class DriverHistory:
    """Reports of all drivers of a run, for the invariants."""

    committed: list[tuple[str, str, str]] = field(default_factory=list)
    """(query and sink, run id, number and plan of the batch) whose commit returned."""
    skipped: list[tuple[str, int]] = field(default_factory=list)
    """(run id, batch id) that was found committed at the first try: nothing may be produced."""
    skipped_rows: dict[str, set[Row]] = field(default_factory=lambda: defaultdict(set))
    """Rows by topic that were in the topic already, as a run found that was to write them."""
    taken: set[tuple[str, int]] = field(default_factory=set)
    """(run id, number) of the task attempts whose commit message Spark took."""
    done: dict[str, int] = field(default_factory=dict)
    """Batch after the last that a commit or a skip was reported of, by query and sink."""
