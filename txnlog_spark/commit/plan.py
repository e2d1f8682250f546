"""The values of a commit: committer, batch, the record before it, evidence and outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txnlog_kafka.operations.producer import (
    PRODUCE_REQUEST_BYTES,
    TRANSACTION_TIMEOUT_MS,
    StagedChunk,
)
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import BatchOffsets, SourceEnd
from txnlog_spark.commit.output import Output, query_transactional_id, readable_transactional_id
from txnlog_spark.group_note import GroupNote


@dataclass(frozen=True, slots=True)
class GroupOwner:
    """The sink of a query that commits the query's offsets for a group, in its transactions."""

    sink_name: str
    group_id: str


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Options of a write that its commits need, and the names made from them."""

    group_id: str | None = None
    transactional_id: str | None = None
    topic: str | None = None
    sink_name: str = ""
    """Name that tells several sinks of one query apart (`foreach_batch`)."""
    owner: GroupOwner | None = None
    """The sink that commits the query's group, if it is another sink."""
    overwrite_group: bool = False
    """True if a query may begin elsewhere than at its group's committed offsets."""
    fail_on_data_loss: bool = True
    """True if a topic that was deleted and created again under the query stops it."""
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    produce_request_bytes: int = PRODUCE_REQUEST_BYTES

    @property
    def read_group_id(self) -> str | None:
        """The group that the query may be read with."""
        return self.group_id if self.owner is None else self.owner.group_id

    def transactional_id_of(self, query_id: str, recorded: str = "") -> str:
        """Name the query's transactional id; an id that version 0.1.0 `recorded` stays."""
        parts = (self.transactional_id, self.group_id, query_id, self.sink_name)
        former = readable_transactional_id(*parts)
        return former if recorded == former else query_transactional_id(*parts)

    def transactional_id_of_write(self, write_id: str) -> str:
        """Return the option, else a name made from the batch write: a query may have its group."""
        return self.transactional_id or f"txnlog-{write_id}"

    def progress_group_of(self, query_id: str, copy: str = "") -> str:
        """Name the group that holds only this query's progress."""
        named = (self.transactional_id, self.group_id, query_id, self.sink_name)
        owner = self.group_id or readable_transactional_id(*named)
        parts = (f"{owner}.progress.{query_id}", self.sink_name, copy)
        return ".".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Committer:
    """The committer: the same for all batches of a run.

    `run_id` is random and names one start of the query in a driver process, or one batch write.
    `checkpoint` and `folder` are the paths of Spark's files and of this sink's files, "" for a
    batch write. `leaves_out_batches` is True for a sink of `foreach_batch`, which is not called for
    each batch. `host` and `pid` are for messages.
    """

    output: Output
    run_id: str
    transactional_id: str
    progress_group_id: str
    options: CommitOptions = CommitOptions()
    checkpoint: str = ""
    folder: str = ""
    leaves_out_batches: bool = False
    host: str = ""
    pid: int = -1
    attempts_max: int = 2
    """Number of transactions tried, if each turns out to be abortable before EndTxn(commit)."""

    @property
    def is_query(self) -> bool:
        """True for a streaming query, which has a checkpoint."""
        return bool(self.folder)


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that Spark planned, with the pieces that its tasks staged.

    `batch_id` is the version of a batch write. `source_offsets` are the next offsets to read
    (exclusive ends). `source_digest` covers them alone, and `batch_hash` everything that Spark
    logged for the batch: equal hashes mean the same plan. `is_pinned` is True if equal offsets mean
    equal rows: they are Kafka's, each partition once. `sources` are the Kafka-like sources.
    """

    batch_id: int
    staged: Sequence[StagedChunk] = ()
    source_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    source_digest: str = ""
    batch_hash: str = ""
    is_pinned: bool = False
    sources: Sequence[SourceEnd] = ()


class OutputTopic(NamedTuple):
    """A topic that a query has written to, as it was then; the id is "" before Kafka 2.8."""

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The checkpoint's record of the batch that was begun last. No later batch has a transaction.

    `previous_batch_id` is the batch that was begun before it, -1 for none. `ended_runs` are the
    runs before `run_id`, the oldest first, as far back as they are kept.
    """

    output: Output
    batch_id: int
    run_id: str
    progress_group_id: str
    progress_partition: TopicPartition
    previous_batch_id: int = -1
    ended_runs: tuple[str, ...] = ()
    group_digest: str = ""
    """Digest of the group that the batch's source offsets were to be committed for."""
    positions: str = ""
    """The `positions_digest` of these offsets."""
    has_state: bool = False
    """True if the query keeps state: its output depends on more than the rows of a batch."""
    topics: Mapping[str, OutputTopic] = field(default_factory=dict)
    """The topics that the sink has written to, each as it was with the last batch in it."""
    host: str = ""
    pid: int = -1


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """A batch with its committer; `begun` is None for a new query and for a batch write."""

    committer: Committer
    batch: Batch
    begun: Begun | None = None

    @property
    def query(self) -> str:
        """The query, for messages."""
        return f"query {self.committer.output.query_id}"

    @property
    def name(self) -> str:
        """The batch and its query, for messages."""
        return f"batch {self.batch.batch_id} of {self.query}"

    @property
    def wrote_nothing(self) -> str:
        """The sentence for a refusal's effect. Other sinks of the query may have written."""
        name = self.committer.output.sink_name
        return f"Sink {name!r} wrote nothing" if name else "Nothing was written"

    @property
    def group_id(self) -> str | None:
        """The group that the batch's source offsets are committed for, if there are both."""
        return self.committer.options.group_id if self.batch.source_offsets else None

    @property
    def watched_group_id(self) -> str | None:
        """The group that tells where the output ends. Another sink of the query may move it."""
        return self.committer.options.read_group_id if self.batch.source_offsets else None

    @property
    def was_begun(self) -> bool:
        """True if a transaction of this batch, or of a later one, may have begun before."""
        return self.begun is not None and self.begun.batch_id >= self.batch.batch_id

    @property
    def last_begun_below(self) -> int | None:
        """The last batch before this one that was begun, None if that is not known."""
        begun, batch_id = self.begun, self.batch.batch_id
        if begun is None or begun.batch_id > batch_id:
            return None
        return begun.batch_id if begun.batch_id < batch_id else begun.previous_batch_id

    @property
    def is_first(self) -> bool:
        """True if the sink has committed no batch of the query: it began none, or only this one."""
        if self.batch.batch_id == 0 or not self.committer.leaves_out_batches:
            return self.batch.batch_id == 0
        return self.begun is None or self.last_begun_below == -1

    def located(self, place: TopicPartition, version: int) -> LocatedPlan:
        """Return the plan with the brokers' answers added."""
        return LocatedPlan(self.committer, self.batch, self.begun, place=place, version=version)


@dataclass(frozen=True, slots=True)
class LocatedPlan(CommitPlan):
    """A plan with the brokers' answers from before another driver is fenced.

    `place` is the progress's partition, `version` the coordinator's transaction version.
    """

    place: TopicPartition = field(kw_only=True)
    version: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a query: all batches below `next_batch_id` (exclusive) are committed.

    `source_digest`, `group_digest` and `batch_hash` belong to the last batch: its source offsets,
    the group that they were committed for, and everything that Spark logged for it; "" if there was
    none. `output_digest` and `target` name the output. `positions` is the `positions_digest` of the
    offsets that the group was left at, "" in the progress of version 0.1.0.
    """

    query_id: str
    next_batch_id: int
    source_digest: str = ""
    group_digest: str = ""
    batch_hash: str = ""
    output_digest: str = ""
    target: str = ""
    positions: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The answers of the brokers and of the checkpoint, as far as the judgement needs them.

    `begin`, `last` and `left` are entries of Spark's log: of the batch before this one, of the last
    batch in the progress, and of the batch that left the group where it should be. An entry is None
    if the log does not have it, or has purged it.
    """

    progress: Progress | None
    former: frozenset[str] = frozenset()
    """Digests of the query's former outputs, if the progress is not of the present output."""
    group: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The group's stable committed offsets."""
    notes: Sequence[GroupNote] = ()
    """The notes beside these offsets."""
    members: Sequence[str] = ()
    """The group's members, asked only if the group has moved."""
    begin: BatchOffsets | None = None
    last: BatchOffsets | None = None
    left: BatchOffsets | None = None
    newest_plan: int = -1
    """The newest batch in Spark's offset log, asked only if this batch's number is committed."""
    has_state: bool = False
    """True if the query keeps state: equal offsets do not mean equal output."""
    owner: tuple[Begun | None, Progress | None] = (None, None)
    """The record and the progress of the sink that moves the group, if it is another sink."""
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Log starts of the partitions in `judgement.unexpected_positions`."""
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Log ends of the partitions in `judgement.foreign_sources` that exist."""
    progress_topic_is_gone: bool = False
    gap_is_empty: bool = False
    """True if no sink was to see the batches that the progress lacks."""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """Outcome: the batch is committed, by this call or (`skipped`) by an earlier one.

    `produced_records` and `produced_bytes` count what this call wrote, 0 for a skipped batch.
    `missing_sources` are the `source_offsets` that were not committed: the partitions are gone.
    """

    skipped: bool
    progress: Progress
    produced_records: int = 0
    produced_bytes: int = 0
    produced_partitions: int = 0
    transaction_version: int = 0
    attempts: int = 1
    missing_sources: frozenset[TopicPartition] = frozenset()
