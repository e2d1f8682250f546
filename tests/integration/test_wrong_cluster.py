"""Another cluster at the address that a client knows: one body on both kinds of brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.brokers.apache_kafka import ApacheKafka, Node, new_cluster_id
from support.brokers.sim_broker import SimBroker
from support.harness.availability import check_available

from txnlog_kafka.errors import WrongCluster
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.effects import Call, Calls, Operation, Outcome, Unanswered
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.wire.messages import APIS, ApiKey


def two_clusters(kind: str, folder: Path) -> tuple[Any, Any]:
    """Return a broker, and a broker of another cluster with the same id and port."""
    if kind == "apache_kafka":
        node = Node.alone()
        other = Node(node.number, node.port, node.controllers, new_cluster_id())
        return ApacheKafka(folder / "a", node=node), ApacheKafka(folder / "b", node=other)
    first = SimBroker(folder / "a")
    return first, SimBroker(folder / "b", ports=first.ports)


@pytest.mark.live
@pytest.mark.parametrize(
    "kind",
    [
        "broker_sim",
        pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.weekly]),
    ],
)
def test_a_broker_of_another_cluster_is_refused_at_the_first_request(
    kind: str, tmp_path: Path
) -> None:
    """KIP-1242. The topics there may have the names and the offsets of the cluster before."""
    check_available(kind)
    first, second = two_clusters(kind, tmp_path)

    def ask(node: int) -> Operation[tuple[Outcome, ...]]:
        message = APIS[ApiKey.METADATA].request(topics=[])
        outcomes: tuple[Outcome, ...] = yield Calls((Call(node, message, 20_000),))
        return outcomes

    with Client(first.bootstrap_servers) as client:
        with first:
            client.run(refresh_metadata(client.session, ()))
            (node,) = client.session.cluster.nodes
        with second:
            (outcome,) = client.run(ask(node))
            assert isinstance(outcome, Unanswered)
            assert not outcome.sent
            assert f"is not broker {node} of cluster" in outcome.reason
            with pytest.raises(WrongCluster):
                client.run(refresh_metadata(client.session, ()))
