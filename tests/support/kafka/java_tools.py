"""Apache Kafka's own command line tools and Java client, from the published jars, unchanged.

`JavaHost` is one JVM for many calls: it runs the main method of any class of Kafka's tools and
returns exit code and output, and `java` is what Python calls Java's classes by (py4j).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JError
from support.brokers.apache_kafka import JVM_OPTIONS, jars, shared_classes
from support.brokers.probe import NotReady
from support.brokers.processes import talking
from support.clients.talking import CALL_TIMEOUT_S
from support.harness.maven import CACHE, Unavailable, completed_once

SOURCES = Path(__file__).with_name("java")
OPTIONS = (
    *JVM_OPTIONS,
    f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.properties'}",
)

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
PRODUCER_PERF = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERF = "org.apache.kafka.tools.ConsumerPerformance"
MESSAGE_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COMPACTION_TESTER = "org.apache.kafka.tools.LogCompactionTester"
COMPATIBILITY = "org.apache.kafka.tools.ClientCompatibilityTest"


@dataclass(frozen=True)
class Done:
    """Exit code and output of a tool."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.strip()]

    @property
    def errors(self) -> set[str]:
        """The names of Kafka's error classes in the output, without "Exception"."""
        return set(re.findall(r"common\.errors\.(\w+)Exception", self.out + self.err))

    def rows(self) -> list[dict[str, str]]:
        """A table as the tools print it: the header's words, then one row a line."""
        header, *rows = [line.split() for line in self.lines]
        return [dict(zip(header, row, strict=False)) for row in rows]


def java_command() -> list[str]:
    """A JVM with Kafka's jars and our compiled programs, but for the class to run. Unavailable when
    a jar or the compiler is not had."""
    return [
        "java",
        *OPTIONS,
        shared_classes(),
        "-cp",
        f"{jars()}/*:{_compiled()}:{find_jar_path()}",
    ]


def _compiled() -> Path:
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(jars().name.encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = CACHE / "java-tools" / digest.hexdigest()[:16]
    with completed_once(folder) as is_first:
        if is_first:
            _compile(sources, folder)
    return folder


def _compile(sources: list[Path], folder: Path) -> None:
    if shutil.which("javac") is None:
        raise Unavailable("the Java client cannot be driven: `javac` is not installed")
    command = ["javac", "-nowarn", "-cp", f"{jars()}/*", "-d", str(folder)]
    done = subprocess.run(
        [*command, *map(str, sources)], check=False, capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        raise RuntimeError(f"javac failed:\n{done.stdout}{done.stderr}")


class JavaHost:
    """JVM that starts when it is first needed and runs one tool at a time. A context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._gateway: JavaGateway | None = None

    def __enter__(self) -> JavaHost:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def java(self) -> Any:
        """Java's packages: `java.org.apache.kafka.clients.admin.NewTopic("name", 1, 1)`."""
        return (self._gateway or self._start()).jvm

    def _start(self) -> JavaGateway:
        # What tools write to temporary files goes with the session's folder.
        command = [*java_command(), f"-Djava.io.tmpdir={self._folder}", "py4j.GatewayServer"]
        self._process = talking([*command, "--enable-auth", "0"], self._folder / "java.log")
        port, token = (self._process.stdout.readline().strip() for _ in range(2))
        parameters = GatewayParameters(port=int(port), auth_token=token, auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        return self._gateway

    def run(
        self,
        main_class: str,
        *arguments: object,
        stdin: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Done:
        """Run a main method to its end. A call that hangs ends the JVM and raises NotReady."""
        tools, process = self.java.Tools, self._process
        stopper = threading.Timer(timeout_s, process.kill)
        stopper.start()
        try:
            code, *written = tools.call(main_class, [*map(str, arguments)], stdin.encode())
        except Py4JError:
            stopper.cancel()
            self.stop()
            words = [main_class, *arguments]
            raise NotReady(f"no end within {timeout_s} s, or a JVM that died: {words}") from None
        finally:
            stopper.cancel()
        return Done(code, *(each.decode(errors="replace") for each in written))

    def ok(self, main_class: str, *arguments: object, **how: Any) -> Done:
        """The same for what must succeed."""
        done = self.run(main_class, *arguments, **how)
        assert done.code == 0, f"{main_class} {arguments}: {done}"
        return done

    def stop(self) -> None:
        if self._process is not None and self._gateway is not None:
            self._gateway.close()
            self._process.kill()
            self._process.communicate()
        self._process = self._gateway = None
