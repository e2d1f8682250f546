"""The broker as a process: READY, clean errors, locks, kill and restart."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
from support.raw.raw import Connection

from broker_sim import ClusterError, LocalCluster
from broker_sim.__main__ import EXIT_CANNOT_START, EXIT_STORAGE_FAILED, main
from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import Start
from broker_sim.server import broker_server, process
from broker_sim.server.broker_server import BrokerServer
from broker_sim.server.connections import Connections
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage
from broker_sim.server.system import System
from txnlog_kafka.wire.messages import APIS, ApiKey


def start_arguments(tmp_path, *more: str) -> list[str]:
    return ["start", "--data-dir", str(tmp_path), "--port", "0", *more]


@pytest.fixture
def cluster(tmp_path):
    with LocalCluster(tmp_path / "data") as made:
        yield made


def port_of(cluster: LocalCluster) -> int:
    return int(cluster.bootstrap_servers.rpartition(":")[2])


def cluster_id(cluster: LocalCluster) -> str:
    with Connection(port_of(cluster)) as connection:
        return connection.ask(APIS[ApiKey.DESCRIBE_CLUSTER].request(), 1).cluster_id


def test_a_cluster_keeps_its_port_and_its_data_over_kill_and_restart(cluster):
    servers, identity = cluster.bootstrap_servers, cluster_id(cluster)
    cluster.kill()
    assert not cluster.is_running()
    cluster.restart()
    assert cluster.bootstrap_servers == servers
    assert cluster_id(cluster) == identity
    cluster.restart()
    assert cluster_id(cluster) == identity


def test_nobody_else_gets_the_port_of_a_broker_that_is_down(cluster):
    cluster.kill()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port_of(cluster)))
    cluster.restart()


def test_a_clean_stop_leaves_the_marker_and_a_kill_does_not(cluster):
    marker = cluster.broker_dir() / ".kafka_cleanshutdown"
    assert not marker.exists()
    cluster.stop()
    assert marker.exists()
    cluster.start()
    assert not marker.exists()
    cluster.kill()
    assert not marker.exists()


def test_two_brokers_on_one_directory_are_refused(cluster, capsys):
    code = main(start_arguments(cluster.data_dir))
    assert code == EXIT_CANNOT_START
    assert "another broker is running on" in capsys.readouterr().err


def test_a_port_in_use_is_named(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = main(["start", "--data-dir", str(tmp_path), "--port", str(port)])
    assert code == EXIT_CANNOT_START
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "num.partitons=1"], "did you mean num.partitions"),
        (["--set", "num.partitions"], "--set takes KEY=VALUE"),
        (["--brokers", "0"], "--brokers 0 is not between 1 and 100"),
        (["--brokers", "2", "--port", "65535"], "leaves no ports for 2 brokers"),
        (["--brokers", "2", "--metrics-port", "0"], "--metrics-port is of one broker"),
        (["--brokers", "2", "--set", "node.id=1"], "node.id is set for each of 2 brokers"),
        (["--brokers", "2", "--set", "listeners=A://h:1"], "listeners cannot be set with"),
        (["--port", "70000"], "--port 70000"),
        (["--config", "/no/such.properties"], "cannot read"),
        (["--set", "advertised.listeners=SSL://h:1"], "one address of each listener: PLAINTEXT"),
        (["--set", "registry.connect=h"], "registry.connect must be host:port, not 'h'"),
        (
            ["--set", "registry.connect=h:1", "--set", "security.inter.broker.protocol=SSL"],
            "registry.connect needs the listener SSL",
        ),
        (
            [
                *("--set", "registry.connect=h:1"),
                *("--set", "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT"),
                *("--set", "sasl.enabled.mechanisms=PLAIN"),
                *("--set", "sasl.mechanism.inter.broker.protocol=PLAIN"),
                "--set",
                "listener.name.plaintext.plain.sasl.jaas.config="
                'x.PlainLoginModule required user_a="b";',
            ],
            "sasl.jaas.config must have username=..., by which brokers log in to each other",
        ),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(tmp_path, capsys, arguments, says):
    assert main(start_arguments(tmp_path, *arguments)) == EXIT_CANNOT_START
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert main(["start", "--data-dir", str(path), "--port", "0"]) == EXIT_CANNOT_START
    assert "cannot use the data directory" in capsys.readouterr().err


class UnknownBroker(process.Broker):
    """The registry never lists it; at once somebody stops it."""

    is_serving = False

    def step(self, item, now_ms: int, monotonic_ms: int):
        if isinstance(item, Start):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        return super().step(item, now_ms, monotonic_ms)


def test_a_broker_that_is_stopped_before_it_serves_stops_cleanly_and_never_said_ready(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(process, "Broker", UnknownBroker)
    monkeypatch.setattr(broker_server, "Broker", UnknownBroker)
    assert main(start_arguments(tmp_path)) == 0
    assert "READY" not in capsys.readouterr().out
    assert (tmp_path / "broker-0" / ".kafka_cleanshutdown").exists()


def test_a_failing_fsync_ends_the_process_with_its_own_code_and_last_line(
    tmp_path, capsys, monkeypatch
):
    def fails(_system: System, _descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(System, "sync", fails)
    assert main(start_arguments(tmp_path)) == EXIT_STORAGE_FAILED
    last = capsys.readouterr().err.splitlines()[-1]
    assert "the storage failed, and the broker stops: fsync of" in last
    assert "Input/output error" in last


def test_a_disk_without_room_to_start_is_named(tmp_path, capsys, monkeypatch):
    def fails(_system: System, _descriptor: int, _data: bytes, _position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(System, "write", fails)
    assert main(start_arguments(tmp_path)) == EXIT_CANNOT_START
    assert "there is no free space to recover in" in capsys.readouterr().err


def test_a_broker_that_cannot_start_is_an_error_with_its_reason(tmp_path):
    cluster = LocalCluster(tmp_path, config={"num.partitions": 0})
    with pytest.raises(ClusterError, match=r"num\.partitions must be between"):
        cluster.start()


def test_a_broker_ends_with_the_process_that_wanted_it(tmp_path):
    wanted = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    command = [sys.executable, "-m", "broker_sim", *start_arguments(tmp_path)]
    broker = subprocess.Popen(
        [*command, "--exit-with-pid", str(wanted.pid)], stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout.readline().startswith("READY bootstrap.servers=127.0.0.1:")
    os.kill(wanted.pid, signal.SIGKILL)
    wanted.communicate()
    assert broker.wait(60) == 0
    broker.stdout.close()


def test_a_broker_whose_application_ended_stays_until_its_last_client_has_gone(monkeypatch):
    monkeypatch.setattr(process, "PARENT_POLL_SECONDS", 0)
    monkeypatch.setattr(process, "LINGER_SECONDS", 0.05)

    async def story() -> None:
        looks, is_there = 0, True

        def clients_were_there() -> bool:
            nonlocal looks
            looks += 1
            return is_there

        stopping = asyncio.Event()
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        watcher = asyncio.create_task(process.watch_parent(gone.pid, clients_were_there, stopping))
        while looks < 3:
            await asyncio.sleep(0)
        until = time.monotonic() + 2 * process.LINGER_SECONDS
        while time.monotonic() < until:
            pass  # the process stands still for longer than it waits for anybody
        while looks < 6 and not stopping.is_set():
            await asyncio.sleep(0)
        assert not stopping.is_set()
        is_there = False
        await watcher
        assert stopping.is_set()

    asyncio.run(story())


class Client:
    """The fields of a connection that `Connections` reads."""

    peer = "127.0.0.1"

    def __init__(self, connection_id: int, *, is_of_broker: bool = False) -> None:
        self.connection_id = connection_id
        self.is_of_broker = is_of_broker


def test_a_client_that_came_and_went_between_two_looks_was_there():
    connections = Connections(BrokerConfig())
    assert not connections.clients_were_there()
    connections.add(Client(1))
    assert connections.clients_were_there()
    connections.remove(Client(1))
    assert connections.clients_were_there()
    assert not connections.clients_were_there()


def test_another_broker_is_no_client_however_often_it_connects():
    connections = Connections(BrokerConfig())
    brokers = [Client(number, is_of_broker=True) for number in range(2)]
    for broker in brokers:
        connections.add(broker)
    connections.remove(brokers[0])
    assert not connections.clients_were_there()
    connections.add(Client(2))  # it has not asked anything
    assert connections.clients_were_there()


def test_an_idle_connection_is_closed(tmp_path):
    config = {"connections.max.idle.ms": 200}
    with LocalCluster(tmp_path, config=config) as cluster, Connection(port_of(cluster)) as idle:
        assert idle.closed_by_peer()


def test_connections_over_the_limit_are_closed_at_once(tmp_path):
    message = APIS[ApiKey.API_VERSIONS].request(
        client_software_name="a", client_software_version="1"
    )
    with (
        LocalCluster(tmp_path, config={"max.connections": 1}) as cluster,
        Connection(port_of(cluster)) as first,
        Connection(port_of(cluster)) as second,
    ):
        assert second.closed_by_peer()
        assert first.ask(message, 3).error_code == 0


METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"


def test_a_damaged_metadata_log_refuses_the_start_with_file_and_position(cluster, capsys):
    cluster.kill()
    path = cluster.broker_dir() / METADATA_LOG
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert main(start_arguments(cluster.data_dir)) == EXIT_CANNOT_START
    assert f"{METADATA_LOG}: no valid batch at position 0" in capsys.readouterr().err
    assert path.read_bytes() == data


def test_what_a_crash_has_torn_is_told_with_file_and_position(tmp_path, caplog):
    async def live() -> None:
        storage = FileStorage(tmp_path)
        config = BrokerConfig()
        host = BrokerServer(
            lambda: Broker(config, storage, random.Random(1)),
            storage,
            config,
            SpaceGuard(tmp_path, 0),
        )
        host.start()
        host.stop()

    asyncio.run(live())
    path = tmp_path / METADATA_LOG
    size_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"torn")
    asyncio.run(live())
    assert path.stat().st_size > size_bytes
    told = [record for record in caplog.records if "log-recovered" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert METADATA_LOG in told[0].getMessage()
    assert f"'position': {size_bytes}" in told[0].getMessage()
