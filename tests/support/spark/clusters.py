"""Small Spark clusters of real processes, whose machines share nothing but this one's Python.

A machine of a cluster is a folder, which is its processes' working directory, HOME and TMPDIR, and
a Spark of its own. Where the system lets a process have mounts of its own, the folder of the driver
is empty to it. `Standalone` is Spark's own cluster; `Yarn` is Hadoop's, from the jar that the tests
of HDFS use. Context managers both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.brokers.probe import free_ports, is_open, wait_until
from support.brokers.processes import START_TIMEOUT_S, started
from support.harness.maven import fetched_jars
from support.spark.spark_copy import QUICK
from support.spark.spark_home import INSTALLED
from support.stores.hdfs import server_class_path, write_configuration

WORKERS = 2
RUN_SECONDS_MAX = 300
MOUNTS = ("unshare", "--map-root-user", "--mount")
JOB_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


SCALA_VERSION = "2.13"
"""Scala version of PySpark's jars; a worker that `spark-class` did not start lacks it."""
BOUNCY_CASTLE = "1.78.1"
"""YARN's resource manager makes a CA with it, and the jar of Hadoop's servers lacks it."""


def yarn_class_path() -> str:
    """Return the class path of YARN's servers, besides their configuration; fetch it once.
    Unavailable says why it cannot be had."""
    artifacts = {f"org.bouncycastle:bcpkix-jdk18on:{BOUNCY_CASTLE}": ""}
    folder = fetched_jars("what YARN needs", f"yarn/{BOUNCY_CASTLE}", artifacts)
    return f"{server_class_path()}:{folder}/*"


def has_mounts() -> bool:
    """True if a process may have mounts of its own here."""
    if shutil.which(MOUNTS[0]) is None:
        return False
    tried = subprocess.run([*MOUNTS, "true"], check=False, capture_output=True, timeout=600)
    return tried.returncode == 0


def java_home() -> str:
    """The JDK of the command `java`."""
    return os.environ.get("JAVA_HOME") or str(Path(str(shutil.which("java"))).resolve().parents[1])


class Machine:
    """A folder with a Spark in it, and processes that see no other machine's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "spark"
        self.home.mkdir(parents=True)
        for name in ("bin", "jars", "python"):
            (self.home / name).symlink_to(INSTALLED / name)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def variables(self) -> dict[str, str]:
        """The whole environment of its processes."""
        own = str(self.folder)
        return {
            "PATH": os.environ["PATH"],
            "JAVA_HOME": java_home(),
            "HOME": own,
            "TMPDIR": own,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": SCALA_VERSION,
            "JDK_JAVA_OPTIONS": " ".join(QUICK),
        }

    def start_java(
        self, main_class: str, arguments: list[str], *, class_path: str = "", hidden: Path | None
    ) -> None:
        """Start a JVM, Spark's unless a class path is given; to it the folder `hidden` is empty."""
        class_path = class_path or f"{self.home}/jars/*"
        command = [f"{java_home()}/bin/java", "-Xmx300m", "-cp", class_path, main_class, *arguments]
        if hidden is not None:
            mount = f'mount -t tmpfs none {hidden} && exec "$@"'
            command = [*MOUNTS, "sh", "-c", mount, "sh", *command]
        log = self.folder / "log"
        self._processes.append(started(command, log, cwd=self.folder, env=self.variables))

    def run(self, block: str, **variables: str) -> str:
        """Run the lines of a document's block in the folder; what they write to stderr."""
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", block], cwd=self.folder, env=self.variables | variables,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=RUN_SECONDS_MAX,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stderr[-6000:]}"
        return done.stderr

    def stop(self) -> None:
        """Kill its processes."""
        for process in self._processes:
            process.kill()
            process.wait()


class Cluster:
    """Cluster of the driver's machine and the workers' machines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.driver = Machine(folder / "driver")
        self.machines: list[Machine] = []
        self.hidden = self.driver.folder if has_mounts() else None
        """The driver's folder, where the cluster's machines cannot see it."""
        self.variables: dict[str, str] = {}
        """Environment variables of a job that is submitted to the cluster."""

    def __exit__(self, *_: object) -> None:
        for machine in self.machines:
            machine.stop()

    def _machine(self, name: str) -> Machine:
        self.machines.append(Machine(self._folder / name))
        return self.machines[-1]

    def _configure_jobs(self, **settings: str) -> None:
        folder = self.driver.folder / "conf"
        folder.mkdir()
        lines = [f"{name} {value}" for name, value in (JOB_SETTINGS | settings).items()]
        (folder / "spark-defaults.conf").write_text("\n".join(lines))
        self.variables["SPARK_CONF_DIR"] = str(folder)


class Standalone(Cluster):
    """A master and two workers."""

    def __enter__(self) -> Standalone:
        port, web_port = free_ports(2)
        address = f"spark://127.0.0.1:{port}"
        master = self._machine("master")
        command = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
        master.start_java("org.apache.spark.deploy.master.Master", command, hidden=None)
        wait_until(lambda: is_open(port), "the master", timeout_s=START_TIMEOUT_S)
        for number in range(WORKERS):
            worker = self._machine(f"worker-{number}")
            command = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"]
            command += ["--memory", "1g", "--work-dir", str(worker.folder / "work"), address]
            worker.start_java("org.apache.spark.deploy.worker.Worker", command, hidden=self.hidden)
        self.variables = {"MASTER": address}
        self._configure_jobs()
        return self

    def unpacked(self) -> list[Path]:
        """The Python of each environment that executors have unpacked."""
        return [each for worker in self.machines for each in worker.folder.glob("work/*/*/env/bin")]


class Yarn(Cluster):
    """A resource manager and a node manager; applications' files go through a shared folder."""

    def __enter__(self) -> Yarn:
        configuration = self._folder / "conf"
        configuration.mkdir()
        self.shared = self._folder / "shared"
        self.shared.mkdir()
        manager, node = self._machine("manager"), self._machine("node")
        address = self._configure(configuration, node)
        path = f"{configuration}:{yarn_class_path()}"
        server = "org.apache.hadoop.yarn.server"
        for machine, name, hidden in (
            (manager, "resourcemanager.ResourceManager", None),
            (node, "nodemanager.NodeManager", self.hidden),
        ):
            machine.start_java(f"{server}.{name}", [], class_path=path, hidden=hidden)
        port = int(address.rpartition(":")[2])
        wait_until(lambda: is_open(port), "YARN", timeout_s=START_TIMEOUT_S)
        self.variables = {"HADOOP_CONF_DIR": str(configuration)}
        self._configure_jobs(
            **{
                "spark.yarn.jars": f"local:{node.home}/jars/*",
                "spark.yarn.stagingDir": f"file://{self.shared}",
                "spark.executor.instances": str(WORKERS),
            }
        )
        return self

    def _configure(self, folder: Path, node: Machine) -> str:
        """Write the cluster's configuration; the address that jobs are submitted to."""
        parts = ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
        names = [f"yarn.resourcemanager.{part}address" for part in parts]
        names += [f"yarn.nodemanager.{part}address" for part in ("", "localizer.", "webapp.")]
        ports = free_ports(len(names))
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        fifo = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
        settings = addresses | {
            "fs.defaultFS": "file:///",
            "hadoop.tmp.dir": str(self._folder / "hadoop"),
            "yarn.application.classpath": f"{node.home}/jars/*",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.local-dirs": str(node.folder / "local"),
            "yarn.nodemanager.log-dirs": str(node.folder / "logs"),
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.resource.memory-mb": "8000",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.scheduler.class": fifo,
            "yarn.scheduler.minimum-allocation-mb": "128",
        }
        write_configuration(folder, settings, "core-site.xml", "yarn-site.xml")
        return addresses["yarn.resourcemanager.address"]

    def unpacked(self) -> list[Path]:
        """The Python of each environment that was unpacked for the application."""
        return list(self.machines[1].folder.glob("local/**/env.tar.gz/bin"))
