"""A broker process whose disk is full for a while, and librdkafka that waits for it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.brokers.probe import wait_until
from support.brokers.sim_broker import SMALL_BROKER, SimBroker
from support.clients.librdkafka import create_topic, read_topic

MEBIBYTE = 1024 * 1024
RECORDS = 400
RECORD_BYTES = 20_000
UNLIMITED = resource.RLIM_INFINITY


class Sender(threading.Thread):
    """An idempotent producer of numbered records that waits as long as it takes."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.delivered: list[int] = []
        self.failures: list[str] = []
        self._servers = bootstrap
        self._topic = topic

    def run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 0,
             "message.timeout.ms": 120_000, "retry.backoff.ms": 20, "batch.size": 50_000,
             "reconnect.backoff.max.ms": 200}
        )  # fmt: skip
        for number in range(RECORDS):
            producer.produce(self._topic, value_of(number), on_delivery=self._report(number))
            producer.poll(0)
        producer.flush(120)

    def _report(self, number: int):
        def report(error, _message) -> None:
            if error is None:
                self.delivered.append(number)
            else:
                self.failures.append(str(error))

        return report


def value_of(number: int) -> bytes:
    return f"{number:08d}".encode() + os.urandom(4).hex().encode() * (RECORD_BYTES // 8)


def numbers_in(bootstrap: str, topic: str) -> list[int]:
    return [int(each.value[:8]) for each in read_topic(bootstrap, topic)]


def check_all_there(sender: Sender, bootstrap: str, topic: str) -> None:
    sender.join(120)
    assert not sender.is_alive()
    assert sender.failures == []
    assert sorted(numbers_in(bootstrap, topic)) == list(range(RECORDS))


def log_text(folder: Path) -> str:
    return (folder / "broker-0.log").read_text(errors="replace")


def test_a_limit_that_writes_run_into_costs_retries_and_no_record(tmp_path):
    """No file may grow beyond 3 MB for a while: a log of 8 MB cannot be written."""
    with SimBroker(tmp_path) as broker:
        topic = create_topic(broker.bootstrap_servers, "limited")
        pid = broker.cluster.pid(0)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (3 * MEBIBYTE, UNLIMITED))
        sender = Sender(broker.bootstrap_servers, topic)
        sender.start()
        wait_until(lambda: "no free space: writing" in log_text(tmp_path), "a write without space")
        delivered = set(sender.delivered)
        assert delivered <= set(numbers_in(broker.bootstrap_servers, topic))
        wait_until(lambda: log_text(tmp_path).count("no free space: writing") > 1, "another try")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        check_all_there(sender, broker.bootstrap_servers, topic)
        assert broker.cluster.pid(0) == pid
        broker.restart()
        assert sorted(numbers_in(broker.bootstrap_servers, topic)) == list(range(RECORDS))


SMALL_DISK = """
set -e
mount -t tmpfs -o size=24m tmpfs "$1"
dd if=/dev/zero of="$1/filler" bs=1M count=18 status=none
shift
exec "$@"
"""


@pytest.mark.chaos
@pytest.mark.parametrize("reserved_bytes", [2 * MEBIBYTE, 0])
def test_a_small_file_system_that_is_full_for_a_while(tmp_path, reserved_bytes):
    """With a reserve, writes stop before the space is gone; without one, they reach the end."""
    disk = tmp_path / "disk"
    disk.mkdir()
    settings = SMALL_BROKER | {"log.dir.reserved.bytes": str(reserved_bytes)}
    command = [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(disk), "--port", "0"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with (tmp_path / "broker-0.log").open("w") as log:
        broker = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", SMALL_DISK, "sh", str(disk), *command],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        bootstrap = broker.stdout.readline().strip().rpartition("=")[2]
        topic = create_topic(bootstrap, "filling")
        sender = Sender(bootstrap, topic)
        sender.start()
        said = "writes are refused" if reserved_bytes else "no free space: writing"
        wait_until(lambda: said in log_text(tmp_path), "the disk to be full")
        assert set(sender.delivered) <= set(numbers_in(bootstrap, topic))
        assert len(set(sender.delivered)) < RECORDS
        inside = ["nsenter", "-t", str(broker.pid), "-U", "-m", "--preserve-credentials"]
        subprocess.run([*inside, "rm", str(disk / "filler")], check=True)
        check_all_there(sender, bootstrap, topic)
        assert broker.poll() is None
    finally:
        broker.terminate()
        assert broker.wait(30) == 0
        broker.stdout.close()
