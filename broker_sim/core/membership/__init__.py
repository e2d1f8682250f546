"""Membership of a broker in a cluster: session, registration, election, the registry's metadata.

`registry_link` keeps the session and reads the registry; `cluster_metadata` builds the image from
that. `controller` decides, and `decisions` appends its decisions one at a time.
`controller_requests` brings requests to the controller. `cluster_member` joins all of it for one
broker. `alone` answers the same questions for a broker without a registry.
"""

from broker_sim.core.membership.alone import Alone
from broker_sim.core.membership.cluster_member import ClusterMember

__all__ = ["Alone", "ClusterMember", "Membership"]

Membership = Alone | ClusterMember
"""Membership of a broker: the choice is made at the start, and asked nowhere else."""
