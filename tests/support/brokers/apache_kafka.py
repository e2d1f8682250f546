"""An unmodified Apache Kafka, from its jars on Maven Central: the outside witness of every claim.

One broker that is its own controller (KRaft combined mode), on loopback and free ports. Maven
copies the jars once into `.cache/` of the repository, Kafka's command line tools among them; each
broker formats a data directory of its own. `kill()` is SIGKILL; `restart()` starts on the same
directory and ports.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.brokers.coordinators_ready import coordinators_ready
from support.brokers.prepared import nothing_prepared
from support.brokers.probe import free_ports, live_brokers, wait_until
from support.brokers.processes import START_TIMEOUT_S, Startable, started
from support.harness.maven import Unavailable, fetched_jars
from support.kafka.class_archive import AT_ITS_PLACE, archive_in

VERSION_3 = "3.9.1"
"""The last line that clusters stay on which have not gone to 4: here without ZooKeeper too."""
LOGGING = {
    VERSION_3: "org.slf4j:slf4j-reload4j:1.7.36",
    "4.3.1": "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    "4.4.0": "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5",
}
"""The versions that tests run on, and what each logs with."""
VERSION = os.environ.get("TXNLOG_KAFKA_VERSION", "4.4.0")
"""Version that tests run on unless they name another one; `make matrix` runs some tests on each.

Tests that use Kafka's Java tools need 4.4: their classes have other packages before."""
STOP_TIMEOUT_S = 60

JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN")
JVM_OPTIONS += AT_ITS_PLACE

SMALL_BROKER = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Killed members have to be given up soon.
    "group.min.session.timeout.ms": "500",
    # Killed brokers come back at once: their old registration must not stand in the way.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    # Tests wait for a transaction to time out.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # The tests' topics are many and small.
    "log.index.size.max.bytes": "65536",
    "log.segment.delete.delay.ms": "1000",
    # Records of tests have stamps of years ago: only who asks for checks of retention gets them.
    "log.retention.check.interval.ms": "86400000",
}


_formatted: dict[tuple[str, int, int], tuple[str, dict[str, bytes]]] = {}
"""Cluster id and files that kafka.tools.StorageTool wrote, by version, node and transaction
version. Each run of the tool takes a second, and its output depends on no other setting."""


def jars(version: str = VERSION) -> Path:
    """The folder of Kafka's jars, fetched on the first call. Unavailable says why not."""
    artifacts = {
        f"org.apache.kafka:kafka_2.13:{version}": "",
        f"org.apache.kafka:kafka-tools:{version}": "org.apache.kafka:connect-runtime",
        LOGGING[version]: "",
    }
    return fetched_jars("Apache Kafka", f"apache-kafka/{version}", artifacts)


def shared_classes(version: str = VERSION) -> str:
    """The option of a JVM that has Kafka's jars first on its class path: it starts in half the time
    with the classes that another one had in memory (class data sharing)."""
    folder = jars(version)
    archive = archive_in(folder, folder / "complete")
    with (folder / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _archive_classes(version, archive)
    return f"-XX:SharedArchiveFile={archive}"


def _archive_classes(version: str, archive: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        new = Path(name) / "classes.jsa"
        with ApacheKafka(
            Path(name) / "broker", version=version, java_option=f"-XX:ArchiveClassesAtExit={new}"
        ):
            pass  # it is written at a clean stop
        if new.exists():
            shutil.move(new, archive)
        else:  # a JVM that cannot: it takes an empty one for none
            archive.touch()


@dataclass(frozen=True)
class Node:
    """A broker's place in its cluster; `controllers` are the ports of all nodes' controllers."""

    number: int
    port: int
    controllers: dict[int, int]
    cluster_id: str

    @classmethod
    def alone(cls) -> Node:
        port, controller = free_ports(2)
        return cls(1, port, {1: controller}, new_cluster_id())


def new_cluster_id() -> str:
    """Return a cluster id as Kafka's own tool makes it. Kafka takes a leading dash for an
    option."""
    return "k" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


class ApacheKafka(Startable):
    """Apache Kafka broker, a context manager; `bootstrap_servers` is valid from construction on."""

    name = "apache_kafka"

    def __init__(
        self,
        folder: Path,
        config: dict[str, str] | None = None,
        *,
        transaction_version: int = 2,
        version: str = VERSION,
        node: Node | None = None,
        java_option: str | None = None,
        security: Any = None,
    ) -> None:
        """`security` is of `secured_kafka` or `tls_kafka`."""
        self.security = security
        self.folder = folder
        self.version = version
        self.data_dir = folder / "data"
        self._node = Node.alone() if node is None else node
        self.port = self._node.port
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._java = ["java", *JVM_OPTIONS, java_option or shared_classes(version)]
        self._java += ["-cp", f"{jars(version)}/*"]
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "server.properties"
        settings = self._settings()
        settings |= {} if security is None else security.settings(settings)
        settings |= SMALL_BROKER | (config or {})
        self._group_partitions = int(settings["offsets.topic.num.partitions"])
        self._transaction_partitions = int(settings["transaction.state.log.num.partitions"])
        # The first check of retention comes after a delay of its own.
        settings["log.initial.task.delay.ms"] = settings["log.retention.check.interval.ms"]
        lines = (f"{key}={value}\n" for key, value in settings.items())
        self._properties.write_text("".join(lines))
        self._format(transaction_version)

    def _settings(self) -> dict[str, str]:
        client = f"PLAINTEXT://127.0.0.1:{self.port}"
        controller = f"127.0.0.1:{self._node.controllers[self._node.number]}"
        voters = (f"{n}@127.0.0.1:{port}" for n, port in self._node.controllers.items())
        return {
            "process.roles": "broker,controller",
            "node.id": str(self._node.number),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{client},CONTROLLER://{controller}",
            "advertised.listeners": client,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_dir),
        }

    def _format(self, transaction_version: int) -> None:
        cluster_id = self._node.cluster_id
        key = self.version, self._node.number, transaction_version
        if key not in _formatted:
            self._run_storage_tool(transaction_version, cluster_id)
            paths = [path for path in self.data_dir.rglob("*") if path.is_file()]
            files = {str(path.relative_to(self.data_dir)): path.read_bytes() for path in paths}
            _formatted[key] = cluster_id, files
            return
        old_id, files = _formatted[key]
        for name, data in files.items():
            path = self.data_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.replace(old_id.encode(), cluster_id.encode()))

    def _run_storage_tool(self, transaction_version: int, cluster_id: str) -> None:
        arguments = ["format", "-t", cluster_id, "-c", str(self._properties)]
        if self.version != VERSION_3:
            arguments += ["--feature", f"transaction.version={transaction_version}"]
        command = [*self._java, "kafka.tools.StorageTool"]
        try:
            done = subprocess.run(
                command + arguments,
                check=False, capture_output=True, text=True, timeout=START_TIMEOUT_S,
            )  # fmt: skip
        except FileNotFoundError:
            raise Unavailable("Apache Kafka is not here: `java` is not installed") from None
        if done.returncode != 0:
            raise RuntimeError(f"kafka.tools.StorageTool failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start on the data directory; return when it serves clients, its coordinators too."""
        self.launch()
        wait_until(self.is_up, "Apache Kafka to serve clients", timeout_s=START_TIMEOUT_S)
        wait_until(self._is_ready, "Apache Kafka's coordinators", timeout_s=START_TIMEOUT_S)

    def launch(self) -> None:
        command = [*self._java, "kafka.Kafka", str(self._properties)]
        environment = os.environ | {"KAFKA_HEAP_OPTS": ""}
        self._process = started(command, self.folder / "broker.log", env=environment)

    def _is_ready(self) -> bool:
        if self.security is not None:
            self.security.opened(self.bootstrap_servers)
        return coordinators_ready(
            self.port,
            group_partitions=self._group_partitions,
            transaction_partitions=self._transaction_partitions,
        )

    def is_up(self) -> bool:
        """True if the broker answers; RuntimeError with its last lines if its process has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            tail = (self.folder / "broker.log").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"Apache Kafka ended while starting:\n{tail}")
        return live_brokers(self.port) > 0

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone.

        Not while a transaction is prepared: started again, 4.x loads it before its partitions have
        a leader, takes them for deleted and never writes their markers (KAFKA-20734, found here
        with 4.3.1), so that read_committed stays blocked for ever.
        """
        if self.alive:
            wait_until(lambda: nothing_prepared(self.port), "prepared transactions to complete")
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """SIGKILL if it runs, then start on the same port."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """A clean stop; SIGKILL if that takes more than STOP_TIMEOUT_S."""
        self._end(signal.SIGTERM)

    def kill_now(self) -> None:
        """SIGKILL at once: where other brokers of the cluster carry on."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "it was not started"
        return self._process.pid
