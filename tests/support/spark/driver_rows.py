"""The driver rows of the fault matrix as data: where it dies, and what becomes of the batch.

One query lives through all of them. Run k finishes what run k-1 left behind and dies in its turn at
row k, so that a row costs one start of Spark. What a batch's records look like in the output
under read_uncommitted tells afterwards what each recovery did: a record has one copy from each
attempt that produced it, so a committed batch that was produced again would show one too many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from support.spark.audit import check_audit
from support.spark.spark_copy import CopyQuery, Run

KILL = "kill-driver"
ON_SEND = "kill-driver-on-send"


@dataclass(frozen=True)
class Row:
    """Kill of a driver. `copies_min`, `copies_max`: copies that its attempt adds under
    read_uncommitted.

    `committed` says whether the attempt must have committed the batch; None allows both.
    """

    name: str
    failpoint: str
    copies_min: int = 0
    copies_max: int = 0
    committed: bool | None = False
    pending: bool = False
    """Aim at the batch that the run before left unfinished, not at the next one."""


def _row(name: str, place: str, action: str = KILL, **expected) -> Row:
    return Row(name, f"{place}:{action}", **expected)


PARTIAL = {"copies_min": 0, "copies_max": 1}
WHOLE = {"copies_min": 1, "copies_max": 1}
COMMITTED = {"copies_min": 1, "copies_max": 1, "committed": True}
EITHER = {"copies_min": 1, "copies_max": 1, "committed": None}

DRIVER_ROWS = (
    _row("D4 after InitProducerId of the first batch", "init_producer_id:after"),
    _row("D1 before the offsets are logged", "offset_log:before"),
    _row("D2 after the offsets are logged", "offset_log:after"),
    _row("D3 after FindCoordinator", "look_up:after"),
    _row("D3 InitProducerId sent", "init_producer_id:before", ON_SEND, pending=True),
    _row("D5 while progress is read", "judge:before", ON_SEND, pending=True),
    _row("D7 nothing produced yet", "add_partitions:after"),
    _row("D6 the partitions being added", "produce:before", ON_SEND, **PARTIAL),
    _row("D8.first after the first Produce", "produce.first:after", **PARTIAL),
    _row("D8.middle in the middle of the Produces", "produce.middle:after", **PARTIAL),
    _row("D8.last after the last Produce", "produce.last:after", **WHOLE),
    _row("D10 all commit messages at the driver", "collect:after"),
    _row("D11 the group added", "add_offsets:after"),
    _row("D12 the offsets committed", "txn_offset_commit:after", **PARTIAL),
    _row("D13 before EndTxn", "end_txn:before", **WHOLE),
    _row(
        "D21 in the recovery: InitProducerId sent", "init_producer_id:before", ON_SEND, pending=True
    ),
    _row("D21 in the recovery: progress read", "judge:after", pending=True),
    _row("D14 EndTxn sent", "end_txn:before", ON_SEND, **EITHER),
    _row("D15 EndTxn answered", "end_txn:after", **COMMITTED),
    _row("D18 before Spark's commit log", "commit_log:before", **COMMITTED),
    _row("D21 in the recovery: before Spark's commit log", "commit_log:before", pending=True),
    _row("D20 before the source's commit", "source_commit:before", pending=True),
)
"""D9, D16, D17, D19, D22 and D23 need more than a kill: they have tests of their own."""

OFTEN = {
    f"init_producer_id:after:{KILL}",
    f"offset_log:after:{KILL}",
    f"produce.middle:after:{KILL}",
    f"end_txn:before:{ON_SEND}",
    f"end_txn:after:{KILL}",
    f"commit_log:before:{KILL}",
}
OFTEN_ROWS = tuple(row for row in DRIVER_ROWS if row.failpoint in OFTEN and not row.pending)
"""The six of `make test`, one for each way that a restart finds a batch: fenced, not begun, partly
produced, being decided, decided, and committed but not noted. They are played on Apache Kafka, in
one life of a query. The simulator plays all rows from seeds, `make chaos` as processes, on both."""


def aimed_at(failpoint: str, batch_id: int) -> str:
    """The failpoint for one batch, where a batch can be named."""
    names_batch = not failpoint.startswith(("offset_log", "source_commit"))
    return f"{failpoint}@{batch_id}" if names_batch else failpoint


@dataclass
class Story:
    query: CopyQuery
    runs: list[tuple[Row, int, Run]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def play(self, rows: tuple[Row, ...]) -> None:
        """Run until each row has killed once; then to the end of the input."""
        self.query.feed(self.query.batch_size)
        for row in rows:
            self._play(row)
        last = self.query.run()
        if last.code != 0:
            self.failures["the last run"] = last.stderr[-2000:]

    def _play(self, row: Row) -> None:
        query = self.query
        target = query.next_batch()
        if row.pending and set(query.logged("offsets")) != set(query.logged("commits")):
            target -= 1
        failpoint = aimed_at(row.failpoint, target)
        # One more batch than the row needs, and one to finish.
        query.feed(2 * query.batch_size)
        run = query.run(failpoint)
        self.runs.append((row, target, run))
        if run.fired != (failpoint,) or run.code == 0:
            self.failures[row.name] = (
                f"exit code {run.code}, fired {run.fired}: {run.stderr[-2000:]}"
            )

    def check_copies(self) -> None:
        """Fail unless every batch has the copies that its attempts, and no others, account for."""
        counts = self.query.output("read_uncommitted")
        for batch_id in self.query.logged("offsets"):
            low, high = self._expected_copies(batch_id)
            found = {counts[place] for place in self.query.records_of_batch(batch_id)}
            told = [row.name for row, target, _ in self.runs if target == batch_id]
            assert found <= set(range(low, high + 1)), (
                f"batch {batch_id} has {found} copies, expected {low} to {high}, after {told}"
            )

    def _expected_copies(self, batch_id: int) -> tuple[int, int]:
        low = high = 0
        committed: bool | None = False
        for row, target, _ in self.runs:
            if target == batch_id:
                low, high = low + row.copies_min, high + row.copies_max
                committed = row.committed if committed is False else committed
        if committed is False:
            return low + 1, high + 1
        return (low, high) if committed else (low, high + 1)


def play(query: CopyQuery, rows: tuple[Row, ...]) -> None:
    """Play these rows in one life of the query, then prove the output."""
    story = Story(query)
    story.play(rows)
    assert story.failures == {}, story.failures
    assert query.logged("offsets") == query.logged("commits")
    query.check_exactly_once()
    story.check_copies()
    check_audit(query)
