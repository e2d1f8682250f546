"""The codes of the registry's requests, which both sides use."""

from __future__ import annotations

import enum
from dataclasses import dataclass

NO_SESSION = -1
ANY_VERSION = -1
CONTROLLER_EPOCH_PATH = "/controller_epoch"
"""Its node's version is the controller epoch. It is persistent and never deleted, so that the
epoch never goes back."""


_NUMBER_BITS = 32
"""Of a session id those that count the sessions."""
REGISTRY_IDS = range(1, 1 << 31)
"""What a registry draws its id from, once for its data directory."""


def registry_of_session(session_id: int) -> int:
    """The id of the registry that gave this session id; 0 of one that has not drawn it yet.

    So no other registry takes the session for one of its own, and a broker that opens a new one
    sees whether the registry still has the data directory that it had. (ZooKeeper's session ids
    begin with the server and the time.)
    """
    return session_id >> _NUMBER_BITS


def session_of_registry(registry_id: int, session_id: int) -> int:
    """The id with that of the registry, which it does not have yet."""
    return session_id | registry_id << _NUMBER_BITS


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
class NodeChange:
    """One check or change of a multi; `version` is the expected one, or ANY_VERSION."""

    type: OperationType
    path: str
    data: bytes = b""
    version: int = ANY_VERSION
