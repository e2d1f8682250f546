"""What can go wrong in the connector: Kafka's errors (`txnlog_kafka.errors`), and its own.

    TxnLogError
    ├─ ProgressError               ├─ ProgressMissing  ├─ ProgressBehind  ├─ BatchReplanned
    │                              ├─ StatefulReplanned
    │                              ├─ AnotherOutput  ├─ CheckpointCopied
    │                              ├─ CommittedOffsetsMoved  ├─ GroupHasOffsets
    │                              └─ NoCommittedOffsets
    ├─ WrongCluster                offsets or a checkpoint of another cluster
    ├─ SparkSettingRefused         a batch could be computed in part twice
    ├─ StagingFailed               the staging directory cannot be written or read
    ├─ MalformedValue              a key or a value is not what its format says
    ├─ MalformedTimestamp          a record's time is none that Spark holds
    └─ JsonSchemaError             a JSON Schema has no Spark type

`InvariantViolation` is not a TxnLogError: it says that the connector itself is wrong.
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
    """The committed progress of a query contradicts its checkpoint: a person must look.

    Remedy: do what the text says. A file of the checkpoint may be unreadable, or `progress set`
    would go back.
    """

    condition = "TXNLOG_PROGRESS"


class ProgressMissing(ProgressError):
    """The progress must exist and does not: the group's offsets expired or were deleted.

    Remedy: look whether the output has the batch, and say so with `python -m txnlog_spark
    progress set --next-batch-id`; the text has the command for both answers. The batch's input is
    what lies between the offsets in the checkpoint's files offsets/N-1 and offsets/N, N being its
    id.
    """

    condition = "TXNLOG_PROGRESS.MISSING"


class ProgressBehind(ProgressError):
    """The checkpoint says that batches are done which the brokers do not know.

    Remedy: if the output has all batches, say so with `python -m txnlog_spark progress set
    --to-checkpoint` (of a named sink with `--sink NAME`). If not, start a new checkpoint with
    startingOffsets=committed.
    """

    condition = "TXNLOG_PROGRESS.BEHIND"


class BatchReplanned(ProgressError):
    """A committed batch came back with other source offsets: skipping or writing it is wrong.

    Remedy: restore the folders offsets and sources of the checkpoint as they were when the batch
    was committed, or do what the text says besides.
    """

    condition = "TXNLOG_PROGRESS.BATCH_REPLANNED"


class StatefulReplanned(ProgressError):
    """A committed batch of a stateful query came back with another plan.

    The output of a stateful batch depends on its rows, its watermark, its time and the borders of
    the batches before it, so a batch that was planned again is another batch.

    Remedy: restore the folders offsets, commits, sources and state of the checkpoint from a copy
    that has the committed batch. A loss of power does not bring this about: the entry is on the
    disk before the transaction begins.
    """

    condition = "TXNLOG_PROGRESS.STATEFUL_REPLANNED"


class AnotherOutput(ProgressError):
    """The progress is that of another output: of another checkpoint, target or application.

    Remedy: start the query with the topic of before until the batch is done, and then with the
    other one. Two sinks of one query need a name each. A copy of the checkpoint needs an id of
    its own.
    """

    condition = "TXNLOG_PROGRESS.ANOTHER_OUTPUT"


class CheckpointCopied(ProgressError):
    """The checkpoint lies elsewhere than before, and whether it was moved or copied is open.

    Remedy: a copy: give it a kafka.group.id (and a kafka.transactional.id, if that is set) and a
    topic of its own. A moved one: start it once as before, or remove what is left at the old
    place.
    """

    condition = "TXNLOG_PROGRESS.CHECKPOINT_COPIED"


class CommittedOffsetsMoved(ProgressError):
    """The group's committed offsets are not where the query started from, or left them.

    Remedy: the text names the cause. If another query moved them, it may be this job with a newer
    checkpoint: start that one only. If a consumer or a person moved them, run the command in the
    text, which sets them back. Two jobs, and a job and a consumer that commits, need a group.id
    each.
    """

    condition = "TXNLOG_PROGRESS.COMMITTED_OFFSETS_MOVED"


class GroupHasOffsets(ProgressError):
    """A query would begin elsewhere than its group's committed offsets, and move them: a new query,
    or one that reads a topic again which it had left out.

    Remedy: go on from the committed offsets with startingOffsets=committed and a new, empty
    checkpoint; or begin elsewhere on purpose with overwriteGroupOffsets=true, or with another
    group.
    """

    condition = "TXNLOG_PROGRESS.GROUP_HAS_OFFSETS"


class NoCommittedOffsets(ProgressError):
    """startingOffsets=committed, and the group has no committed offset in any partition.

    Remedy: correct the group's name, or set startingOffsets to committedOrEarliest or
    committedOrLatest for a first start. After an expiry compare the output with the input first.
    """

    condition = "TXNLOG_PROGRESS.NO_COMMITTED_OFFSETS"


class WrongCluster(TxnLogError):
    """Offsets, or a checkpoint, belong to another cluster than the one that is connected to.

    Remedy: set kafka.bootstrap.servers to the cluster of the checkpoint, or start a new
    checkpoint. Source and sink on two clusters go without group.id.
    """

    condition = "TXNLOG_WRONG_CLUSTER"


class SparkSettingRefused(TxnLogError):
    """A setting of Spark's would let the output hold parts of two computations of one batch.

    If an executor is lost, Spark computes its part of a shuffle again. Rows that come out otherwise
    the second time, such as those of a random salt, would be missing, or be there twice: some tasks
    have staged rows of the first computation, others those of the second. With Spark's defaults
    the batch fails instead, and the restarted query writes all of it.

    Remedy: remove the setting that the text names from the session, `spark-defaults.conf` and
    `--conf`, or set it to the value in the text. Start the query again: it goes on from its
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
    staging server: see stagingHost and stagingPort, or set stagingLocation. If the text names its
    process and says that it is silent, let it go on (kill -CONT) or end it (kill -9), and start the
    query again.
    """

    condition = "TXNLOG_STAGING"


class MalformedValue(TxnLogError):
    """A key or a value of a topic is not what its format and its schema say.

    Remedy: read with the schema it was written with, or set value.mode=PERMISSIVE (key.mode for a
    key) and send what is malformed to a topic of its own with txnlog_spark.dead_letters, as
    docs/formats.md shows. The query goes on from its checkpoint.
    """

    condition = "TXNLOG_MALFORMED_VALUE"

    def __init__(self, side: str, partition: TopicPartition, offset: int, problem: str) -> None:
        super().__init__(
            f"the {side} of {partition} at offset {offset} is malformed: {problem}. With "
            f"{side}.mode=PERMISSIVE it is null, and the columns {side}_bytes and {side}_error say "
            "what and why"
        )


class MalformedTimestamp(TxnLogError):
    """The time of a record is not one that Spark's TIMESTAMP holds: its producer counts in
    microseconds or nanoseconds, where Kafka counts in milliseconds.

    Remedy: mend the producer, and let the brokers refuse such records (the topic's
    message.timestamp.after.max.ms). The query goes on behind the record with a new checkpoint whose
    startingOffsets name the next offset.
    """

    condition = "TXNLOG_MALFORMED_TIMESTAMP"

    def __init__(self, partition: TopicPartition, offset: int, timestamp_ms: int) -> None:
        super().__init__(
            f"the record of {partition} at offset {offset} has the timestamp {timestamp_ms} ms, "
            "which Spark's TIMESTAMP cannot hold: its producer does not count in milliseconds. To "
            "go on behind it, start a new checkpoint whose startingOffsets name offset "
            f"{offset + 1} there"
        )


class JsonSchemaError(TxnLogError):
    """A JSON Schema says of a value what no Spark type says.

    `pointer` is the place in the schema, as a JSON pointer.

    Remedy: give the type yourself in the option value.schema, or read the value as binary.
    """

    condition = "TXNLOG_JSON_SCHEMA"

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"the JSON Schema has no Spark type at {pointer}: {problem}")
        self.pointer = pointer
        self.problem = problem
