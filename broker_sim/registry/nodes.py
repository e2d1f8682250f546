"""Plan of a multi on nodes: several checks and changes, all or nothing.

The rules are ZooKeeper's (`PrepRequestProcessor`, `DataTree`), with a flat map for its tree: a node
needs no parent, and any node may be deleted. An operation sees the effects of the operations before
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker_sim.apis.registry_codes import (
    ANY_VERSION,
    CONTROLLER_EPOCH_PATH,
    NO_SESSION,
    Node,
    NodeChange,
    OperationType,
    RegistryError,
)
from broker_sim.registry.changes import NodesChanged


@dataclass(frozen=True, slots=True)
class OperationResult:
    """Result of an operation, and the version of its node then, -1 without a node."""

    error: RegistryError
    version: int = -1


@dataclass(frozen=True, slots=True)
class MultiPlan:
    """A multi that was not carried out yet: `change` None when there is nothing to change."""

    error: RegistryError
    results: tuple[OperationResult, ...]
    change: NodesChanged | None


def plan_multi(
    nodes: Mapping[str, Node], operations: Sequence[NodeChange], *, session_id: int, zxid: int
) -> MultiPlan:
    """Plan the operations of a session, as the change of this zxid."""
    changed: dict[str, Node | None] = {}
    results: list[OperationResult] = []
    for operation in operations:
        path = operation.path
        before = changed[path] if path in changed else nodes.get(path)
        error = _refused(operation, before)
        if error is not RegistryError.NONE:
            return MultiPlan(error, _failed(len(operations), len(results), error), None)
        if operation.type is not OperationType.CHECK:
            before = changed[path] = _after(operation, before, session_id, zxid)
        results.append(OperationResult(error, -1 if before is None else before.version))
    change = NodesChanged(tuple(changed.items())) if changed else None
    return MultiPlan(RegistryError.NONE, tuple(results), change)


def _refused(operation: NodeChange, node: Node | None) -> RegistryError:
    creates = operation.type in (OperationType.CREATE, OperationType.CREATE_EPHEMERAL)
    if not operation.path.startswith("/"):
        return RegistryError.BAD_ARGUMENTS
    if operation.path == CONTROLLER_EPOCH_PATH and operation.type in (
        OperationType.CREATE_EPHEMERAL,
        OperationType.DELETE,
    ):
        return RegistryError.BAD_ARGUMENTS
    if creates:
        return RegistryError.NONE if node is None else RegistryError.NODE_EXISTS
    if node is None:
        return RegistryError.NO_NODE
    if operation.version not in (ANY_VERSION, node.version):
        return RegistryError.BAD_VERSION
    return RegistryError.NONE


def _after(operation: NodeChange, node: Node | None, session_id: int, zxid: int) -> Node | None:
    match operation.type:
        case OperationType.CREATE:
            return Node(operation.data, 0, NO_SESSION, zxid)
        case OperationType.CREATE_EPHEMERAL:
            return Node(operation.data, 0, session_id, zxid)
        case OperationType.SET if node is not None:
            return Node(operation.data, node.version + 1, node.owner_session_id, zxid)
    return None


def _failed(count: int, at: int, error: RegistryError) -> tuple[OperationResult, ...]:
    """Return the results of a failed multi, as in ZooKeeper.

    The operations before the failed one get no error, but are not carried out either.
    """
    inconsistent = OperationResult(RegistryError.RUNTIME_INCONSISTENCY)
    return (
        *(OperationResult(RegistryError.NONE) for _ in range(at)),
        OperationResult(error),
        *(inconsistent for _ in range(count - at - 1)),
    )
