"""The codes of the registry's requests, which both sides use."""

from __future__ import annotations

import enum
from dataclasses import dataclass

NO_SESSION = -1
ANY_VERSION = -1
CONTROLLER_EPOCH_PATH = "/controller_epoch"
"""Its node's version is the controller epoch. It is persistent and never deleted, so that the
epoch never goes back."""


class RegistryError(enum.IntEnum):
    """Numbers on the wire, as in ZooKeeper (KeeperException.Code) or else in Kafka (Errors)."""

    RUNTIME_INCONSISTENCY = -2
    """The operation comes after the one that failed."""
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NODE_EXISTS = -110
    SESSION_EXPIRED = -112
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    STALE_CONTROLLER_EPOCH = 11
    KAFKA_STORAGE_ERROR = 56
    BAD_OFFSET = 20000
    """Ours: the log's end is elsewhere."""


class OperationType(enum.IntEnum):
    """What an operation of a multi does; numbers on the wire."""

    CHECK = 0
    CREATE = 1
    CREATE_EPHEMERAL = 2
    SET = 3
    DELETE = 4


@dataclass(frozen=True, slots=True)
class Operation:
    """One check or change of a multi; `version` is the expected one, or ANY_VERSION."""

    type: OperationType
    path: str
    data: bytes = b""
    version: int = ANY_VERSION
