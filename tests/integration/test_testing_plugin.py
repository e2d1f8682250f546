"""The pytest plugin as its users have it: fixtures, names of a test's own, and failed tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.brokers.probe import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = """
from confluent_kafka import Producer

def test_rows_are_read(kafka):
    kafka.produce("orders", [{"id": 1}, ("key", "value")])
    assert [each.value for each in kafka.records("orders")] == [b'{"id": 1}', b"value"]
    assert kafka.topics() == ["orders"]
    assert kafka.topic("orders").startswith("test_rows_are_read-")

def test_no_other_test_is_seen(kafka):
    assert kafka.topics() == []
    with kafka.expect("orders", count=1) as new:
        kafka.produce("orders", ["row"])
    assert new[0].value == b"row"

def test_a_broker_may_be_killed(kafka):
    kafka.fault("Metadata", error="NOT_CONTROLLER", times=0)
    kafka.cluster.kill()

def test_and_the_next_test_finds_it_running_and_without_rules(kafka):
    kafka.produce("orders", ["row"])
    assert len(kafka.records("orders")) == 1
    assert kafka.lag("nobody") == {}

def test_a_cluster_of_three(kafka_cluster):
    cluster = kafka_cluster(brokers=3)
    cluster.create_topic("orders", partitions=3)
    cluster.kill(1)
    cluster.produce("orders", [(str(n), n) for n in range(30)])
    assert len(cluster.records("orders")) == 30
"""
FAILING = """
from confluent_kafka import Producer

def test_that_fails(kafka):
    topic = kafka.topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"row")
    producer.commit_transaction()
    assert kafka.records("orders") == []
"""


def run_pytest(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a test file of a user, in a folder of its own, with the plugin alone."""
    (folder / "test_of_a_user.py").write_text(text)
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def command(*arguments: str) -> list[str]:
    plugin = ("-p", "txnlog_testing.plugin")
    return [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", *arguments]


def environment() -> dict[str, str]:
    # The plugin's entry point is named here, so that a checkout without `make setup` has it.
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
    }


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param((), id="one"),
        pytest.param(("-p", "xdist", "-n", "2"), marks=pytest.mark.weekly, id="xdist"),
    ],
)
def test_fixtures_do_what_the_page_says(tmp_path: Path, workers: tuple[str, ...]) -> None:
    ran = run_pytest(tmp_path, TESTS, *workers)
    assert "5 passed" in ran.stdout, ran.stdout[-3000:] + ran.stderr[-2000:]


def test_a_failed_test_names_the_timeline_of_its_transaction_and_how_to_repeat_it(tmp_path: Path):
    ran = run_pytest(tmp_path, FAILING)
    assert "1 failed" in ran.stdout
    (drawn,) = re.findall(r"transaction: (\S+\.svg)", ran.stdout)
    assert "CompleteCommit" in Path(drawn).read_text()
    assert "again: python -m pytest 'test_of_a_user.py::test_that_fails'" in ran.stdout


def test_brokers_end_when_pytest_is_killed(tmp_path: Path):
    text = "def test_it(kafka):\n    print('PID', kafka.cluster.pid(), flush=True)\n    input()\n"
    (tmp_path / "test_of_a_user.py").write_text(text)
    running = subprocess.Popen(
        command("-s"), cwd=tmp_path, env=environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    pid = next(int(found[1]) for line in running.stdout if (found := re.search(r"PID (\d+)", line)))
    running.send_signal(signal.SIGKILL)
    running.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the broker to be gone")


def test_the_plugin_imports_nothing_before_a_fixture_is_used(tmp_path: Path):
    text = (
        "import sys\n"
        "def test_it():\n"
        "    rooms = {name.partition('.')[0] for name in sys.modules}\n"
        "    assert not rooms & {'broker_sim', 'txnlog_kafka', 'txnlog_spark', 'pyspark',"
        " 'pyarrow', 'numpy'}\n"
        "    ours = {name for name in sys.modules if name.startswith('txnlog_testing')}\n"
        "    assert ours == {'txnlog_testing', 'txnlog_testing.plugin'}\n"
    )
    began = time.monotonic()
    ran = run_pytest(tmp_path, text)
    assert "1 passed" in ran.stdout, (ran.stdout[-2000:], time.monotonic() - began)
