"""HDFS from Hadoop's jars on Maven Central: one NameNode, one DataNode, reached by WebHDFS.

Pyarrow's own client of HDFS needs a native library of Hadoop that no registry has; the rules of the
file system, such as that a rename replaces nothing, are the same by either way.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import fsspec
from support.brokers.apache_kafka import JVM_OPTIONS
from support.brokers.probe import free_ports, wait_until
from support.brokers.processes import START_TIMEOUT_S, started
from support.harness.maven import CACHE, fetched_file
from support.spark.spark_copy import CopyQuery
from support.spark.spark_home import INSTALLED
from support.stores.s3a import hadoop_version

SPARK_HAS = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "log4j", "jcl-over-slf4j")
_NAMES = ("rpc", "http", "data", "data-http", "data-ipc")


def minicluster_jar() -> Path:
    """Hadoop's servers, of the version of PySpark's client, fetched once. Unavailable says why
    not."""
    artifact = f"org.apache.hadoop:hadoop-client-minicluster:{hadoop_version()}"
    return fetched_file("HDFS", artifact, CACHE / "hadoop-minicluster")


def server_class_path() -> str:
    """Return the class path of Hadoop's servers, besides their configuration."""
    jars = [jar for name in SPARK_HAS for jar in (INSTALLED / "jars").glob(f"{name}*.jar")]
    return ":".join(map(str, [minicluster_jar(), *jars]))


def write_configuration(folder: Path, settings: dict[str, str], *names: str) -> None:
    """Write Hadoop's configuration into files of these names."""
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    for name in names:
        (folder / name).write_text(f"<configuration>{rows}</configuration>")


class Hdfs:
    """Hadoop file system of one test. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(_NAMES, free_ports(len(_NAMES)), strict=True))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._class_path = f"{folder}:{server_class_path()}"
        self.root = f"webhdfs://127.0.0.1:{self._ports['http']}"

    def __enter__(self) -> Hdfs:
        self._configure()
        formatted = subprocess.run(
            self._command("namenode.NameNode", "-format", "-force", "-nonInteractive"),
            check=False, capture_output=True, text=True, timeout=START_TIMEOUT_S,
        )  # fmt: skip
        assert formatted.returncode == 0, formatted.stderr[-2000:]
        for server in ("namenode.NameNode", "datanode.DataNode"):
            self._start(server)
        wait_until(self._takes_a_file, "HDFS takes a file", timeout_s=START_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, server: str) -> None:
        self._processes.append(started(self._command(server), self._folder / f"{server}.log"))

    def _configure(self) -> None:
        settings = {
            "fs.defaultFS": f"hdfs://127.0.0.1:{self._ports['rpc']}",
            "hadoop.tmp.dir": str(self._folder / "data"),
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.http-address": f"127.0.0.1:{self._ports['http']}",
            "dfs.datanode.address": f"127.0.0.1:{self._ports['data']}",
            "dfs.datanode.http.address": f"127.0.0.1:{self._ports['data-http']}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{self._ports['data-ipc']}",
            "dfs.datanode.hostname": "127.0.0.1",
        }
        write_configuration(self._folder, settings, "core-site.xml", "hdfs-site.xml")

    def _command(self, server: str, *arguments: str) -> list[str]:
        main_class = f"org.apache.hadoop.hdfs.server.{server}"
        return ["java", *JVM_OPTIONS, "-cp", self._class_path, main_class, *arguments]

    def _takes_a_file(self) -> bool:
        try:
            self.client.pipe_file("/ready", b"1")
        except (OSError, RuntimeError):
            return False
        return True

    @property
    def client(self) -> fsspec.AbstractFileSystem:
        """A client of its own."""
        return fsspec.filesystem("webhdfs", host="127.0.0.1", port=self._ports["http"])


class HdfsQuery(CopyQuery):
    """`CopyQuery` with its checkpoint in HDFS."""

    def __init__(self, hdfs: Hdfs, folder: Path, bootstrap: str, name: str) -> None:
        super().__init__(folder, bootstrap, name)
        self._hdfs = hdfs
        self._path = f"/checkpoints/{name}"
        # PySpark's client of WebHDFS lacks a class that is in there.
        self.spark_config = {"spark.jars": str(minicluster_jar())}

    @property
    def checkpoint_location(self) -> str:
        return f"{self._hdfs.root}{self._path}"

    def names_in(self, log: str) -> list[str]:
        client, folder = self._hdfs.client, f"{self._path}/{log}"
        found = client.ls(folder, detail=False) if client.exists(folder) else []
        return [each.rpartition("/")[2] for each in found]

    def text_of(self, path: str) -> str:
        return self._hdfs.client.cat_file(f"{self._path}/{path}").decode()
