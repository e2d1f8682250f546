"""Several brokers and their registry as processes: they find each other, lose each other, stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from support.probe import wait_for, wait_until
from support.raw import Connection
from support.registry_client import RegistryConnection

from broker_sim import LocalCluster
from broker_sim.apis import RegistryApiKey
from txnlog_spark.wire.messages import APIS, ApiKey

CONFIG = {"registry.session.timeout.ms": 4_000, "registry.heartbeat.interval.ms": 500}


def port_of(cluster: LocalCluster, broker_id: int) -> int:
    return int(cluster.bootstrap_servers.split(",")[broker_id].rpartition(":")[2])


def ask(port: int) -> object:
    message = APIS[ApiKey.DESCRIBE_CLUSTER].request(
        include_cluster_authorized_operations=False, endpoint_type=1
    )
    with Connection(port) as connection:
        return connection.ask(message, 1)


def known_to(cluster: LocalCluster, broker_id: int) -> dict[int, int]:
    """Port by id of the brokers that this one knows."""
    return {each.broker_id: each.port for each in ask(port_of(cluster, broker_id)).brokers}


def controller_of(cluster: LocalCluster) -> int | None:
    """As the registry has it; None while nobody is."""
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


def test_a_broker_that_stops_is_missed_at_once_and_nobody_else(cluster):
    everybody = ports(cluster, 0, 1, 2)
    began = {each: cluster.pid(each) for each in everybody}
    cluster.restart(1)
    for each in everybody:
        wait_for(lambda each=each: known_to(cluster, each), everybody)
    assert {each for each in everybody if cluster.pid(each) != began[each]} == {1}


def produce(cluster: LocalCluster, values: range) -> None:
    """Three partitions in turn; returns when all replicas in sync have all of them."""
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, acks="all", enable_idempotence=True
    )
    sent = [producer.send("kept", str(each).encode(), partition=each % 3) for each in values]
    for each in sent:
        each.get(60)
    producer.close()


def consume(cluster: LocalCluster, count: int) -> list[int]:
    """That many values, by partition and offset."""
    partitions = [TopicPartition("kept", number) for number in range(3)]
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    consumer.assign(partitions)
    found = list(islice(consumer, count))
    consumer.close()
    return [int(each.value) for each in sorted(found, key=lambda m: (m.partition, m.offset))]


def test_what_was_acknowledged_is_read_after_a_kill_a_lost_disk_and_a_stop(cluster):
    everybody = ports(cluster, 0, 1, 2)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic("kept", 3, 3)])
    admin.close()
    produce(cluster, range(300))
    cluster.kill(0)
    produce(cluster, range(300, 600))
    shutil.rmtree(cluster.broker_dir(0))
    cluster.start(0)
    port = port_of(cluster, 0)
    wait_until(lambda: in_sync(port) == {(0, 1, 2)}, "the replica that was filled again")
    cluster.restart(1)
    wait_until(lambda: in_sync(port) == {(0, 1, 2)}, "the one that was stopped")
    cluster.kill(2)
    produce(cluster, range(600, 900))
    wanted = [each for number in range(3) for each in range(number, 900, 3)]
    assert consume(cluster, 900) == wanted
    cluster.start(2)
    for each in everybody:
        wait_for(lambda each=each: known_to(cluster, each), everybody)


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


def test_when_the_command_is_killed_everything_stops(tmp_path):
    process, children, _ = run_cluster(tmp_path, "--brokers", "2", "--port", "0")
    with process:
        os.kill(process.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(children, 60)
    assert (len(gone), alive) == (3, [])


APPLICATION = """
import sys
from broker_sim import LocalCluster

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
        admin = KafkaAdminClient(bootstrap_servers=servers)
        admin.create_topics([NewTopic("kept", 6, 3)])
        admin.close()
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
