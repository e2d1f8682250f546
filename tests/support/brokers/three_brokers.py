"""Three brokers of either kind, by the kind's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.sim_broker import NODES, SimBroker
from support.harness.availability import check_available

KINDS = ["broker_sim_cluster", pytest.param("apache_kafka_cluster", marks=pytest.mark.chaos)]
"""Parameters of a test, with Apache Kafka in `make chaos`."""


def three_brokers(
    kind: str, folder: Path, config: dict[str, str] | None = None, **more: Any
) -> Any:
    """A cluster that is not started yet. Skips the test where the kind cannot be had."""
    if kind == "broker_sim_cluster":
        return SimBroker(folder, config, brokers=NODES, **more)
    check_available("apache_kafka")
    return KafkaCluster(folder, config, **more)
