"""What can go wrong in the connector: Kafka's errors (`txnlog_kafka.errors`), and its own.

    TxnLogError
    ├─ TransactionTimedOut         the broker aborted it: transaction.timeout.ms is too short
    ├─ ProgressError               ├─ ProgressMissing  ├─ ProgressBehind  ├─ BatchReplanned
    │                              ├─ AnotherOutput  ├─ CheckpointCopied
    │                              ├─ CommittedOffsetsMoved  ├─ GroupHasOffsets
    │                              └─ NoCommittedOffsets
    ├─ WrongCluster                offsets or a checkpoint of another cluster
    └─ StagingFailed               the staging directory cannot be written or read

`InvariantViolation` is not a TxnLogError: it says that the connector itself is wrong.
"""

from txnlog_kafka.errors import (
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
    TxnLogError,
    UnknownTopic,
    is_secret,
)

__all__ = [
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
    "StagedBatchesInvalid",
    "StagingFailed",
    "TransactionTimedOut",
    "TxnLogError",
    "UnknownTopic",
    "WrongCluster",
    "is_secret",
]


class TransactionTimedOut(TxnLogError):
    """The coordinator aborted the transaction: it was open longer than transaction.timeout.ms.

    Nothing of it is visible. The same batch with the same timeout would end in the same way.
    """

    condition = "TXNLOG_TRANSACTION_TIMED_OUT"


class ProgressError(TxnLogError):
    """The committed progress of a query contradicts its checkpoint: a person must look."""

    condition = "TXNLOG_PROGRESS"


class ProgressMissing(ProgressError):
    """The progress must exist and does not: the group's offsets expired or were deleted."""

    condition = "TXNLOG_PROGRESS.MISSING"


class ProgressBehind(ProgressError):
    """The checkpoint says that batches are done which the brokers do not know."""

    condition = "TXNLOG_PROGRESS.BEHIND"


class BatchReplanned(ProgressError):
    """A committed batch came back with other source offsets: skipping or writing it is wrong."""

    condition = "TXNLOG_PROGRESS.BATCH_REPLANNED"


class AnotherOutput(ProgressError):
    """The progress is that of another output: of another checkpoint, target or application."""

    condition = "TXNLOG_PROGRESS.ANOTHER_OUTPUT"


class CheckpointCopied(ProgressError):
    """The checkpoint lies elsewhere than before, and whether it was moved or copied is open."""

    condition = "TXNLOG_PROGRESS.CHECKPOINT_COPIED"


class CommittedOffsetsMoved(ProgressError):
    """The group's committed offsets are not where the query started from, or left them."""

    condition = "TXNLOG_PROGRESS.COMMITTED_OFFSETS_MOVED"


class GroupHasOffsets(ProgressError):
    """A new query would start elsewhere than its group's committed offsets, and move them."""

    condition = "TXNLOG_PROGRESS.GROUP_HAS_OFFSETS"


class NoCommittedOffsets(ProgressError):
    """startingOffsets=committed, and the group has no committed offset in any partition."""

    condition = "TXNLOG_PROGRESS.NO_COMMITTED_OFFSETS"


class WrongCluster(TxnLogError):
    """Offsets, or a checkpoint, belong to another cluster than the one that is connected to."""

    condition = "TXNLOG_WRONG_CLUSTER"


class StagingFailed(TxnLogError):
    """The staging directory cannot be written, such as a full disk or a missing permission."""

    condition = "TXNLOG_STAGING"
