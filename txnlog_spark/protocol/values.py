"""The plain values of the micro-batch commit: what goes in and what comes out.

Nothing here talks to anyone. A partition is `(topic, partition)`, so that a `NamedTuple` of the
same two fields is one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Partition = tuple[str, int]
"""A topic and a partition number."""

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What the coordinator gave a transactional id, and how far this holder used it.

    `initialised` False says: known from a file, or an outcome since was unknown or aborted, so
    InitProducerId comes first and carries this producer id and epoch (KIP-360: PRODUCER_FENCED if
    another driver took over). `sequences` holds the next base sequence per partition in this epoch;
    it matters on transaction version 1 only, where an epoch outlives a transaction.
    `progress_partition` is where the last commit put the progress, which may be undecided until
    its marker is written. `last_batch_id` is the batch that was committed last under this very
    identity: between it and the next one nobody else can have come without fencing it.
    `transaction_version` is the cluster's as it was found at the takeover, 0 when not yet asked.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    initialised: bool = False
    sequences: Mapping[Partition, int] = field(default_factory=dict)
    progress_partition: Partition | None = None
    last_batch_id: int | None = None
    transaction_version: int = 0


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """Staged record batches for one partition, in the order in which they are to be appended.

    `read()` opens them at each call and yields pieces of whole, valid RecordBatches with blank
    producer fields, one or more to a piece; a piece should stay near 1 MiB, because it is held in
    memory until its batches are acknowledged. Several StagedPartitions may name one partition: they
    are appended in the order of the plan. `size_bytes` and `record_count` are of all its record
    batches, headers included: what is acknowledged in the end, each batch once. `piece_bytes` are
    the sizes of what `read()` yields, so that nothing is read before there is space for it; () says
    that they are not known.
    """

    topic: str
    partition: int
    read: Callable[[], Iterable[Bytes]]
    size_bytes: int = 0
    record_count: int = 0
    piece_bytes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ExpectedOffsets:
    """What a group's stable committed offsets must still be when the batch is committed.

    None says that the group had no committed offset for the partition.
    """

    group_id: str
    committed: Mapping[Partition, int | None]


class Journal(Protocol):
    """What a query's checkpoint must record while its batch is committed; the host keeps it.

    Each call returns when what it says is durable. A batch write without a checkpoint has none.
    """

    def confirm_holder(self) -> None:
        """After each InitProducerId. Raises ProducerFenced when another id has the query now."""

    def take_over(self) -> None:
        """The plan's transactional id has the query from now on; called between two fences."""

    def begin(self) -> None:
        """Before the batch's transaction begins: from here on its outcome may be unknown.

        Raises ProducerFenced when a later batch was begun: another driver went on.
        """


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One micro-batch as the driver wants it committed.

    `source_offsets` are the next offsets to read (exclusive ends), committed for `group_id` when
    that is given. `progress_partition` is a partition of a topic that exists and stays; the
    progress (batch_id + 1) is committed there for `progress_group_id`, always the same one for all
    batches of a query: with a topic Kafka deletes the offsets that were committed for it.
    `batch_hash` is of all that Spark logged for the batch: equal hashes are one planning of it.
    `source_digest` is of the source offsets alone; `is_pinned` says that these are Kafka's, each
    partition once, so that equal offsets are equal records however often the batch is planned.
    `must_exist` demands that progress is found and is not behind this batch, unless no transaction
    of it was begun: `attempted_batch_id` is the last that was, None when that is not known, and
    `attempted_group_digest` names the group that it committed source offsets for.
    `is_stream` False is a batch write: `batch_id` is its version, versions may be left out, and one
    at or below the committed version is skipped.
    `previous_transactional_id` had the query before and is fenced when it is taken over.
    `expected` is what the query started from, for the batch that starts it from a group's committed
    offsets. `previous_offsets` are the source offsets of the batch before, {} where they are not
    known, or not needed because the identity committed that batch itself.
    """

    query_id: str
    run_id: str
    batch_id: int
    transactional_id: str
    progress_group_id: str
    progress_partition: Partition
    staged: Sequence[StagedPartition] = ()
    group_id: str | None = None
    source_offsets: Mapping[Partition, int] = field(default_factory=dict)
    source_digest: str = ""
    batch_hash: str = ""
    is_pinned: bool = False
    must_exist: bool = True
    attempted_batch_id: int | None = None
    attempted_group_digest: str = ""
    is_stream: bool = True
    next_batch_id_min: int = 0
    """Progress that is known to have been committed; less than that has been lost."""
    previous_transactional_id: str | None = None
    expected: Sequence[ExpectedOffsets] = ()
    previous_offsets: Mapping[Partition, int] = field(default_factory=dict)
    foreign_sources: Sequence[Mapping[Partition, int]] = ()
    """Source offsets, per source, that do not say which cluster they belong to."""
    overwrite_group: bool = False
    """A new query may start elsewhere than its group's committed offsets."""
    journal: Journal | None = None
    transaction_timeout_ms: int = 300_000
    produce_request_bytes: int = 1024 * 1024
    """A Produce request is closed when it holds this much; one batch may go over."""
    in_flight_bytes_max: int = 8 * 1024 * 1024
    """Stamped batches in memory at once, over all leaders."""
    attempts_max: int = 2
    """Whole transactions tried when one turns out to be abortable before EndTxn(commit)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query has committed: all batches below `next_batch_id` (exclusive).

    `source_digest`, `group_digest` and `batch_hash` are of the last batch: its source offsets, the
    group that they were committed for with it, and all that Spark logged for it; "" where there was
    none.
    """

    query_id: str
    next_batch_id: int
    source_digest: str = ""
    group_digest: str = ""
    batch_hash: str = ""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The batch is committed, by this call or (`skipped`) by an earlier one.

    `identity` is for the next batch's commit, None when the batch was skipped without asking for
    one. `produced_records` and `produced_bytes` are what this call's committed transaction wrote; a
    skipped batch sends no Produce at all. `missing_sources` are the partitions of `source_offsets`
    that no longer exist and were not committed.
    """

    identity: ProducerIdentity | None
    skipped: bool
    progress: Progress
    produced_records: int = 0
    produced_bytes: int = 0
    produced_partitions: int = 0
    transaction_version: int = 0
    attempts: int = 1
    missing_sources: frozenset[Partition] = frozenset()
