"""Checks of exactly-once between an input and an output topic, as pure functions over columns.

The model. A job reads the input topic under read_committed, makes one output record of each input
record, keeps the key and the source coordinates (partition and offset), and commits the consumer
group's offsets with its output, one Kafka transaction a micro-batch. The checks know the whole log
of the output topic, as read_uncommitted delivers it, with each record's producer and the decision
of its transaction, taken from the markers. They also know which records a read_committed consumer
received. The two are independent witnesses: the first is computed here, the second by the broker.

Anomalies carry Jepsen's names (`jepsen.tests.kafka`) where it has one:

    duplicate           an input record is in the committed output more than once
    lost-write          an input record is missing, but a later record of its partition is there
    unseen              an input record is missing, and so are all later records
    G1a                 read_committed delivered a record of an aborted transaction
    precommitted-read   read_committed delivered a record of an undecided transaction
    poll-skip           read_committed did not deliver a committed record
    nonmonotonic-send   the output of one key is not in the order of its input
    inconsistent-offsets    the group's committed offsets are not the end of the input

and these anomalies, which Jepsen's model does not name:

    torn-transaction    one transaction committed in one partition and aborted in another
    hanging-transaction records of a transaction with no marker, after everything has ended
    phantom             an output record whose source coordinates are not in the input
    wrong-key           an output record whose key is not its source record's key
    foreign             an output record without source coordinates: another program wrote it

Normal and never reported: gaps in offsets (markers take offsets, aborted records too), and aborted
attempts that only read_uncommitted shows.

The functions read no clock, socket or file. Columns of one set have one length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ABORTED = 0
COMMITTED = 1
UNDECIDED = 2
NOT_TRANSACTIONAL = 3

EXAMPLES_MAX = 5

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class InputRecords:
    """Input as read_committed delivers it. `keys` is a binary Arrow array, null for no key."""

    partitions: Int64s
    offsets: Int64s
    keys: pa.Array


@dataclass(frozen=True, slots=True)
class OutputRecords:
    """Output as read_uncommitted delivers it, one row a data record.

    `decisions` holds ABORTED, COMMITTED, UNDECIDED or NOT_TRANSACTIONAL, from the markers.
    `delivered` is true if a read_committed consumer received the record.
    """

    partitions: Int64s
    offsets: Int64s
    keys: pa.Array
    source_partitions: Int64s
    source_offsets: Int64s
    producer_ids: Int64s
    producer_epochs: Int64s
    decisions: Int64s
    delivered: Bools


@dataclass(frozen=True, slots=True)
class Markers:
    """Control records of the output: one row a COMMIT or ABORT marker.

    `data_epochs` is the epoch of the records that the marker decides, -1 if it decides no record.
    Under transaction version 2 the marker's own epoch is one higher (KIP-890), and so it is when a
    newer producer fenced the transaction.
    """

    partitions: Int64s
    offsets: Int64s
    producer_ids: Int64s
    producer_epochs: Int64s
    data_epochs: Int64s
    committed: Bools


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Kind of anomaly: its name, the number of records or transactions, and the first few."""

    name: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.count} ({'; '.join(self.examples)})"


def check_all(
    source: InputRecords,
    output: OutputRecords,
    markers: Markers,
    *,
    group_offsets: Mapping[int, int],
    input_end_offsets: Mapping[int, int],
) -> list[Anomaly]:
    """Run every check; an empty list is the proof. Offsets map a partition to its next offset."""
    return [
        *check_foreign(output),
        *check_exactly_once(source, output),
        *check_keys(source, output),
        *check_order(output),
        *check_isolation(output),
        *check_atomicity(output, markers),
        *check_group_offsets(group_offsets, input_end_offsets),
    ]


def check_foreign(output: OutputRecords) -> list[Anomaly]:
    """Find `foreign` records: they name no input record, so another program wrote them, or from
    another input.

    The other checks skip these records, so that one fault is reported once.
    """
    foreign = output.delivered & (output.source_offsets < 0)
    if not foreign.any():
        return []
    whole = "this topic was" if foreign.sum() == output.delivered.sum() else "they were"
    at = np.flatnonzero(foreign)[0]
    first = _show_output(int(coordinates(output.partitions[[at]], output.offsets[[at]])[0]))
    examples = (f"{whole} not written by consume_transform_produce.py", f"the first is {first}")
    return [Anomaly("foreign", int(foreign.sum()), examples)]


def check_exactly_once(source: InputRecords, output: OutputRecords) -> list[Anomaly]:
    """Find `duplicate`, `lost-write`, `unseen` and `phantom`: delivered output that differs from
    the input."""
    wanted = coordinates(source.partitions, source.offsets)
    shown = output.delivered & (output.source_offsets >= 0)
    made = coordinates(output.source_partitions[shown], output.source_offsets[shown])
    values, counts = np.unique(made, return_counts=True)
    missing = np.setdiff1d(wanted, values)
    lost = missing[missing < _last_made(np.intersect1d(values, wanted), missing)]
    return [
        *_anomaly("duplicate", values[counts > 1], _show_source),
        *_anomaly("lost-write", lost, _show_source),
        *_anomaly("unseen", np.setdiff1d(missing, lost), _show_source),
        *_anomaly("phantom", np.setdiff1d(values, wanted), _show_source),
    ]


def check_keys(source: InputRecords, output: OutputRecords) -> list[Anomaly]:
    """Find `wrong-key`: a delivered record must have the key of the input record that it came
    from."""
    wanted = coordinates(source.partitions, source.offsets)
    rows = np.flatnonzero(output.delivered)
    made = coordinates(output.source_partitions[rows], output.source_offsets[rows])
    if not len(wanted) or not len(made):
        return []
    by_coordinate = np.argsort(wanted, kind="stable")
    at = np.searchsorted(wanted, made, sorter=by_coordinate).clip(max=len(wanted) - 1)
    found = wanted[by_coordinate[at]] == made
    given, expected = encode_keys(output.keys, source.keys)
    wrong = found & (given[rows] != expected[by_coordinate[at]])
    return _anomaly("wrong-key", made[wrong], _show_source)


def check_order(output: OutputRecords) -> list[Anomaly]:
    """Find `nonmonotonic-send`: per key, in output order, the source offsets must rise.

    A key lives in one partition of the input and of the output, as the default partitioner places
    it; records without a key have no order. A key found in two output partitions is reported too.
    """
    keys, _ = encode_keys(output.keys, output.keys)
    rows = np.flatnonzero(output.delivered & (keys >= 0) & (output.source_offsets >= 0))
    keys, partitions, offsets = keys[rows], output.partitions[rows], output.offsets[rows]
    sources = coordinates(output.source_partitions[rows], output.source_offsets[rows])
    order = np.lexsort((offsets, partitions, keys))
    same_key = keys[order][1:] == keys[order][:-1]
    back = same_key & (sources[order][1:] < sources[order][:-1])
    moved = same_key & (partitions[order][1:] != partitions[order][:-1])
    at = order[1:][back | moved]
    return _anomaly("nonmonotonic-send", coordinates(partitions[at], offsets[at]), _show_output)


def check_isolation(output: OutputRecords) -> list[Anomaly]:
    """Find `G1a`, `precommitted-read`, `poll-skip`: delivered records that differ from the markers'
    decisions."""
    places = coordinates(output.partitions, output.offsets)
    given, decisions = output.delivered, output.decisions
    visible = (decisions == COMMITTED) | (decisions == NOT_TRANSACTIONAL)
    return [
        *_anomaly("G1a", places[given & (decisions == ABORTED)], _show_output),
        *_anomaly("precommitted-read", places[given & (decisions == UNDECIDED)], _show_output),
        *_anomaly("poll-skip", places[visible & ~given], _show_output),
    ]


def check_atomicity(output: OutputRecords, markers: Markers) -> list[Anomaly]:
    """Find `torn-transaction` and `hanging-transaction`.

    Under transaction version 2 an epoch is one transaction, so markers of both kinds for one
    (producer id, data epoch) are a torn transaction. Under version 1 an epoch has many
    transactions. This connector ends an epoch with its first abort, and a later micro-batch has
    later source offsets. So if an aborted record lies before a committed record of the same epoch
    and the same source partition, its transaction was committed elsewhere.
    """
    return [
        *_anomaly("torn-transaction", _torn_producers(output, markers), _show_producer),
        *_anomaly("hanging-transaction", _undecided_producers(output), _show_producer),
    ]


def check_group_offsets(
    group_offsets: Mapping[int, int], input_end_offsets: Mapping[int, int]
) -> list[Anomaly]:
    """Find `inconsistent-offsets`: the group's stable offsets must be the end of each input
    partition.

    An empty partition needs no commit.
    """
    wrong = [
        f"partition {partition}: committed {group_offsets.get(partition)}, end {end}"
        for partition, end in sorted(input_end_offsets.items())
        if group_offsets.get(partition, 0) != end
    ]
    wrong += [
        f"partition {partition} is not in the input"
        for partition in sorted(set(group_offsets) - set(input_end_offsets))
    ]
    if not wrong:
        return []
    return [Anomaly("inconsistent-offsets", len(wrong), tuple(wrong[:EXAMPLES_MAX]))]


@dataclass(frozen=True, slots=True)
class TransactionCounts:
    """Numbers of transactions that touched the output, from its markers.

    `fenced` counts the `aborted` transactions that a newer producer of the same transactional id
    ended. `aborted_records` are in the log, and only read_uncommitted shows them.
    """

    committed: int
    aborted: int
    fenced: int
    undecided: int
    aborted_records: int
    markers: int


def count_transactions(output: OutputRecords, markers: Markers) -> TransactionCounts:
    """Count transactions by their end. A transaction has one marker in each partition that it
    touched.

    Markers are joined to transactions by (producer id, epoch) and, if an epoch has several in one
    partition (transaction version 1), by their number in that partition.
    """
    committed = _instances(markers, markers.committed)
    aborted = _instances(markers, ~markers.committed)
    return TransactionCounts(
        committed=committed,
        aborted=aborted,
        fenced=_count_fenced(output, markers),
        undecided=len(_undecided_producers(output)),
        aborted_records=int((output.decisions == ABORTED).sum()),
        markers=len(markers.offsets),
    )


def decide(
    offsets: Int64s,
    producer_ids: Int64s,
    transactional: Bools,
    marker_offsets: Int64s,
    marker_producer_ids: Int64s,
    marker_committed: Bools,
) -> tuple[Int64s, Int64s]:
    """Return the decisions of one partition, and per row the index of the deciding marker, or -1.

    A record's transaction ends at the first marker of its producer id after it. Rows are batches or
    records; both sets are in offset order. Two transactions of one producer id never overlap in a
    partition, so the epoch is not needed.
    """
    decisions = np.where(transactional, UNDECIDED, NOT_TRANSACTIONAL).astype(np.int64)
    index = np.full(len(offsets), -1, dtype=np.int64)
    for producer_id in np.unique(producer_ids[transactional]):
        rows = np.flatnonzero(transactional & (producer_ids == producer_id))
        ends = np.flatnonzero(marker_producer_ids == producer_id)
        at = np.searchsorted(marker_offsets[ends], offsets[rows])
        decided = at < len(ends)
        chosen = ends[at[decided]]
        decisions[rows[decided]] = np.where(marker_committed[chosen], COMMITTED, ABORTED)
        index[rows[decided]] = chosen
    return decisions, index


def coordinates(partitions: Int64s, offsets: Int64s) -> Int64s:
    """Return (partition, offset) as one sortable number: 16 bits of partition, 47 of offset."""
    return (partitions.astype(np.int64) << 47) | offsets


def encode_keys(left: pa.Array, right: pa.Array) -> tuple[Int64s, Int64s]:
    """Return both key columns as numbers of one dictionary; -1 for a null key."""
    both = pa.chunked_array([left, right], type=left.type).combine_chunks()
    codes = pc.fill_null(both.dictionary_encode().indices, -1)
    numbers = codes.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers[: len(left)], numbers[len(left) :]


def _last_made(made: Int64s, missing: Int64s) -> Int64s:
    """Return, for each missing coordinate, the last delivered coordinate of its partition, -1
    without one."""
    if not len(made):
        return np.full(len(missing), -1, dtype=np.int64)
    partition_end = ((missing >> 47) + 1) << 47
    last = made[np.maximum(np.searchsorted(made, partition_end) - 1, 0)]
    return np.where((last >> 47) == (missing >> 47), last, -1)


def _producer_keys(producer_ids: Int64s, epochs: Int64s) -> Int64s:
    return (producer_ids << 16) | (epochs & 0xFFFF)


def _torn_producers(output: OutputRecords, markers: Markers) -> Int64s:
    deciding = markers.data_epochs >= 0
    keys = _producer_keys(markers.producer_ids, markers.data_epochs)
    both = np.intersect1d(keys[deciding & markers.committed], keys[deciding & ~markers.committed])
    # Version 2: the marker's epoch is the data's plus one, and an epoch is one transaction.
    bumped = markers.producer_epochs != markers.data_epochs
    per_epoch = np.setdiff1d(both, keys[deciding & markers.committed & ~bumped])
    return np.union1d(per_epoch, _interleaved_producers(output, both))


def _interleaved_producers(output: OutputRecords, suspects: Int64s) -> Int64s:
    keys = _producer_keys(output.producer_ids, output.producer_epochs)
    torn = []
    for key in suspects:
        mine = keys == key
        for source in np.unique(output.source_partitions[mine]):
            rows = mine & (output.source_partitions == source)
            kept = output.source_offsets[rows & (output.decisions == COMMITTED)]
            dropped = output.source_offsets[rows & (output.decisions == ABORTED)]
            if len(kept) and len(dropped) and dropped.min() < kept.max():
                torn.append(key)
                break
    return np.array(torn, dtype=np.int64)


def _undecided_producers(output: OutputRecords) -> Int64s:
    open_rows = output.decisions == UNDECIDED
    return np.unique(
        _producer_keys(output.producer_ids[open_rows], output.producer_epochs[open_rows])
    )


def _instances(markers: Markers, chosen: Bools) -> int:
    """Count transactions among the chosen markers: the most markers of one producer epoch in one
    partition, summed over the producer epochs."""
    if not chosen.any():
        return 0
    producers = _producer_keys(markers.producer_ids[chosen], markers.producer_epochs[chosen])
    pairs = np.stack([producers, markers.partitions[chosen]])
    groups, counts = np.unique(pairs, axis=1, return_counts=True)
    most: dict[int, int] = {}
    for producer, count in zip(groups[0].tolist(), counts.tolist(), strict=True):
        most[producer] = max(most.get(producer, 0), count)
    return sum(most.values())


def _count_fenced(output: OutputRecords, markers: Markers) -> int:
    """Count aborted transactions that a newer producer took over.

    A newer producer's first epoch is above the abort marker's own when the id was fenced (the fence
    bumps once for the marker, InitProducerId once more). A producer that aborts by itself and goes
    on uses the marker's epoch (version 2) or stays in its own (version 1).
    """
    aborts = np.unique(
        _producer_keys(markers.producer_ids, markers.producer_epochs)[~markers.committed]
    )
    fenced = 0
    for key in aborts.tolist():
        producer_id, epoch = key >> 16, key & 0xFFFF
        later = output.producer_epochs[output.producer_ids == producer_id]
        later = later[later >= epoch]
        fenced += bool(len(later)) and int(later.min()) > epoch
    return fenced


def _anomaly(name: str, places: Int64s, show: Callable[[int], str]) -> list[Anomaly]:
    if not len(places):
        return []
    return [Anomaly(name, len(places), tuple(show(int(p)) for p in places[:EXAMPLES_MAX]))]


def _show_source(place: int) -> str:
    return f"input partition {place >> 47} offset {place & (1 << 47) - 1}"


def _show_output(place: int) -> str:
    return f"output partition {place >> 47} offset {place & (1 << 47) - 1}"


def _show_producer(key: int) -> str:
    return f"producer id {key >> 16} epoch {key & 0xFFFF}"
