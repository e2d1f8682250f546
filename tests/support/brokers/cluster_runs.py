"""Choose the conformance bodies that run on a broker_sim cluster, with a kill or without.

A body that takes the `broker` fixture runs on the cluster too, unless it is marked `one_broker`. It
runs once more with a broker killed in its middle, unless it is marked `no_kill`. Both marks say
why. All these runs are part of `make chaos`; a body that is marked `failover` runs with the kill in
`make test` too.

Some calls of some clients tell their caller that a connection was lost or a leader has moved, and
the caller must repeat the call. A body that ends so runs again, and pytest counts it as `rerun`.
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
    """True if the test runs at all; mark the tests that run on a cluster."""
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
    """True if the test runs on a cluster. There are many such runs, each as short as in `make
    test`."""
    return _kind(item) in (WHOLE, KILLED)


def _kind(item: pytest.Item) -> str | None:
    return getattr(getattr(item, "callspec", None), "params", {}).get("broker_name")
