"""A model of a stateful query: rows wait in the state, and a later batch emits them.

Two kinds. In a *windows* query a row is emitted by the first batch whose watermark is past the row,
as a count of a window, an outer join or an event-time timer is. In a *timers* query each row has a
processing-time timer, and is emitted by the first batch that is planned long enough after the row's
own. So the output of a batch depends on its rows, on the state that the batch before has left, and
on what Spark has logged for it: `batchWatermarkMs` and `batchTimestampMs` in `offsets/N`.

The position of a row is its event time. As of a union of one stream per source partition with
`multipleWatermarkPolicy=min` the watermark is the last position of the partition that is furthest
behind, and no row is ever late. It is that of the batches before: Spark keeps what a run has seen
in memory, and logs the next watermark in `commits/N`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.hosts.checkpoint import STATE, Checkpoint
from simulation.hosts.spark_tasks import Row
from txnlog_spark.errors import TxnLogError

WINDOWS, TIMERS = "windows", "timers"
"""The kinds of stateful queries (`QuerySettings.state`)."""
TIMEOUT_MS = 250
"""The length of a timer: two batches or three."""
DRAINING_BATCHES_MAX = 3
"""Batches without data that a run of timers has at most at the end of its input."""


class StateMissing(TxnLogError):
    """A file of Spark's that a batch begins with is missing: Spark stops the query."""

    condition = "SIM_STATE_MISSING"


Held = dict[Row, int]
"""The rows in the state, and the time of the batch that brought each."""


def held_in(text: str) -> Held:
    """Return the rows of a version of the state."""
    return {(p, n): stamp_ms for p, n, stamp_ms in json.loads(text)}


def logged_metadata(text: str) -> dict[str, Any]:
    """Return the second line of an entry of Spark's logs."""
    found: dict[str, Any] = json.loads(text.splitlines()[1])
    return found


@dataclass(slots=True)
class StatefulQuery:
    """The state and the watermark of one query run."""

    kind: str
    checkpoint: Checkpoint
    partitions: int
    """The number of the source's partitions."""
    watermark: int = 0
    """The watermark of the next batch that is planned."""
    emitted: list[Row] = field(default_factory=list)
    """The rows of the batch that was computed last."""
    _seen: dict[int, int] = field(default_factory=dict)
    """The last position of each source partition that this run has read."""
    _executed: int | None = None
    """The watermark of this run's last batch, None before the first."""
    _drained: int = 0

    def begin(self, batch_id: int) -> None:
        """Take the watermark of the first batch from the logs: of one that is planned already from
        its own entry, else from the commit of the batch before."""
        planned = self.checkpoint.entry("offsets", batch_id)
        done = self.checkpoint.entry("commits", batch_id - 1)
        if planned is not None:
            self.watermark = int(logged_metadata(planned)["batchWatermarkMs"])
        elif done is not None:
            self.watermark = int(logged_metadata(done)["nextBatchWatermarkMs"])

    @property
    def wants_another_batch(self) -> bool:
        """True if Spark plans a batch without data: never as the first one of a run."""
        if self._executed is None:
            return False
        return self.kind == TIMERS or self.watermark > self._executed

    def may_drain(self, batch_id: int) -> bool:
        """True if a batch without data follows at the end of the input."""
        if self.kind == WINDOWS:
            return self.wants_another_batch
        self._drained += 1
        is_short = self._drained <= DRAINING_BATCHES_MAX
        return is_short and self.wants_another_batch and bool(self._load(batch_id))

    def compute(self, batch_id: int, read: Iterable[Row]) -> list[Row]:
        """Return what the batch emits, in the order of the rows; write the next version.

        Raises StateMissing. Each driver that computes the batch gives the same rows.
        """
        # A driver has planned it in memory, and another one may have purged the file since.
        metadata = logged_metadata(self.checkpoint.recalled("offsets", batch_id) or "")
        watermark, now_ms = int(metadata["batchWatermarkMs"]), int(metadata["batchTimestampMs"])
        held = self._load(batch_id)
        for row in read:
            held[row] = now_ms
            self._seen[row[0]] = max(row[1], self._seen.get(row[0], 0))
        self.emitted = sorted(self._due(held, watermark, now_ms))
        left = sorted((p, n, ms) for (p, n), ms in held.items() if (p, n) not in {*self.emitted})
        self.checkpoint.replace(STATE, batch_id + 1, json.dumps(left).encode())
        self._executed = watermark
        return self.emitted

    def committed(self) -> bytes:
        """Return what Spark logs for the batch that was computed last; the watermark moves on."""
        slowest = min(self._seen.get(p, 0) for p in range(self.partitions))
        self.watermark = max(self.watermark, slowest)
        return b'v1\n{"nextBatchWatermarkMs":%d}' % self.watermark

    def _load(self, version: int) -> Held:
        data = self.checkpoint.entry(STATE, version)
        if version == 0:
            return {}
        if data is None:
            raise StateMissing(f"{STATE}/{version} of {self.checkpoint.location} does not exist")
        return held_in(data)

    def _due(self, held: Mapping[Row, int], watermark: int, now_ms: int) -> Iterable[Row]:
        if self.kind == WINDOWS:
            return [row for row in held if row[1] < watermark]
        # A partition's rows leave in their order: the order of a key's rows is checked.
        due, blocked = [], set()
        for row in sorted(held):
            if row[0] in blocked or now_ms < held[row] + TIMEOUT_MS:
                blocked.add(row[0])
            else:
                due.append(row)
        return due
