"""Bugs planted on purpose: each must be caught, or the checkers are blind.

`python -m simulation --plant planted:NAME` runs with one, with this folder on the path.
"""

from planted.client_plants import CLIENT_PLANTS
from planted.commit_plants import CONNECTOR_PLANTS_OF_CLUSTERS
from planted.group_plants import GROUP_PLANTS
from planted.plants import ONE_BROKER_PLANTS
from planted.replication_plants import REPLICATION_PLANTS
from planted.transaction_plants import TRANSACTION_PLANTS

PLANTS = (
    ONE_BROKER_PLANTS
    | TRANSACTION_PLANTS
    | CLIENT_PLANTS
    | REPLICATION_PLANTS
    | GROUP_PLANTS
    | CONNECTOR_PLANTS_OF_CLUSTERS
)
"""Plants of all rooms, by name."""
