"""Codes of the registry's requests, which both sides use."""

from __future__ import annotations

import enum
from dataclasses import dataclass

NO_SESSION = -1
ANY_VERSION = -1
CONTROLLER_EPOCH_PATH = "/controller_epoch"
"""Path of the node whose version is the controller epoch. The node is persistent and never deleted,
so that the epoch never goes back."""


_NUMBER_BITS = 32
"""Number of low bits of a session id that count the sessions."""
REGISTRY_IDS = range(1, 1 << 31)
"""Range from which a registry draws its id, once for its data directory."""


def registry_of_session(session_id: int) -> int:
    """Return the id of the registry that assigned this session id; 0 if the registry had no id yet.

    The id keeps a session out of other registries. A broker that opens a new session sees whether
    the registry still has the same data directory. (ZooKeeper's session ids begin with the server
    and the time.)
    """
    return session_id >> _NUMBER_BITS


def session_of_registry(registry_id: int, session_id: int) -> int:
    """Return the session id with the id of the registry added, which it must not have yet."""
    return session_id | registry_id << _NUMBER_BITS


class RegistryError(enum.IntEnum):
    """Numbers on the wire, as in ZooKeeper (KeeperException.Code) or else in Kafka (Errors)."""

    RUNTIME_INCONSISTENCY = -2
    """The operation comes after the failed operation."""
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
    """The log's end is at another offset; a code of our own."""


class OperationType(enum.IntEnum):
    """Kinds of operation in a multi; numbers on the wire."""

    CHECK = 0
    CREATE = 1
    CREATE_EPHEMERAL = 2
    SET = 3
    DELETE = 4


@dataclass(frozen=True, slots=True)
class Node:
    """A node; the owner is a session, or NO_SESSION for a persistent node."""

    data: bytes
    version: int
    owner_session_id: int
    zxid: int
    """Zxid of its last change."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """Check or change in a multi; `version` is the expected version, or ANY_VERSION."""

    type: OperationType
    path: str
    data: bytes = b""
    version: int = ANY_VERSION
