"""Log of a partition in Kafka's file format: segments, indexes, producer states, recovery."""

from broker_sim.core.log.config import LogConfig
from broker_sim.core.log.files import (
    DELETED_SUFFIX,
    STRAY_SUFFIX,
    InconsistentTopicId,
    stray_directory_name,
)
from broker_sim.core.log.loading import Folder, KnownAtStart
from broker_sim.core.log.partition_log import PartitionLog
from broker_sim.core.log.recovery import DamagedLog
from broker_sim.core.log.values import (
    AbortedTransaction,
    AppendOrigin,
    AppendResult,
    LogRead,
    ProducerStateView,
)

__all__ = [
    "DELETED_SUFFIX",
    "STRAY_SUFFIX",
    "AbortedTransaction",
    "AppendOrigin",
    "AppendResult",
    "DamagedLog",
    "Folder",
    "InconsistentTopicId",
    "KnownAtStart",
    "LogConfig",
    "LogRead",
    "PartitionLog",
    "ProducerStateView",
    "stray_directory_name",
]
