"""How a broker belongs to a cluster: session, registration, election, the metadata of the registry.

`registry_link` keeps the session and reads what the registry has; `cluster_metadata` is the image
that comes of it; `decisions` appends what the controller decides, one decision at a time;
`controller` decides; `controller_requests` brings requests to the controller; `cluster_member` is
all of it for one broker. `alone` answers the same questions for a broker without a registry.
"""

from broker_sim.core.membership.alone import Alone
from broker_sim.core.membership.cluster_member import ClusterMember

__all__ = ["Alone", "ClusterMember", "Membership"]

Membership = Alone | ClusterMember
"""Which one it is, is decided at the start, and asked nowhere else."""
