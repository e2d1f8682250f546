"""Errors of the connector: Kafka's errors (`txnlog_kafka.errors`), and the connector's own.

    TxnLogError
    ├─ ProgressError               ├─ ProgressMissing  ├─ ProgressBehind  ├─ BatchReplanned
    │                              ├─ StatefulReplanned
    │                              ├─ AnotherOutput  ├─ CheckpointCopied
    │                              ├─ CommittedOffsetsMoved  ├─ GroupHasOffsets
    │                              └─ NoCommittedOffsets
    ├─ SparkSettingRefused         a setting of Spark would mix two computations of one batch
    ├─ StagingFailed               the staging directory cannot be written or read
    ├─ MalformedValue              a key or a value does not have its format
    ├─ MalformedTimestamp          a record's time is outside the range of Spark's TIMESTAMP
    └─ JsonSchemaError             a JSON Schema has no Spark type

`InvariantViolation` is not a TxnLogError: it means that the connector itself has a bug.
"""

from txnlog_kafka.errors import (
    BROKERS,
    HIDDEN,
    AbortableError,
    BrokerError,
    CommitStateUnknown,
    CorruptData,
    DataLoss,
    DeadlineExceeded,
    FatalError,
    OffsetOutOfRange,
    OldMessageFormat,
    OptionError,
    ProducerFenced,
    RecordRefused,
    RemoteProtocolError,
    RetriableError,
    SecurityRefused,
    StagedBatchesInvalid,
    TransactionTimedOut,
    TxnLogError,
    UnknownTopic,
    WrongCluster,
    do_this,
    is_secret,
)
from txnlog_kafka.wire.topic_partition import TopicPartition

__all__ = [
    "BROKERS",
    "HIDDEN",
    "AbortableError",
    "AnotherOutput",
    "BatchReplanned",
    "BrokerError",
    "CheckpointCopied",
    "CommitStateUnknown",
    "CommittedOffsetsMoved",
    "CorruptData",
    "DataLoss",
    "DeadlineExceeded",
    "FatalError",
    "GroupHasOffsets",
    "JsonSchemaError",
    "MalformedTimestamp",
    "MalformedValue",
    "NoCommittedOffsets",
    "OffsetOutOfRange",
    "OldMessageFormat",
    "OptionError",
    "ProducerFenced",
    "ProgressBehind",
    "ProgressError",
    "ProgressMissing",
    "RecordRefused",
    "RemoteProtocolError",
    "RetriableError",
    "SecurityRefused",
    "SparkSettingRefused",
    "StagedBatchesInvalid",
    "StagingFailed",
    "StatefulReplanned",
    "TransactionTimedOut",
    "TxnLogError",
    "UnknownTopic",
    "WrongCluster",
    "do_this",
    "is_secret",
]


class ProgressError(TxnLogError):
    """The committed progress of a query contradicts its checkpoint: a person must decide.

    Remedy: do what the text says. For example, a file of the checkpoint cannot be read, or
    `progress set` would move the progress back.
    """

    condition = "TXNLOG_PROGRESS"


class ProgressMissing(ProgressError):
    """The query's progress must exist, but the brokers do not have it: the group's offsets expired
    or were deleted.

    Remedy: look whether the output has the batch, and then run `python -m txnlog_spark progress set
    --next-batch-id`; the text has the command for both answers. If N is the batch's id, its input
    begins at the offsets in the checkpoint's file offsets/N-1 and ends at the offsets in offsets/N.
    """

    condition = "TXNLOG_PROGRESS.MISSING"


class ProgressBehind(ProgressError):
    """The checkpoint says that batches are done, but the brokers do not know these batches.

    Remedy: if the output has all batches, run `python -m txnlog_spark progress set --to-checkpoint`
    (for a named sink with `--sink NAME`). If batches are missing in the output, start a new
    checkpoint with startingOffsets=committed.
    """

    condition = "TXNLOG_PROGRESS.BEHIND"


class BatchReplanned(ProgressError):
    """A batch that was already committed came back with other source offsets. To skip it could lose
    rows, and to write it could duplicate rows.

    Remedy: restore the folders offsets and sources of the checkpoint as they were when the batch
    was committed. The text may name another way.
    """

    condition = "TXNLOG_PROGRESS.BATCH_REPLANNED"


class StatefulReplanned(ProgressError):
    """A committed batch of a stateful query came back with another plan.

    The output of a stateful batch depends on its rows, its watermark, its time and the borders of
    the batches before it. So a batch that was planned again is another batch.

    Remedy: restore the folders offsets, commits, sources and state of the checkpoint from a copy
    that has the committed batch. A power failure does not cause this error: the plan is on the disk
    before the transaction begins.
    """

    condition = "TXNLOG_PROGRESS.STATEFUL_REPLANNED"


class AnotherOutput(ProgressError):
    """The progress belongs to another output: to another checkpoint, topic or application.

    Remedy: start the query with its former topic until the batch is done, and then with the new
    topic. Give each of two sinks of one query a name. Give a copy of the checkpoint its own id.
    """

    condition = "TXNLOG_PROGRESS.ANOTHER_OUTPUT"


class CheckpointCopied(ProgressError):
    """The checkpoint has another path than before, and the connector cannot tell whether it was
    moved or copied.

    Remedy: if you copied the checkpoint, give the copy its own kafka.group.id (and its own
    kafka.transactional.id, if you set it) and its own topic. If you moved it, start the query once
    from the old path, or remove what is left there.
    """

    condition = "TXNLOG_PROGRESS.CHECKPOINT_COPIED"


class CommittedOffsetsMoved(ProgressError):
    """The group's committed offsets have moved since the query started or last committed them.

    Remedy: the text names the cause. If another query moved the offsets, it may be this job with a
    newer checkpoint: start only that one. If a consumer or a person moved them, run the command in
    the text, which sets them back. Give each of two jobs its own group.id, and also a job and a
    consumer that commits.
    """

    condition = "TXNLOG_PROGRESS.COMMITTED_OFFSETS_MOVED"


class GroupHasOffsets(ProgressError):
    """A query would start at other offsets than the group has committed, and would overwrite them.
    The query is new, or it reads a topic again that it had left out.

    Remedy: to continue from the committed offsets, set startingOffsets=committed and use a new,
    empty checkpoint. To start elsewhere on purpose, set overwriteGroupOffsets=true, or use another
    group.
    """

    condition = "TXNLOG_PROGRESS.GROUP_HAS_OFFSETS"


class NoCommittedOffsets(ProgressError):
    """The query has startingOffsets=committed, but the group has no committed offset in any
    partition.

    Remedy: correct the group's name, or set startingOffsets to committedOrEarliest or
    committedOrLatest for a first start. If the offsets expired, compare the output with the input
    first.
    """

    condition = "TXNLOG_PROGRESS.NO_COMMITTED_OFFSETS"


class SparkSettingRefused(TxnLogError):
    """A setting of Spark would let the output contain parts of two computations of one batch.

    If an executor is lost, Spark computes its part of a shuffle again. Rows that differ the second
    time, for example because of a random salt, would be missing or duplicated: some tasks have
    staged rows of the first computation, other tasks rows of the second. With Spark's defaults the
    batch fails instead, and the restarted query writes the whole batch.

    Remedy: remove the setting that the text names from the session, `spark-defaults.conf` and
    `--conf`, or set it to the value in the text. Start the query again: it continues from its
    checkpoint.
    """

    condition = "TXNLOG_SPARK_SETTING"

    def __init__(self, name: str, value: str, right: str) -> None:
        super().__init__(
            f"{name}={value} is set in Spark's session or configuration: set it to {right}, and "
            "start again. Nothing was written. With this setting, if an executor is lost, Spark "
            "computes its part of a shuffle again and keeps the rest, so that rows of a query that "
            "is not deterministic would be missing or doubled"
        )


class StagingFailed(TxnLogError):
    """The staging directory cannot be written, or the staging server does not answer.

    Remedy: free space or grant access where the text says. Executors must reach the driver's
    staging server: set stagingHost and stagingPort, or set stagingLocation. If the text says that
    the server's process is silent, let the process continue (kill -CONT) or end it (kill -9), and
    start the query again.
    """

    condition = "TXNLOG_STAGING"


class MalformedValue(TxnLogError):
    """A key or a value in a topic does not have the declared format and schema.

    Remedy: read with the schema that the record was written with. Or set value.mode=PERMISSIVE (for
    a key: key.mode) and send malformed records to a separate topic with txnlog_spark.dead_letters,
    as docs/formats.md shows. The query continues from its checkpoint.
    """

    condition = "TXNLOG_MALFORMED_VALUE"

    def __init__(self, side: str, partition: TopicPartition, offset: int, problem: str) -> None:
        super().__init__(
            f"the {side} of {partition} at offset {offset} is malformed: {problem}. With "
            f"{side}.mode=PERMISSIVE it is null, and the columns {side}_bytes and {side}_error say "
            "what and why"
        )


class MalformedTimestamp(TxnLogError):
    """A record's timestamp is outside the range of Spark's TIMESTAMP: its producer counts in
    microseconds or nanoseconds, where Kafka counts in milliseconds.

    Remedy: fix the producer, and let the brokers refuse such records (the topic's
    message.timestamp.after.max.ms). To continue after the record, start a new checkpoint whose
    startingOffsets name the next offset.
    """

    condition = "TXNLOG_MALFORMED_TIMESTAMP"

    def __init__(self, partition: TopicPartition, offset: int, timestamp_ms: int) -> None:
        super().__init__(
            f"the record of {partition} at offset {offset} has the timestamp {timestamp_ms} ms, "
            "which Spark's TIMESTAMP cannot hold: its producer does not count in milliseconds. To "
            "continue after it, start a new checkpoint whose startingOffsets name offset "
            f"{offset + 1} for this partition"
        )


class JsonSchemaError(TxnLogError):
    """A JSON Schema describes a value that no Spark type describes.

    `pointer` is the place in the schema, as a JSON pointer.

    Remedy: set the type yourself in the option value.schema, or read the value as binary.
    """

    condition = "TXNLOG_JSON_SCHEMA"

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"the JSON Schema has no Spark type at {pointer}: {problem}")
        self.pointer = pointer
        self.problem = problem
