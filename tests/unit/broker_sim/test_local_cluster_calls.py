"""Calls for a broker that does not exist name the brokers that do."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_sim import REGISTRY, ClusterError, LocalCluster


@pytest.mark.parametrize("call", ["kill", "stop", "pause", "resume", "pid"])
def test_a_call_for_a_broker_that_was_not_started_says_so(call: str, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, brokers=3)
    with pytest.raises(ClusterError, match=r"broker-1 was not started; started are \[\]"):
        getattr(cluster, call)(1)
    with pytest.raises(ClusterError, match="registry was not started"):
        getattr(cluster, call)(REGISTRY)


def test_a_start_of_a_broker_that_there_is_not_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"there is no broker 7: brokers are \[0, 1, 2\]"):
        LocalCluster(tmp_path, brokers=3).start(7)
