"""The fixture `kafka`: a broker that many tests share, and names that no other test has."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_sim import LocalCluster
from broker_sim.client.fault import Fault
from broker_sim.client.kafka import KafkaHelpers

if TYPE_CHECKING:
    from broker_sim.cli.timeline_logs import TransactionHistory

AT_ONCE: Mapping[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}
"""A new group gets its partitions at once."""
CLUSTER_CONFIG: Mapping[str, str | int | bool] = {
    **AT_ONCE,
    "registry.session.timeout.ms": 2_000,
    "registry.heartbeat.interval.ms": 500,
}
"""A broker that is killed is missed after two seconds."""
NAME_CHARACTERS_MAX = 60


class TestKafka(KafkaHelpers):
    """Helpers on the session's broker, for one test: its topics have a prefix of its own.

    Each method takes a topic by the test's own name for it; `topic` returns the name that the
    program under test needs. `cluster` is the `LocalCluster`, to kill and to pause the broker.
    """

    __test__ = False

    def __init__(self, cluster: LocalCluster, test_name: str) -> None:
        self.cluster = cluster
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", test_name)[:NAME_CHARACTERS_MAX].strip("-")
        self.prefix = f"{plain}-{uuid.uuid4().hex[:8]}-"

    @property
    def bootstrap_servers(self) -> str:
        """Return the broker's `host:port`."""
        return self.cluster.bootstrap_servers

    def group(self, name: str) -> str:
        """Return a group's name that no other test has; methods take it as it is."""
        return self.topic(name)

    def fault(self, api: str, **rule: Any) -> Fault:
        """Let the broker fail at a request, until the test ends; `topic` is the test's own name."""
        if "topic" in rule:
            rule["topic"] = self.topic(rule["topic"])
        return self.cluster.fault(api, **rule)

    def write_timelines(self, folder: Path) -> list[Path]:
        """Write the timelines of the test's transactions as SVG files. Raises OSError."""
        from txnlog_testing.timelines import draw_all

        def is_own(history: TransactionHistory) -> bool:
            return any(place.topic.startswith(self.prefix) for place in history.partitions)

        pictures = draw_all(self.cluster.data_dir, is_own)
        if pictures:
            folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, picture in enumerate(pictures):
            paths.append(folder / f"{self.prefix}{number}.svg")
            paths[-1].write_text(picture, encoding="utf-8")
        return paths
