"""Command `timeline DIR`: draw one transaction from the log files of a broker or a cluster.

`DIR` is a data directory, of ours or of one broker of Apache Kafka, or a folder that the
simulator's `--save-logs` has written. For the folder of a cluster, each broker has its lanes, and
after a failover the next coordinator or leader has its own. The command reads files and asks no
broker. Without --transactional-id it lists the transactions.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from broker_sim.cli.printing import EXIT_OK, EXIT_REFUSED, Output, Table, write_error
from broker_sim.cli.timeline_cluster import Leaders
from broker_sim.cli.timeline_logs import (
    Marker,
    StateRecord,
    TransactionHistory,
    Written,
    find_stories,
    find_written,
)
from broker_sim.cli.timeline_svg import Event, Picture, draw
from broker_sim.core.transaction.states import COMPLETED, PREPARED, TransactionState
from txnlog_kafka.host.sign_of_life import SignOfLife
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC, TopicPartition

PRODUCER, COORDINATOR = "producer", "coordinator"
_COMMITS = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options of timeline."""
    help_text = "draw the life of a transaction as SVG, from log files"
    parser = commands.add_parser("timeline", help=help_text, description=help_text)
    parser.add_argument("directory", type=Path, metavar="DIR", help="data directory of a broker")
    parser.add_argument("--transactional-id", metavar="ID", help="without it: list all ids")
    parser.add_argument(
        "--transaction", type=int, default=-1, metavar="N",
        help="number of the transaction, 0 for the oldest in the log (default: the last)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE", default=Path("timeline.svg"))
    parser.add_argument("--json", action="store_true", help="list as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Draw or list; return 1 if there is no such transaction."""
    try:
        if not arguments.directory.is_dir():
            raise NotADirectoryError(20, "it is not a directory")
        with SignOfLife("timeline: reading the logs of transactions"):
            stories = find_stories(arguments.directory)
        name = arguments.transactional_id
        if name is None:
            return _listed(stories).write(as_json=arguments.json)
        found = stories.get(name, [])
        if not -len(found) <= arguments.transaction < len(found):
            write_error(
                f"{arguments.directory} has {len(found)} transactions of transactional id {name!r}"
            )
            return EXIT_REFUSED
        number = arguments.transaction % len(found)
        history = found[number]
        written = find_written(history, arguments.directory)
        # A broker's directory has no history beside it, and its own name says nothing of it.
        leaders = Leaders(history.records[0].folder.parent.parent)
        picture = picture_of(history, written, leaders, number)
        arguments.output.write_text(draw(picture), encoding="utf-8")
    except OSError as error:
        write_error(f"{error.filename or arguments.directory}: {error.strerror}")
        return EXIT_REFUSED
    return EXIT_OK


def _listed(stories: Mapping[str, list[TransactionHistory]]) -> Output:
    rows = [
        (name, number, history.records[-1].state.label, _date(history.records[-1]),
         len(history.partitions))
        for name, found in stories.items()
        for number, history in enumerate(found)
    ]  # fmt: skip
    headings = ("TRANSACTIONAL-ID", "TRANSACTION", "STATE", "LAST-UPDATE", "PARTITIONS")
    return Output([Table("transactions", headings, rows)])


def _date(record: StateRecord) -> str:
    when = datetime.fromtimestamp(record.metadata.last_update_ms / 1000, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{record.metadata.last_update_ms % 1000:03d}Z"


def picture_of(
    history: TransactionHistory,
    written: Mapping[TopicPartition, Written],
    leaders: Leaders,
    number: int,
) -> Picture:
    """Return the transaction's picture: producer, coordinator, partitions, groups, markers."""
    # The title: the last state says how the transaction ended.
    last = history.records[-1]
    metadata = last.metadata
    begun = history.first(TransactionState.ONGOING) or history.records[0]
    picture = Picture(
        f"Transaction {number} of {metadata.transactional_id}: {last.state.label}",
        f"{_date(begun)} to {_date(last)}, producer id {metadata.producer_id}, "
        f"epoch {begun.metadata.producer_epoch}, "
        f"{len(history.partitions)} partitions, coordinator {last.folder.name}",
    )
    # The lanes, in their order: producer, coordinators, partitions of topics, then of groups.
    drawn = _Drawn(picture, leaders, last.folder.name)
    topics = [p for p in written if p.topic != GROUP_METADATA_TOPIC]
    groups = [p for p in written if p.topic == GROUP_METADATA_TOPIC]
    coordinators = [drawn.coordinator(record.leader_epoch) for record in history.records]
    coordinators += [drawn.coordinator(m.coordinator_epoch) for m in _markers(written).values()]
    lanes = [PRODUCER, *coordinators]
    for partition in (*topics, *groups):
        lanes += drawn.data_lanes(partition, written[partition])
        lanes += drawn.marker_lanes(partition, written[partition])
    picture.lanes = list(dict.fromkeys(lanes))
    # The columns, in the order of time: begin, data, offsets, decision, markers, complete.
    _draw_begin(drawn, history)
    begin_column = len(picture.columns) - 1
    _draw_data(drawn, {p: written[p] for p in topics})
    _draw_offsets(drawn, {p: written[p] for p in groups})
    decided = history.first(*PREPARED)
    if decided is not None:
        _draw_decision(drawn, decided)
        _draw_markers(drawn, written)
    end_column = len(picture.columns) - (0 if decided is None else 1)
    completed = history.first(*COMPLETED)
    if completed is not None:
        picture.columns.append(("complete", completed.metadata.last_update_ms))
        _coordinator_event(drawn, "complete", completed)
    # The spans in which a partition holds readers back: from its first batch to its marker.
    for partition in topics:
        if written[partition].batches:
            (lane,) = drawn.data_lanes(partition, written[partition])
            picture.open_spans.append((lane, begin_column + 1, end_column))
    return picture


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Picture that is being made, and the names of its lanes."""

    picture: Picture
    leaders: Leaders
    state_folder: str
    """Folder of the coordinator's partition."""

    def coordinator(self, leader_epoch: int) -> str:
        """Return the lane of the coordinator in this leader epoch of its partition."""
        return self.leaders.lane(COORDINATOR, self.state_folder, leader_epoch)

    def data_lanes(self, partition: TopicPartition, left: Written) -> list[str]:
        """Return the partition's lane; for a partition of groups, the lanes of groups with offsets
        in it."""
        if not left.batches:
            return []
        return self._lanes(partition, left, left.batches[-1].leader_epoch)

    def marker_lanes(self, partition: TopicPartition, left: Written) -> list[str]:
        """Return the lanes of the marker; the partition itself if there are neither records nor a
        marker."""
        if left.marker is None:
            return [] if left.batches else [str(partition)]
        return self._lanes(partition, left, left.marker.leader_epoch)

    def _lanes(self, partition: TopicPartition, left: Written, leader_epoch: int) -> list[str]:
        folder = f"{partition.topic}-{partition.partition}"
        names = [str(partition)]
        if partition.topic == GROUP_METADATA_TOPIC and left.offsets:
            names = [f"group {group}" for group in dict.fromkeys(g for g, *_ in left.offsets)]
        return [self.leaders.lane(name, folder, leader_epoch) for name in names]


def _markers(written: Mapping[TopicPartition, Written]) -> dict[TopicPartition, Marker]:
    return {p: left.marker for p, left in written.items() if left.marker is not None}


def _draw_begin(drawn: _Drawn, history: TransactionHistory) -> None:
    picture = drawn.picture
    empty = history.first(TransactionState.EMPTY)
    if empty is not None:
        picture.columns.append(("initialise", empty.metadata.last_update_ms))
        _producer_event(picture, "InitProducerId")
        _coordinator_event(drawn, "init", empty, caused_by=PRODUCER)
    ongoing = [r for r in history.records if r.state is TransactionState.ONGOING]
    if ongoing:
        picture.columns.append(("begin", ongoing[0].metadata.start_ms))
        _producer_event(picture, "adds partitions")
        _coordinator_event(
            drawn, "begin", ongoing[0], caused_by=PRODUCER,
            more=f"{len(ongoing[-1].metadata.partitions)} partitions in {len(ongoing)} records",
        )  # fmt: skip


def _draw_data(drawn: _Drawn, written: Mapping[TopicPartition, Written]) -> None:
    picture = drawn.picture
    with_data = {p: left for p, left in written.items() if left.batches}
    if not with_data:
        return
    picture.columns.append(("produce", None))
    _producer_event(picture, "Produce")
    for partition, left in with_data.items():
        first, last = left.batches[0].base_offset, left.batches[-1].last_offset
        records = sum(header.record_count for header in left.batches)
        size = sum(header.size_bytes for header in left.batches)
        lines = (
            f"offsets {first} to {last}",
            f"{records} records, {size} bytes",
            f"record batches: {len(left.batches)}",
        )
        (lane,) = drawn.data_lanes(partition, left)
        _add_event(picture, "data", lane, lines, caused_by=PRODUCER)


def _draw_offsets(drawn: _Drawn, written: Mapping[TopicPartition, Written]) -> None:
    if not any(left.offsets for left in written.values()):
        return
    picture = drawn.picture
    picture.columns.append(("commit offsets", None))
    _producer_event(picture, "TxnOffsetCommit")
    for partition, left in written.items():
        groups = list(dict.fromkeys(group for group, *_ in left.offsets))
        for group, lane in zip(groups, drawn.data_lanes(partition, left), strict=False):
            texts = [f"{topic}-{number}: {offset}"
                     for name, topic, number, offset in left.offsets if name == group]  # fmt: skip
            more = [f"and {len(texts) - 2} more"] if len(texts) > 2 else []
            tooltip = f"in {partition}: {', '.join(texts)}"
            _add_event(
                picture, "offsets", lane, [*texts[:2], *more], tooltip=tooltip, caused_by=PRODUCER
            )


def _draw_decision(drawn: _Drawn, decided: StateRecord) -> None:
    drawn.picture.columns.append(("decision", decided.metadata.last_update_ms))
    is_commit = decided.state in _COMMITS
    by_producer = "EndTxn(commit)" if is_commit else "EndTxn(abort), fenced or timed out"
    _producer_event(drawn.picture, by_producer)
    _coordinator_event(drawn, "decision", decided, caused_by=PRODUCER)


def _draw_markers(drawn: _Drawn, written: Mapping[TopicPartition, Written]) -> None:
    picture, markers = drawn.picture, _markers(written)
    picture.columns.append(("markers", min((m.timestamp for m in markers.values()), default=None)))
    senders = [drawn.coordinator(marker.coordinator_epoch) for marker in markers.values()]
    for sender in dict.fromkeys(senders):
        _add_event(picture, "request", sender, ("WriteTxnMarkers",))
    for (partition, marker), sender in zip(markers.items(), senders, strict=True):
        for lane in drawn.marker_lanes(partition, written[partition]):
            lines = (f"{marker.kind} at offset {marker.offset}", f"epoch {marker.producer_epoch}")
            tooltip = f"{partition}: {', '.join(lines)}"
            outcome = marker.kind.lower()
            _add_event(
                picture, "marker", lane, lines, tooltip=tooltip, outcome=outcome, caused_by=sender
            )


def _producer_event(picture: Picture, text: str) -> None:
    _add_event(picture, "request", PRODUCER, (text,))


def _coordinator_event(
    drawn: _Drawn, kind: str, record: StateRecord, caused_by: str = "", more: str = ""
) -> None:
    at = f"offset {record.offset}, epoch {record.metadata.producer_epoch}"
    lines = [record.state.label, at, *([more] if more else [])]
    outcome = ""
    if record.state in PREPARED | COMPLETED:
        outcome = "commit" if record.state in _COMMITS else "abort"
    tooltip = f"{record.folder.name}: {', '.join(lines)}"
    lane = drawn.coordinator(record.leader_epoch)
    _add_event(
        drawn.picture, kind, lane, lines, tooltip=tooltip, outcome=outcome, caused_by=caused_by
    )


def _add_event(
    picture: Picture,
    kind: str,
    lane: str,
    lines: tuple[str, ...] | list[str],
    *,
    tooltip: str = "",
    outcome: str = "",
    caused_by: str = "",
) -> None:
    """Add an event in the last column."""
    column = len(picture.columns) - 1
    picture.events.append(Event(kind, lane, column, lines, tooltip, outcome, caused_by))
