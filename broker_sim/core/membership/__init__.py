"""How a broker belongs to a cluster: session, registration, election, the metadata of the registry.

`registry_link` keeps the session and reads what the registry has; `cluster_metadata` is the image
that comes of it; `decisions` appends what the controller decides, one decision at a time;
`controller` decides; `controller_requests` brings requests to the controller; `membership` is all
of it for one broker.
"""

from broker_sim.core.membership.alone import Alone
from broker_sim.core.membership.membership import Membership

__all__ = ["Alone", "Membership"]
