"""Which conformance bodies run on three brokers of ours, and which of them with a kill, and when.

A body that takes the `broker` fixture runs on the cluster too, unless it is marked `one_broker`,
and once more with a broker killed in its middle, unless it is marked `no_kill`; both marks say why.
All of that is part of `make chaos`; what is marked `failover` runs with the kill in `make test`.

Some calls of some clients hand it to their caller that a connection was lost or a leader has moved.
Who calls has to do it again then: a body that ends so runs again, and pytest counts it as `rerun`.
"""

from __future__ import annotations

import pytest
from support.brokers.cluster_broker import KILLED, WHOLE

HANDED_OUT = [
    # our commands', where they ask for a change
    "^NotAnswered",
    # kafka-python's and aiokafka's
    "^(KafkaConnection|NodeNotReady|NotLeaderForPartition|NotCoordinator(ForGroup)?)Error",
    "^((Group)?CoordinatorNotAvailable|(Group|Coordinator)LoadInProgress)Error",
    # librdkafka's; what is fatal to a producer is not among them
    r"^KafkaException: KafkaError\{code=(_TRANSPORT|NOT_COORDINATOR|NOT_LEADER_OR_FOLLOWER),",
]
AGAIN = pytest.mark.flaky(
    reruns=2, only_rerun=HANDED_OUT, rerun_except=["^AssertionError", "^NotReady"]
)


def keep(item: pytest.Item) -> bool:
    """Whether it runs at all; those of a cluster get their marks."""
    kind = _kind(item)
    if kind not in (WHOLE, KILLED):
        return True
    if "broker" not in getattr(item, "fixturenames", ()) or _has(item, "one_broker"):
        return False
    if kind == KILLED and _has(item, "no_kill"):
        return False
    if kind == WHOLE or not _has(item, "failover"):
        item.add_marker(pytest.mark.chaos)
    if kind == KILLED:
        item.add_marker(AGAIN)
    return True


def _has(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


def is_on_cluster(item: pytest.Item) -> bool:
    """Whether it is such a run. There are many, but each is as short as in `make test`."""
    return _kind(item) in (WHOLE, KILLED)


def _kind(item: pytest.Item) -> str | None:
    return getattr(getattr(item, "callspec", None), "params", {}).get("broker_name")
