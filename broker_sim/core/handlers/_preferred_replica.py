"""Choice of the replica that a consumer should read from: a replica in its rack (KIP-392).

Sources: Kafka's `ReplicaManager.findPreferredReadReplica`, `RackAwareReplicaSelector`.
"""

from __future__ import annotations

from broker_sim.core.config.cluster_options import RACK_AWARE_SELECTOR
from broker_sim.core.effects import Request
from broker_sim.core.handlers._lookup import brokers_on
from broker_sim.core.log import PartitionLog
from broker_sim.core.parts import BrokerParts


def preferred_read_replica(
    parts: BrokerParts, request: Request, log: PartitionLog, fetch_offset: int
) -> int | None:
    """The follower that a consumer of this leader is sent to, None when it reads here.

    That is one of the ISR in the consumer's rack that has the offset, the one that has most; but
    the leader itself when it is in that rack.
    """
    rack = request.message.rack_id
    if not rack or parts.config.text("replica.selector.class") != RACK_AWARE_SELECTOR:
        return None
    leader = parts.replicas.partition(log).leader
    if leader is None:
        return None
    near = {
        b.broker_id for b, _ in brokers_on(parts.image.brokers, request.listener) if b.rack == rack
    }
    if leader.node_id in near:
        return None
    found = [
        (follower.log_end_offset, follower.last_caught_up_ms, replica)
        for replica, follower in leader.followers.items()
        if replica in near
        and replica in leader.registration.isr
        and 0 <= follower.log_start_offset <= fetch_offset <= follower.log_end_offset
    ]
    return max(found)[2] if found else None
