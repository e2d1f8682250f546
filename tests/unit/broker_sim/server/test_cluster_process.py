"""Several brokers and their registry as processes: they find each other, lose each other, stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest
from support.brokers.probe import wait_for, wait_until
from support.brokers.registry_client import RegistryConnection
from support.clients.librdkafka import create_topic, producer, read_topic
from support.raw.raw import Connection

from broker_sim import REGISTRY, ClusterError, LocalCluster
from broker_sim.apis import RegistryApiKey
from txnlog_kafka.wire.messages import APIS, ApiKey

CONFIG = {"registry.session.timeout.ms": 4_000, "registry.heartbeat.interval.ms": 500}


def port_of(cluster: LocalCluster, broker_id: int) -> int:
    return int(cluster.bootstrap_servers.split(",")[broker_id].rpartition(":")[2])


def ask(port: int) -> object:
    with Connection(port) as connection:
        return connection.ask(APIS[ApiKey.DESCRIBE_CLUSTER].request(), 1)


def known_to(cluster: LocalCluster, broker_id: int) -> dict[int, int]:
    """Port by id of the brokers that this one knows."""
    return {each.broker_id: each.port for each in ask(port_of(cluster, broker_id)).brokers}


def controller_of(cluster: LocalCluster) -> int | None:
    """Return the id of the controller that the registry names, or None while there is no
    controller."""
    with RegistryConnection(cluster.registry_port) as connection:
        answer = connection.ask(
            RegistryApiKey.REGISTRY_GET_NODES, session_id=-1, paths=["/controller"], prefix=None
        )
    return json.loads(answer.nodes[0].data)["broker"] if answer.nodes else None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), brokers=3, config=CONFIG) as made:
        yield made


def ports(cluster: LocalCluster, *broker_ids: int) -> dict[int, int]:
    return {each: port_of(cluster, each) for each in broker_ids}


def test_all_brokers_know_each_other_one_controller_and_one_cluster(cluster):
    everybody = ports(cluster, 0, 1, 2)
    assert len(set(everybody.values())) == 3
    for each in everybody:
        wait_for(lambda each=each: known_to(cluster, each), everybody)
    assert len({ask(port).cluster_id for port in everybody.values()}) == 1
    assert controller_of(cluster) in everybody


def test_a_killed_controller_is_replaced_and_comes_back_with_an_empty_disk_and_its_port(cluster):
    dead = controller_of(cluster)
    left = [each for each in (0, 1, 2) if each != dead]
    everybody = ports(cluster, 0, 1, 2)
    cluster.kill(dead)
    assert not cluster.is_running(dead)
    for each in left:
        wait_for(lambda each=each: known_to(cluster, each), ports(cluster, *left))
    wait_until(lambda: controller_of(cluster) in left, "a new controller")
    shutil.rmtree(cluster.broker_dir(dead))
    cluster.start(dead)
    for each in everybody:
        wait_for(lambda each=each: known_to(cluster, each), everybody)


def test_a_paused_broker_is_taken_for_dead_and_registers_again_when_it_goes_on(cluster):
    everybody = ports(cluster, 0, 1, 2)
    cluster.pause(2)
    wait_for(lambda: known_to(cluster, 0), ports(cluster, 0, 1))
    cluster.resume(2)
    for each in everybody:
        wait_for(lambda each=each: known_to(cluster, each), everybody)


class Load:
    """Numbered records to three partitions in turn, acknowledged by all in sync, until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = producer(bootstrap, acks="all", enable_idempotence=True)
        self._sent = 0
        self.acknowledged = 0
        self.failures: list[object] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            if self._sent - self.acknowledged < 300:
                value = str(self._sent).encode()
                partition = self._sent % 3
                self._producer.produce("kept", value, partition=partition, on_delivery=self._report)
                self._sent += 1
            self._producer.poll(0.005)
        self._producer.flush(60)

    def _report(self, error: object, _message: object) -> None:
        self.acknowledged += error is None
        if error is not None:
            self.failures.append(error)

    def go_on(self, count: int = 100) -> None:
        """Return when so many more are acknowledged."""
        wanted = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= wanted, f"{count} more records")

    def stop(self) -> int:
        """Stop producing; return the number of records, after checking that each was answered."""
        self._ends.set()
        self._thread.join(60)
        assert self.failures == []
        assert self.acknowledged == self._sent
        return self._sent


def test_a_rolling_restart_a_kill_and_a_lost_disk_under_load_cost_nothing(cluster):
    create_topic(cluster.bootstrap_servers, "kept", 3)
    load, ports_of_all = Load(cluster.bootstrap_servers), ports(cluster, 0, 1, 2)

    def in_sync_again() -> None:
        for port in ports_of_all.values():
            wait_until(lambda port=port: in_sync(port) == {(0, 1, 2)}, "all replicas in sync")
        load.go_on()

    try:
        load.go_on()
        for each in ports_of_all:
            cluster.restart(each)
            in_sync_again()
        cluster.kill(REGISTRY)
        load.go_on()
        cluster.start()
        cluster.kill(0)
        load.go_on()
        shutil.rmtree(cluster.broker_dir(0))
        cluster.start(0)
        in_sync_again()
    finally:
        sent = load.stop()
    # Each of them is on the broker whose disk was lost, too: it may lead what the others do not.
    cluster.kill(2)
    found = read_topic(cluster.bootstrap_servers, "kept", isolation="read_uncommitted")
    assert [int(each.value) for each in found] == [
        each for number in range(3) for each in range(number, sent, 3)
    ]
    cluster.start(2)
    for each in ports_of_all:
        wait_for(lambda each=each: known_to(cluster, each), ports_of_all)


NOTING_MAIN = """
import os, sys
from broker_sim.__main__ import main
from broker_sim.server.system import System

def note(_, descriptor):
    print("forgotten", os.readlink(f"/proc/self/fd/{descriptor}"), file=sys.stderr, flush=True)

System.forget_pages = note
sys.exit(main())
"""
"""Log line of a broker about the files whose pages in the cache it does not trust."""


def test_after_an_unclean_stop_a_broker_of_a_cluster_reads_its_logs_from_the_medium(cluster):
    """A killed broker reads its logs from the disk, not from the cache, before it serves."""
    create_topic(cluster.bootstrap_servers, "before")
    writer = producer(cluster.bootstrap_servers, acks="all")
    writer.produce("before", b"paid")
    assert writer.flush(60) == 0
    arguments = psutil.Process(cluster.pid(2)).cmdline()[3:]  # of `python -m broker_sim`
    arguments[arguments.index("--port") + 1] = str(port_of(cluster, 2))
    cluster.kill(2)
    process = subprocess.Popen(
        [sys.executable, "-c", NOTING_MAIN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline().startswith("READY ")
        create_topic(cluster.bootstrap_servers, "after")
        for port in ports(cluster, 0, 1, 2).values():
            wait_until(lambda port=port: in_sync(port) == {(0, 1, 2)}, "all replicas in sync")
    finally:
        process.terminate()
        noted = process.communicate(timeout=600)[1].splitlines()
        cluster.start(2)
    log = "00000000000000000000.log"
    assert any(line.endswith(f"/broker-2/before-0/{log}") for line in noted)
    assert not any("/after-0/" in line for line in noted)


def test_brokers_whose_registry_has_lost_its_directory_stop_and_keep_all_until_it_is_back(cluster):
    """docs/internals/faults.md K4.

    The test follows the errors' advice: it restores the directory.
    """
    create_topic(cluster.bootstrap_servers, "paid", 3)
    writer = producer(cluster.bootstrap_servers, acks="all")
    for number in range(300):
        writer.produce("paid", str(number).encode(), partition=number % 3)
    assert writer.flush(60) == 0
    found = [each.value for each in read_topic(cluster.bootstrap_servers, "paid")]
    assert len(found) == 300
    registry, kept = cluster.data_dir / "registry", cluster.data_dir / "kept"
    cluster.kill(REGISTRY)
    registry.rename(kept)
    cluster.start(REGISTRY)
    wait_until(lambda: not any(map(cluster.is_running, range(3))), "the end of all brokers")
    for number in range(3):
        said = (cluster.data_dir / f"broker-{number}.log").read_text()
        assert "put the registry's own one back" in said
        with pytest.raises(ClusterError, match="or the metadata log was removed"):
            cluster.start(number)
    cluster.kill(REGISTRY)
    shutil.rmtree(registry)
    kept.rename(registry)
    cluster.start()
    wait_for(lambda: [each.value for each in read_topic(cluster.bootstrap_servers, "paid")], found)


def in_sync(port: int) -> set[tuple[int, ...]]:
    """The ISRs of all partitions, as the broker of this port knows them."""
    message = APIS[ApiKey.METADATA].request(topics=None, allow_auto_topic_creation=False)
    with Connection(port) as connection:
        topics = connection.ask(message, 9).topics
    return {tuple(sorted(each.isr_nodes)) for topic in topics for each in topic.partitions}


def run_cluster(tmp_path, *arguments: str) -> tuple[subprocess.Popen, list[psutil.Process], str]:
    """The command, its processes and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(tmp_path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    return process, psutil.Process(process.pid).children(), line


def test_one_command_runs_a_cluster_and_stops_it(tmp_path):
    process, children, line = run_cluster(tmp_path, "--brokers", "2", "--port", "0")
    with process:
        found = [int(each.rpartition(":")[2]) for each in line.strip().split(",")]
        assert line.startswith("READY bootstrap.servers=127.0.0.1:")
        assert len(children) == 3
        wait_until(lambda: {each.port for each in ask(found[0]).brokers} == set(found), "both")
        process.terminate()
        assert process.wait(60) == 0
    assert not any(each.is_running() for each in children)
    for each in ("broker-0", "broker-1"):
        assert (tmp_path / each / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "registry").is_dir()


def test_who_ends_is_named_and_when_the_command_is_killed_everything_stops(tmp_path):
    process, children, _ = run_cluster(tmp_path, "--brokers", "2", "--port", "0")
    with process:
        (registry,) = [each for each in children if "registry" in each.cmdline()]
        registry.kill()
        line = process.stderr.readline()
        assert "registry has ended; the reason is in registry.log" in line
        os.kill(process.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(children, 60)
    assert (len(gone), alive) == (3, [])


APPLICATION = """
import sys
from broker_sim import REGISTRY, LocalCluster

cluster = LocalCluster(sys.argv[1], brokers=3)
cluster.start()
print(cluster.bootstrap_servers, flush=True)
input()
cluster.kill(2)
print("killed", flush=True)
input()
"""


def test_when_an_application_is_killed_while_a_broker_is_down_everything_stops(tmp_path):
    """The two that are left fetch from each other, as replicas of one topic."""
    process = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        servers = process.stdout.readline().strip()
        port = int(servers.split(",")[0].rpartition(":")[2])
        create_topic(servers, "kept", 6)
        wait_until(lambda: in_sync(port) == {(0, 1, 2)}, "the replicas")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "killed\n"
        children = psutil.Process(process.pid).children()
        process.kill()
    assert len(children) == 3
    _, alive = psutil.wait_procs(children, 60)
    for each in alive:
        each.kill()
    assert alive == []
