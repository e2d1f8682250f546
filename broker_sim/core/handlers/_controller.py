"""What the handlers of a cluster's controller share."""

from __future__ import annotations

from broker_sim.core.controller.replication_control import ReplicationControl
from broker_sim.core.membership import Membership
from broker_sim.core.parts import BrokerParts
from txnlog_spark.wire.invariants import present


def membership_of(parts: BrokerParts) -> Membership:
    """Of a broker in a cluster; where it is alone nobody gets to these handlers."""
    found = parts.membership
    cluster = found if isinstance(found, Membership) else None
    return present(cluster, "a request of clusters at a broker that is alone")


def control_of(parts: BrokerParts) -> ReplicationControl:
    """What decides of partitions, by the image of this broker."""
    return membership_of(parts).controller.control
