"""The values of a micro-batch's commit: what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txnlog_spark.protocol.values import ProducerIdentity, StagedPartition
from txnlog_spark.wire.topics import TopicPartition

if TYPE_CHECKING:
    from txnlog_spark.commit.journal import Journal


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What a write's options say of its commits; the names that follow from them."""

    group_id: str | None = None
    transactional_id: str | None = None
    topic: str | None = None
    sink_name: str = ""
    """Tells several sinks of one query apart (`foreach_batch`)."""
    overwrite_group: bool = False
    transaction_timeout_ms: int = 300_000
    produce_request_bytes: int = 1024 * 1024

    def transactional_id_of(self, query_id: str) -> str:
        """The option, else one made from the group id, else from the query id."""
        return self._transactional_id(self.group_id or query_id)

    def transactional_id_of_write(self, name: str) -> str:
        """The option, else one made from a batch write's name: its group may be a query's too."""
        return self._transactional_id(name)

    def _transactional_id(self, name: str) -> str:
        if self.transactional_id is not None:
            return self.transactional_id
        return f"txnlog-{name}-{self.sink_name}" if self.sink_name else f"txnlog-{name}"

    def progress_group_of(self, query_id: str) -> str:
        """The group that holds this query's progress and nothing else."""
        owner = self.group_id or self.transactional_id_of(query_id)
        name = f".{self.sink_name}" if self.sink_name else ""
        return f"{owner}.progress.{query_id}{name}"


@dataclass(frozen=True, slots=True)
class ExpectedOffsets:
    """What a group's stable committed offsets must still be when the batch is committed.

    None says that the group had no committed offset for the partition.
    """

    group_id: str
    committed: Mapping[TopicPartition, int | None]


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
    `previous_transactional_id` began the last batch, None when that is `transactional_id`.
    `expected` is what the query started from, for the batch that starts it from a group's committed
    offsets. `previous_offsets` are the source offsets of the batch before, {} where they are not
    known, or not needed because the identity committed that batch itself.
    """

    query_id: str
    run_id: str
    batch_id: int
    transactional_id: str
    progress_group_id: str
    progress_partition: TopicPartition
    staged: Sequence[StagedPartition] = ()
    group_id: str | None = None
    source_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
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
    previous_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    foreign_sources: Sequence[Mapping[TopicPartition, int]] = ()
    """Source offsets, per source, that do not say which cluster they belong to."""
    overwrite_group: bool = False
    """A new query may start elsewhere than its group's committed offsets."""
    journal: Journal | None = None
    """Keeps in the checkpoint what was begun; a batch write without a checkpoint has none."""
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
    missing_sources: frozenset[TopicPartition] = frozenset()
