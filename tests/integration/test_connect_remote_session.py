"""Spark Connect: jobs in a remote session, and the death of the server that runs them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.librdkafka import create_topic
from support.spark.connect_server import ConnectServer
from support.spark.spark_copy import CopyQuery

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]

JOB = "copy_job.py"
"""The job that spark-submit runs in the tests of the driver's kills: nothing in it is changed."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConnectServer]:
    """A server that no test has started yet."""
    made = ConnectServer(tmp_path / "server")
    yield made
    made.stop()


@pytest.mark.parametrize(
    "failpoints",
    [
        "offset_log:after:kill-driver",
        "txn_offset_commit:after:kill-driver@1",
        "end_txn:after:kill-driver@1",
        "commit_log:before:kill-driver@1",
    ],
)
def test_a_remote_query_goes_on_exactly_once_after_its_server_died_at(
    server: ConnectServer, broker, tmp_path: Path, unique: Callable[[str], str], failpoints: str
) -> None:
    query = CopyQuery(tmp_path / "query", broker.bootstrap_servers, unique("remote"))
    query.feed(3 * query.batch_size)
    server.start(failpoints)
    client = server.client(JOB, *query.arguments())
    try:
        assert server.wait() in (-signal.SIGKILL, 128 + signal.SIGKILL)
    finally:
        client.kill()
        client.communicate()
    query.feed(query.batch_size)
    server.start()
    server.run(JOB, *query.arguments())
    query.check_exactly_once()
    last = max(query.logged("offsets"))
    assert query.logged("commits") == list(range(last + 1))
    if failpoints.startswith("end_txn"):
        assert set(query.output("read_uncommitted").values()) == {1}, "a committed batch came again"


def test_batch_writes_reads_and_two_sinks_of_a_remote_session_give_each_row_once(
    server: ConnectServer, broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    server.start()
    topics = [create_topic(broker.bootstrap_servers, unique(name), 2) for name in ("words", "sums")]
    printed = server.run(
        "connect_job.py", broker.bootstrap_servers, *topics, str(tmp_path / "counts")
    )
    values = [value for _, value in json.loads(printed.splitlines()[-1])]
    counted = ["a=2", "b=1", "c=1"]
    words = ["a", "b", "a", "c"]
    assert sorted(values) == sorted([*words, *words, *counted, *counted]), "of both sinks, letters"
