"""The nodes by which brokers find each other: their bytes, and what a broker reads from them.

A registration lives as long as its broker's session, and so does the election of a controller.
The broker epoch is the change that created the registration (as in Kafka with ZooKeeper), the
controller epoch the version of a node that each election raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NO_SESSION,
    Node,
    NodeChange,
    OperationType,
)
from broker_sim.core.controller.registrations import BrokerRegistration

BROKERS_PREFIX = "/brokers/ids/"
CONTROLLER_PATH = "/controller"
NODE_PATHS = (CONTROLLER_PATH, CONTROLLER_EPOCH_PATH)
"""Paths that a broker reads in addition to all registrations."""
NO_CONTROLLER = -1

Nodes = Mapping[str, Node]


def broker_path(broker_id: int) -> str:
    """Return the path where a broker registers."""
    return f"{BROKERS_PREFIX}{broker_id}"


def registering(broker: BrokerRegistration) -> list[NodeChange]:
    """Register; the epoch of the registration is not known before."""
    return [NodeChange(OperationType.CREATE_EPHEMERAL, *_node_of(broker))]


def registering_again(broker: BrokerRegistration) -> list[NodeChange]:
    """Change a registration of the same session: it gets a new epoch."""
    return [NodeChange(OperationType.SET, *_node_of(broker))]


def _node_of(broker: BrokerRegistration) -> tuple[str, bytes]:
    data = json.dumps(broker.record_fields(), sort_keys=True).encode()
    return broker_path(broker.broker_id), data


def registered_brokers(nodes: Nodes) -> dict[int, BrokerRegistration]:
    """The registrations that there are, by broker."""
    found = {}
    for path, node in nodes.items():
        if path.startswith(BROKERS_PREFIX):
            fields = json.loads(node.data) | {"epoch": node.zxid}
            broker = BrokerRegistration.of_record(fields)
            found[broker.broker_id] = broker
    return found


def electing(broker_id: int, nodes: Nodes) -> list[NodeChange]:
    """Become the controller, if nobody is; the epoch rises with it or nothing happens."""
    epoch = nodes.get(CONTROLLER_EPOCH_PATH)
    raised = NodeChange(OperationType.CREATE, CONTROLLER_EPOCH_PATH)
    if epoch is not None:
        raised = NodeChange(OperationType.SET, CONTROLLER_EPOCH_PATH, b"", epoch.version)
    data = json.dumps({"broker": broker_id}).encode()
    return [NodeChange(OperationType.CREATE_EPHEMERAL, CONTROLLER_PATH, data), raised]


def controller_of(nodes: Nodes) -> int:
    """The broker that is the controller, or NO_CONTROLLER."""
    node = nodes.get(CONTROLLER_PATH)
    return NO_CONTROLLER if node is None else int(json.loads(node.data)["broker"])


def epoch_of_session(nodes: Nodes, session_id: int) -> int | None:
    """The controller epoch of the session, None when it is not the controller's."""
    node = nodes.get(CONTROLLER_PATH)
    if node is None or session_id == NO_SESSION or node.owner_session_id != session_id:
        return None
    return nodes[CONTROLLER_EPOCH_PATH].version


def broker_epoch_of_session(nodes: Nodes, broker_id: int, session_id: int) -> int | None:
    """The broker epoch of the session, None when the broker is not registered by it."""
    node = nodes.get(broker_path(broker_id))
    if node is None or session_id == NO_SESSION or node.owner_session_id != session_id:
        return None
    return node.zxid
