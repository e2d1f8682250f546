"""Invariants of every run, checked on the clients' observations and on the content of the disk.

Numbers are those of `docs/internals/invariants.md`; the invariants of the log itself are checked by
`log_oracle` while it is written. A check raises `Violation`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.checkers.held_rows import check_held
from simulation.hosts.checkpoint import Checkpoint
from simulation.hosts.deployment import Deployment
from simulation.hosts.query_rows import DriverHistory, Source
from simulation.hosts.spark_tasks import Row
from simulation.violation import (
    DUPLICATE,
    GARBAGE_READ,
    LOST_WRITE,
    NONMONOTONIC_SEND,
    violated,
)
from txnlog_kafka.wire.records import Record
from txnlog_kafka.wire.topic_partition import TopicPartition

INVARIANTS = {
    1: "one offset holds one value, for every reader at every time",
    2: "offsets of a log are contiguous, and a consumer is given each of them",
    3: "what was acknowledged by all replicas is there",
    4: "a topic has nothing but what was sent to it, since it was created",
    5: "a consumer's position is never refused: no log end goes back",
    6: "one offset and leader epoch hold one batch, on every replica",
    7: "every replica in the ISR has what is committed",
    8: "what was committed once is on every leader, and at the end on every replica",
    9: "metadata has one history, in which every epoch rises and leaders are of the ISR",
    10: "no broker truncates committed records",
    11: "acks=all is answered only when min.insync.replicas were in sync",
    12: "the log holds whole, valid batches, and consumers get the bytes that were sent",
    13: "sequences of a producer follow each other",
    14: "what a producer sends again is there once, and is answered with the first offset",
    15: "after a newer epoch nothing of an older one is appended, or done for its producer",
    16: "no (producer id, epoch) is handed to two processes, and epochs of an id rise",
    17: "coordinator epochs of a producer's markers never go back",
    18: "a client sends one batch with a producer id, epoch and sequence",
    19: "every marker carries the one decision in the transaction log",
    20: "of a transaction all is committed, or nothing",
    21: "read_committed never returns what is not committed",
    22: "what was answered as committed is committed, once; what has failed, never",
    23: "no batch joins a transaction it does not belong to",
    24: "a partition has data of a transaction only after the coordinator has recorded it",
    25: "COMPLETE only after the last marker",
    26: "the last stable offset is the first of the oldest transaction without a marker",
    27: "a read_committed fetch names the aborted transactions that overlap it, and no others",
    28: "the transaction log follows Kafka's state machine",
    29: "of two transactions of a producer, the first one's records come first",
    31: "stable committed offsets never go back",
    32: "a stable read returns no less than what was committed, or returned, before it was asked",
    33: "what a member of an old generation commits has no effect",
    34: "no group with pending offsets expires; offsets come with what was committed with them",
    35: "every input row is in the committed output exactly once, in order per key",
    36: "source offsets and progress are committed in the transaction of the output",
    37: "progress and the source group's offsets say what the output holds",
    38: "a committed batch that comes again sends no Produce",
    39: "once another has initialised a producer, nothing of the older one becomes visible",
    40: "what a driver reports as done is in the stable progress",
    41: "the query never stops for a contradiction that nothing explains",
    42: "every request is answered; no handler raises, whatever the state",
    43: "once faults end, every transaction is decided and the LSO is the end",
    44: "once faults end: one controller, every partition led, every ISR full, replicas equal",
    45: "once faults end, every group is stable, then empty, and nothing of it is pending",
    46: "once faults end, the query processes all input",
    47: "no connection, request or timer is left over",
    50: "compaction takes a marker only when its delete horizon was set before",
    51: "in a scenario with a file every planned fault fires and every expected outcome happens",
    74: "in a generation of a group each partition has one member",
    75: "records and topics that are there are never taken to be gone",
    78: "a run that has read, or could read, that a newer one has begun a batch fences no driver",
    79: "a copy of a checkpoint leaves the original's transactional id and progress alone",
}


@dataclass(slots=True)
class Observations:
    """Observations of readers and drivers during the run."""

    committed: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    """Value by (output partition, offset), as seen under read_committed."""
    groups: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)

    def on_records(self, partition: TopicPartition, records: list[Record]) -> None:
        """Records seen under read_committed (1)."""
        for record in records:
            place = (partition, record.record_offset)
            value = record.value or b""
            if self.committed.setdefault(place, value) != value:
                violated(1, "an offset changed its value", place=place, value=value,
                         before=self.committed[place])  # fmt: skip

    def on_group(
        self, group_id: str, offsets: dict[tuple[str, int], int], done_when_asked: int
    ) -> None:
        """Stable offsets of a group, and the batch after the last one that was reported as done
        before they were asked for; 0 of a group without progress (31, 40)."""
        check_done(group_id, offsets, done_when_asked)
        for partition, before in self.groups.get(group_id, {}).items():
            now = offsets.get(partition, -1)
            if now < before:
                violated(31, "a stable committed offset went back", group_id=group_id,
                         partition=partition, before=before, now=now)  # fmt: skip
        self.groups[group_id] = offsets


def check_done(group_id: str, progress: Mapping[tuple[str, int], int], done: int) -> None:
    """Check that every batch reported as done is in the stable progress (40)."""
    if max(progress.values(), default=0) < done:
        violated(40, "a batch was reported as done that is not in the progress", group_id=group_id,
                 progress=progress, done=done)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FinalState:
    """Records and offsets that a fresh reader finds at the end of the run."""

    committed: Mapping[TopicPartition, list[Record]]
    uncommitted: Mapping[TopicPartition, list[Record]]
    groups: Mapping[str, Mapping[tuple[str, int], int]]


def check_final(deployment: Deployment, observations: Observations, final: FinalState) -> None:
    """Make all checks of the end of a query."""
    check_observed(observations, final)
    source = deployment.source
    own = _written_by(deployment, final)
    for topics in deployment.lineages:
        if source.settings.state:
            check_held(deployment, check_once(source, own, topics), final.groups)
        else:
            check_exactly_once(source, own, topics, deployment.begins)
    check_order(own)
    check_skipped(deployment.history, own)
    check_taken(deployment.history, own)
    check_groups(deployment, final)
    check_decided_batches(deployment.history)


class _Row(NamedTuple):
    """Content of a row's value: its source coordinates, and the task attempt that wrote it."""

    partition: int
    position: int
    run_id: str
    attempt: int


def _row_of(record: Record) -> _Row:
    try:
        partition, position, run_id, attempt = (record.value or b"").decode().split(":")
        return _Row(int(partition), int(position), run_id, int(attempt))
    except ValueError:
        violated(35, "a row has a value that no driver wrote", value=record.value)


def _written_by(deployment: Deployment, final: FinalState) -> FinalState:
    """Leave out the rows of a query that shares the topic: a copy shares it with the original."""
    of_query = f"{deployment.name}-run-"
    others = () if deployment.sharing is None else (f"{deployment.sharing}-run-",)
    committed: dict[TopicPartition, list[Record]] = {}
    for place, records in final.committed.items():
        own = committed[place] = []
        for record in records:
            run_id = _row_of(record).run_id
            if run_id.startswith(of_query):
                own.append(record)
            elif not run_id.startswith(others):
                violated(35, "a row is of another query", row=record.value, place=place)
    return FinalState(committed, final.uncommitted, final.groups)


def _coordinates(record: Record) -> tuple[int, int]:
    return _row_of(record)[:2]


def check_exactly_once(
    source: Source,
    final: FinalState,
    topics: Collection[str],
    begins: Mapping[TopicPartition, int],
) -> None:
    """Every row once in these topics, in the right partition, from where the query begins (35)."""
    seen = check_once(source, final, topics)
    wanted = {
        (place.partition, n)
        for place, end in source.ends.items()
        for n in range(begins.get(place, 0), end)
    }
    missing, foreign = sorted(wanted - seen), sorted(seen - wanted)
    if missing or foreign:
        violated(35, "rows are missing or foreign", LOST_WRITE if missing else GARBAGE_READ,
                 missing=missing[:10], foreign=foreign[:10],
                 missing_count=len(missing))  # fmt: skip


def check_once(source: Source, final: FinalState, topics: Collection[str]) -> set[Row]:
    """Return the rows in these topics: each is there once, and in the right partition (35)."""
    seen: dict[Row, str] = {}
    for (topic, partition), records in final.committed.items():
        for record in records if topic in topics else ():
            row = _coordinates(record)
            place = f"{topic}-{partition}@{record.record_offset}"
            if row in seen:
                violated(35, "a row is there twice", DUPLICATE, row=row, first=seen[row],
                         second=place)  # fmt: skip
            seen[row] = place
            if source.output_partition(record.key or b"") != partition:
                violated(35, "a row is in the wrong partition", row=row, place=place)
    return {*seen}


def check_skipped(history: DriverHistory, final: FinalState) -> None:
    """Check that the rows skipped for a topic are in that topic (35)."""
    for topic, rows in history.skipped_rows.items():
        places = (records for place, records in final.committed.items() if place[0] == topic)
        missing = rows - {_coordinates(record) for records in places for record in records}
        if missing:
            violated(35, "a batch was skipped that another output has", LOST_WRITE, topic=topic,
                     missing=sorted(missing)[:10])  # fmt: skip


def check_taken(history: DriverHistory, final: FinalState) -> None:
    """Every row is of a task attempt whose commit message Spark took (35)."""
    for partition, records in final.committed.items():
        for record in records:
            row = _row_of(record)
            if (row.run_id, row.attempt) not in history.taken:
                violated(35, "a row is of a task attempt that Spark did not take", row=row,
                         place=partition, at=record.record_offset)  # fmt: skip


def check_order(final: FinalState) -> None:
    """Rows of one key in the order of the source (35)."""
    last: dict[tuple[bytes, str, int], int] = defaultdict(lambda: -1)
    for (topic, _), records in final.committed.items():
        for record in records:
            partition, position = _coordinates(record)
            key = (record.key or b"", topic, partition)
            if position <= last[key]:
                violated(35, "rows of a key changed their order", NONMONOTONIC_SEND, key=key,
                         position=position, after=last[key])  # fmt: skip
            last[key] = position


def check_observed(observations: Observations, final: FinalState) -> None:
    """Check that values once read as committed are still there, and that no others were (1, 21)."""
    at_end = {
        (partition, record.record_offset): record.value
        for partition, records in final.committed.items()
        for record in records
    }
    for place, value in observations.committed.items():
        if at_end.get(place) != value:
            violated(21, "a value read as committed is not committed", place=place, value=value,
                     at_end=at_end.get(place))  # fmt: skip


def check_groups(deployment: Deployment, final: FinalState) -> None:
    """The group is at the input's end, progress at the last batch, in one partition (37)."""
    checkpoint = deployment.finished
    if checkpoint is None:
        violated(46, "the query did not finish")
    last = deployment.last_written(checkpoint)
    offsets = final.groups[str(deployment.options.group_id)]
    for partition, rows in deployment.source.ends.items():
        # A copy of a checkpoint whose batches are all done has none for its own group.
        wanted = None if deployment.original is not None and last < 0 else rows
        if (found := offsets.get(partition)) != wanted:
            violated(37, "the group is not at the input's end", partition=partition, found=found)
    for group_id, done in deployment.done_batches().items():
        check_done(group_id, final.groups[group_id], done)
    for group_id in deployment.progress_groups().values():
        if len(places := final.groups[group_id]) > 1:
            violated(37, "progress lies in several partitions", group_id=group_id, places=places)
    for sink in deployment.sinks:
        progress = list(final.groups[deployment.progress_group_at(checkpoint, sink)].values())
        if last >= 0 and not _is_whole(deployment, checkpoint, progress):
            violated(37, "progress is not that of the last batch", progress=progress,
                     planned=checkpoint.batches("offsets"),
                     noted=checkpoint.batches("commits"))  # fmt: skip


def _is_whole(deployment: Deployment, checkpoint: Checkpoint, progress: list[int]) -> bool:
    """True if the progress is that of the last batch, and both logs have that batch."""
    planned, noted = checkpoint.batches("offsets"), checkpoint.batches("commits")
    last = deployment.last_written(checkpoint)
    if deployment.source.settings.state:
        # A driver that was left behind at the end may plan one more batch without data.
        return len(progress) == 1 and progress[0] > noted[-1] >= planned[-1] - 1
    # An empty batch that was lost with the checkpoint's tail does not come again: nothing is ahead.
    if checkpoint.tail_losses == 0 and progress != [last + 1]:
        return False
    # A driver that was left behind may write again what another one has purged since.
    if not checkpoint.is_whole:
        planned, noted = planned[-1:], noted[-1:]
    return len(progress) == 1 and progress[0] > last and noted == planned


def check_decided_batches(history: DriverHistory) -> None:
    """No batch was committed by two runs (35, from the drivers' side)."""
    by_batch: dict[tuple[str, str], str] = {}
    for query, run_id, plan in history.committed:
        first = by_batch.setdefault((query, plan), run_id)
        if first != run_id:
            violated(35, "two runs committed one batch", DUPLICATE, query=query,
                     plan=plan, second=run_id, first=first)  # fmt: skip
