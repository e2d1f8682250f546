"""The values of a commit: committer, batch, what was begun before, evidence and outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txnlog_kafka.operations.producer import StagedPartition
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
    """What a write's options say of its commits; the names that follow from them."""

    group_id: str | None = None
    transactional_id: str | None = None
    topic: str | None = None
    sink_name: str = ""
    """Tells several sinks of one query apart (`foreach_batch`)."""
    owner: GroupOwner | None = None
    """The sink that has the query's group, where that is another one."""
    overwrite_group: bool = False
    """A query may begin elsewhere than at its group's committed offsets."""
    fail_on_data_loss: bool = True
    """A topic that was deleted and created again under the query stops it."""
    transaction_timeout_ms: int = 300_000
    produce_request_bytes: int = 1024 * 1024

    @property
    def read_group_id(self) -> str | None:
        """The group that the query may be read with."""
        return self.group_id if self.owner is None else self.owner.group_id

    def transactional_id_of(self, query_id: str, recorded: str = "") -> str:
        """Name the query's transactional id; `recorded` is in its checkpoint, if any.

        A query that version 0.1.0 has begun keeps the id that it gave.
        """
        parts = (self.transactional_id, self.group_id, query_id, self.sink_name)
        former = readable_transactional_id(*parts)
        return former if recorded == former else query_transactional_id(*parts)

    def transactional_id_of_write(self, write_id: str) -> str:
        """The option, else one made from a batch write's id: its group may be a query's too."""
        return self.transactional_id or f"txnlog-{write_id}"

    def progress_group_of(self, query_id: str, copy: str = "") -> str:
        """The group that holds this query's progress and nothing else: the query's id is in it."""
        named = (self.transactional_id, self.group_id, query_id, self.sink_name)
        owner = self.group_id or readable_transactional_id(*named)
        parts = (f"{owner}.progress.{query_id}", self.sink_name, copy)
        return ".".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Committer:
    """The committer: the same for all batches of a run.

    `run_id` is random, of what a driver process began: a start of the query, or a batch write.
    `checkpoint` and `folder` are where Spark's files and this sink's lie, "" for a batch write. A
    sink of `foreach_batch` `leaves_out_batches`: it is not called for each. `host` and `pid` are
    for messages.
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
    """Whole transactions tried when one turns out to be abortable before EndTxn(commit)."""

    @property
    def is_query(self) -> bool:
        """Whether it is a streaming query's, which has a checkpoint."""
        return bool(self.folder)

    @property
    def wrote_nothing(self) -> str:
        """The sentence about a refusal's effect: other sinks of the query may have written."""
        name = self.output.sink_name
        return f"Sink {name!r} wrote nothing" if name else "Nothing was written"


@dataclass(frozen=True, slots=True)
class Batch:
    """What Spark planned and the tasks staged.

    `source_offsets` are the next offsets to read (exclusive ends). `batch_hash` is of all that
    Spark logged for the batch: equal hashes are one plan. `source_digest` is of the source offsets
    alone; `is_pinned` says that these are Kafka's, each partition once, so that equal offsets are
    equal rows. `sources` are the Kafka-like ones. A batch write's `batch_id` is its version.
    """

    batch_id: int
    staged: Sequence[StagedPartition] = ()
    source_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    source_digest: str = ""
    batch_hash: str = ""
    is_pinned: bool = False
    sources: Sequence[SourceEnd] = ()


class OutputTopic(NamedTuple):
    """A topic that a query writes to, as it was then; the id is "" before Kafka 2.8."""

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Begun:
    """What the checkpoint says was begun last: no transaction of a later batch was.

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
    """Names the group that its source offsets were to be committed for."""
    positions: str = ""
    """The `positions_digest` of these offsets."""
    has_state: bool = False
    """The query keeps state: its output depends on more than the rows of a batch."""
    topics: Mapping[str, OutputTopic] = field(default_factory=dict)
    """All that the sink has written to, as they were with the last batch that wrote to them."""
    host: str = ""
    pid: int = -1


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One batch as options and checkpoint say it; `begun` is None for a new query and for a batch
    write."""

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
        """The sentence about a refusal's effect."""
        return self.committer.wrote_nothing

    @property
    def group_id(self) -> str | None:
        """The group that the batch's source offsets are committed for, if there are both."""
        return self.committer.options.group_id if self.batch.source_offsets else None

    @property
    def watched_group_id(self) -> str | None:
        """The group that tells where the query's output ends: another sink of it may move it."""
        return self.committer.options.read_group_id if self.batch.source_offsets else None

    @property
    def was_begun(self) -> bool:
        """Whether a transaction of this very batch, or of a later one, may have begun before."""
        return self.begun is not None and self.begun.batch_id >= self.batch.batch_id

    @property
    def last_begun_below(self) -> int | None:
        """The last batch before this one that was begun, None where that is not known."""
        begun, batch_id = self.begun, self.batch.batch_id
        if begun is None or begun.batch_id > batch_id:
            return None
        return begun.batch_id if begun.batch_id < batch_id else begun.previous_batch_id

    @property
    def is_first(self) -> bool:
        """Whether the sink has committed no batch of the query: it was not called for one before,
        or this one, which was begun and not committed, is its first."""
        if self.batch.batch_id == 0 or not self.committer.leaves_out_batches:
            return self.batch.batch_id == 0
        return self.begun is None or self.last_begun_below == -1

    def located(self, place: TopicPartition, version: int) -> LocatedPlan:
        """The plan with what the brokers said."""
        return LocatedPlan(self.committer, self.batch, self.begun, place=place, version=version)


@dataclass(frozen=True, slots=True)
class LocatedPlan(CommitPlan):
    """A plan with what the brokers said before anybody was fenced.

    `place` is the partition that the query's progress is committed for: Kafka deletes a topic's
    committed offsets with the topic. `version` is the coordinator's transaction version.
    """

    place: TopicPartition = field(kw_only=True)
    version: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query has committed: all batches below `next_batch_id` (exclusive).

    `source_digest`, `group_digest` and `batch_hash` are of the last batch: its source offsets, the
    group that they were committed for, and all that Spark logged for it; "" where there was none.
    `output_digest` and `target` name the output. `positions` is the `positions_digest` of the
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

    Of Spark's log `begin` is the entry of the batch before this one, `last` of the batch that the
    progress has last, and `left` of the batch that left the group where it should be: None where
    the log has no such entry, or has purged it.
    """

    progress: Progress | None
    former: frozenset[str] = frozenset()
    """Digests of the outputs that the query has had, if the progress is not of the present one."""
    group: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Its stable committed offsets."""
    notes: Sequence[GroupNote] = ()
    """Beside these offsets."""
    members: Sequence[str] = ()
    """Of the group, asked where it has moved."""
    begin: BatchOffsets | None = None
    last: BatchOffsets | None = None
    left: BatchOffsets | None = None
    newest_plan: int = -1
    """The newest batch in Spark's offset log, asked where the number of this one is committed."""
    has_state: bool = False
    """The query keeps state: equal offsets are not equal output."""
    owner: tuple[Begun | None, Progress | None] = (None, None)
    """The record and the progress of the sink that moves the group, where that is another one."""
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of `judgement.unexpected_positions`."""
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of `judgement.foreign_sources`, those that exist."""
    progress_topic_is_gone: bool = False
    gap_is_empty: bool = False
    """No sink was to see the batches that the progress lacks."""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The batch is committed, by this call or (`skipped`) by an earlier one.

    `produced_records` and `produced_bytes` are what this call's committed transaction wrote; a
    skipped batch sends no Produce at all. `missing_sources` are the partitions of `source_offsets`
    that no longer exist and were not committed.
    """

    skipped: bool
    progress: Progress
    produced_records: int = 0
    produced_bytes: int = 0
    produced_partitions: int = 0
    transaction_version: int = 0
    attempts: int = 1
    missing_sources: frozenset[TopicPartition] = frozenset()
