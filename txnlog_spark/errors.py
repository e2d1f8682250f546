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

from txnlog_kafka.errors import BROKERS as BROKERS
from txnlog_kafka.errors import HIDDEN as HIDDEN
from txnlog_kafka.errors import AbortableError as AbortableError
from txnlog_kafka.errors import BrokerError as BrokerError
from txnlog_kafka.errors import CommitStateUnknown as CommitStateUnknown
from txnlog_kafka.errors import CorruptData as CorruptData
from txnlog_kafka.errors import DataLoss as DataLoss
from txnlog_kafka.errors import DeadlineExceeded as DeadlineExceeded
from txnlog_kafka.errors import FatalError as FatalError
from txnlog_kafka.errors import OffsetOutOfRange as OffsetOutOfRange
from txnlog_kafka.errors import OldMessageFormat as OldMessageFormat
from txnlog_kafka.errors import OptionError as OptionError
from txnlog_kafka.errors import ProducerFenced as ProducerFenced
from txnlog_kafka.errors import RecordRefused as RecordRefused
from txnlog_kafka.errors import RemoteProtocolError as RemoteProtocolError
from txnlog_kafka.errors import RetriableError as RetriableError
from txnlog_kafka.errors import SecurityRefused as SecurityRefused
from txnlog_kafka.errors import StagedBatchesInvalid as StagedBatchesInvalid
from txnlog_kafka.errors import TransactionTimedOut as TransactionTimedOut
from txnlog_kafka.errors import TxnLogError as TxnLogError
from txnlog_kafka.errors import UnknownTopic as UnknownTopic
from txnlog_kafka.errors import WrongCluster as WrongCluster
from txnlog_kafka.errors import do_this as do_this
from txnlog_kafka.errors import is_secret as is_secret
from txnlog_kafka.wire.topic_partition import TopicPartition


class ProgressError(TxnLogError):
    """The committed progress of a query contradicts its checkpoint, and a person must decide.

    Remedy: do what the text says. For example, a file of the checkpoint cannot be read, or
    `progress set` would move the progress back.
    """

    condition = "TXNLOG_PROGRESS"


class ProgressMissing(ProgressError):
    """The query's progress must exist, but the brokers do not have it: the group's offsets expired
    or were deleted.

    Remedy: check whether the output has the rows of the batch. If N is the batch's id, its input
    begins at the offsets in the checkpoint's file offsets/N-1 and ends before the offsets in
    offsets/N. The text has a command `python -m txnlog_spark progress set --next-batch-id` for each
    answer: run the command for your answer, and start the query again. If you answer that the
    output has the batch and the output lacks it, its rows are lost. If you answer that the output
    lacks the batch and the output has it, its rows are written twice.
    """

    condition = "TXNLOG_PROGRESS.MISSING"


class ProgressBehind(ProgressError):
    """The checkpoint says that batches are done, but the brokers do not know these batches.

    Remedy: if the output has all batches, run `python -m txnlog_spark progress set --to-checkpoint`
    as the text says (for a named sink with `--sink NAME`), and start the query again. If
    batches are missing in the output, start a new checkpoint with the query's group.id and
    startingOffsets=committed. The query then writes again the rows that another sink has written
    since, and a stateful query begins with empty state. Without a group.id, set startingOffsets to
    the offsets in the checkpoint's file offsets/N, where N is the last batch in the output.
    """

    condition = "TXNLOG_PROGRESS.BEHIND"


class BatchReplanned(ProgressError):
    """Spark planned a batch again that was already committed, with other source offsets. To skip
    the batch could lose rows, and to write it could duplicate rows.

    Remedy: restore the folders offsets and sources of the checkpoint as they were when the batch
    was committed. The text may name another way.
    """

    condition = "TXNLOG_PROGRESS.BATCH_REPLANNED"


class StatefulReplanned(ProgressError):
    """Spark planned a committed batch of a stateful query again, with another plan.

    The output of a stateful batch depends on its rows, its watermark, its time and the boundaries
    of the batches before it. So the second plan would give another output.

    Remedy: restore the folders offsets, commits, sources and state of the checkpoint from a copy
    that has the committed batch. (A power failure does not cause this error, because the plan is on
    the disk before the transaction begins.)
    """

    condition = "TXNLOG_PROGRESS.STATEFUL_REPLANNED"


class AnotherOutput(ProgressError):
    """The progress on the brokers belongs to another output: to another checkpoint, topic or
    application.

    Remedy: if you changed the topic, start the query with its former topic until the batch is done,
    and then with the new topic. If the query has two sinks, give a name only to the sink that the
    text names. If you copied the checkpoint, start only one of the two. Or delete in the copy what
    the text names, and give the copy its own topic and group.id. If the job sets
    kafka.transactional.id, also set a new value in the copy. If the job has no group.id, set a
    new kafka.transactional.id in the copy instead.
    """

    condition = "TXNLOG_PROGRESS.ANOTHER_OUTPUT"


class CheckpointCopied(ProgressError):
    """The checkpoint has another path than before, and the connector cannot tell whether it was
    moved or copied.

    Remedy: if you copied the checkpoint, give the copy its own topic and group.id. If the job sets
    kafka.transactional.id, also set a new value in the copy. If the job has no group.id, set a
    new kafka.transactional.id in the copy instead. In the copy, delete the files that the text
    names. If you moved the checkpoint, delete what is left at the old path, and start the query
    once with its former id and topic.
    """

    condition = "TXNLOG_PROGRESS.CHECKPOINT_COPIED"


class CommittedOffsetsMoved(ProgressError):
    """The group's committed offsets have moved since the query started or last committed them.

    Remedy: the text names the cause. If this job has a newer checkpoint, start the job with the
    newer checkpoint only. If another job moved the offsets, give each job its own group.id. If a
    consumer moved the offsets, stop the consumer and give it another group. Then run the command in
    the text, which sets the offsets back, and start the query. To continue from the present offsets
    instead, start a new checkpoint with startingOffsets=committed. The query then leaves out the
    records in between, or writes them twice.
    """

    condition = "TXNLOG_PROGRESS.COMMITTED_OFFSETS_MOVED"


class GroupHasOffsets(ProgressError):
    """A query would start at other offsets than its group has committed, and would overwrite them.
    The query is new, or it reads a topic that it did not read before.

    Remedy: to continue from the committed offsets, set startingOffsets=committed and use a new,
    empty checkpoint. To start elsewhere on purpose, set overwriteGroupOffsets=true on the writer
    until the batch is committed, or use another group. Rows between the two positions are then
    written twice, or left out.
    """

    condition = "TXNLOG_PROGRESS.GROUP_HAS_OFFSETS"


class NoCommittedOffsets(ProgressError):
    """A query would start at its group's committed offsets, but the group has no offset, or has
    lost the offsets of some partitions.

    The query has startingOffsets=committed and the group has no committed offset in any partition.
    Or a query has committed the group's offsets, and some of them are missing now: each offset of a
    group without members expires by its own age, so a partition without new records loses its
    offset first.

    Remedy: if the group's name is wrong, correct it. For a first start, set startingOffsets to
    committedOrEarliest or committedOrLatest. If offsets expired, compare the output with the
    input, and set startingOffsets to the next offset of each partition, as JSON. With
    committedOrEarliest, the query would write everything again.
    """

    condition = "TXNLOG_PROGRESS.NO_COMMITTED_OFFSETS"


class SparkSettingRefused(TxnLogError):
    """A setting of Spark would let the output contain parts of two computations of one batch.

    If an executor is lost, Spark computes the executor's part of a shuffle again. Some rows may
    differ the second time, for example because of a random salt. Some tasks have then staged rows
    of the first computation, and other tasks rows of the second, so rows would be missing or
    duplicated. With Spark's defaults the batch fails instead, and the restarted query writes the
    whole batch.

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
    staging server: if they cannot, set stagingHost and stagingPort, or set stagingLocation. If the
    text says that the server's process is silent, let the process continue (kill -CONT) or end it
    (kill -9), and start the query again.
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
    """A record's timestamp is outside the range of Spark's TIMESTAMP. Kafka counts in milliseconds,
    but the record's producer counts in microseconds or nanoseconds.

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
    """A JSON Schema describes values for which Spark has no type.

    `pointer` is the place in the schema, as a JSON pointer.

    Remedy: set the type yourself in the option value.schema, or read the value as binary.
    """

    condition = "TXNLOG_JSON_SCHEMA"

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"the JSON Schema has no Spark type at {pointer}: {problem}")
        self.pointer = pointer
        self.problem = problem
