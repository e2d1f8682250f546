"""Start, kill and restart one streaming query over many lives, and look at it from outside.

`CopyQuery` runs `copy_job.py` under spark-submit, each run with its own failpoints. The test reads
what a run left behind from the checkpoint's files and, with librdkafka, from the topics: it never
asks the connector what the connector thinks it did.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from support.brokers.probe import wait_until
from support.brokers.processes import started
from support.clients.librdkafka import committed_offsets, create_topic, produce_values, read_topic
from support.core.object_counts import SITE
from support.kafka.class_archive import AT_ITS_PLACE, archive_in
from support.spark.spark_home import INSTALLED, SPARK_HOME, WARM_PYTHON

REPOSITORY = Path(__file__).resolve().parents[3]
SPARK_SUBMIT = SPARK_HOME / "bin" / "spark-submit"
RUN_SECONDS_MAX = 600
QUICK = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=256m",  # or the heap is searched whenever so many classes are loaded
    *AT_ITS_PLACE,
    "-Xshare:auto",
    "-Xlog:disable",
)
JAVA_OPTIONS = (
    *QUICK,
    f"-Dlog4j2.configurationFile={REPOSITORY / 'conf' / 'log4j2.properties'}",
)

CLASSES = archive_in(SPARK_HOME, INSTALLED / "jars")
"""Spark's; a third off each start."""
SMALL = {
    # What a batch commits is no matter of generated code, and to compile it takes a second a query.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
}
SPARK_CONFIG = SMALL | {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
KILLED = -signal.SIGKILL
OUR_ERROR = re.compile(
    r"\btxnlog_(?:kafka|spark)\.(?:\w+\.)?errors\.\w+: ?\n?\[TXNLOG_.*(?:\nDo this.*)*"
)
"""The class at the end of Spark's own text, the error's own line, and its commands."""

Coordinates = tuple[int, int]
"""(partition, offset) of an input record."""


@dataclass(frozen=True)
class Run:
    code: int
    stderr: str
    fired: tuple[str, ...]

    @property
    def last_error(self) -> str:
        """The last error of ours that is named, with its commands."""
        found = OUR_ERROR.findall(self.stderr)
        return found[-1].strip() if found else ""


def spark_environment(*path: Path) -> dict[str, str]:
    """Return the environment of a process with Spark whose Python processes import from these
    paths."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": WARM_PYTHON,
        "PYSPARK_DRIVER_PYTHON": WARM_PYTHON,  # Spark looks here first for a data source's
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "TXNLOG_PYTHON_IMPORTS": "",  # pandas takes half a second of each start
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def java_options(classes: str = f"-XX:SharedArchiveFile={CLASSES}") -> dict[str, str]:
    """A JVM that starts soon; reads the archive of classes where there is one."""
    return {"spark.driver.extraJavaOptions": " ".join((*JAVA_OPTIONS, classes))}


def conf_arguments(settings: dict[str, str]) -> list[str]:
    """Return settings as arguments of Spark's commands."""
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


class CopyQuery:
    """A streaming query from one topic to another, with a checkpoint and a group of its own."""

    def __init__(
        self, folder: Path, bootstrap: str, name: str, *, partitions: int = 3, batch_size: int = 30
    ) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.source = create_topic(bootstrap, f"in-{name}", partitions)
        self.target = create_topic(bootstrap, f"out-{name}", partitions)
        self.group = f"group-{name}"
        self.checkpoint = folder / "checkpoint"
        self.batch_size = batch_size
        self.produced = 0
        self.read_options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(batch_size)}
        self.write_options: dict[str, str] = {}
        self.spark_config: dict[str, str] = {}
        self.master = "local[1]"
        self.program = "copy_job.py"
        self.job_arguments: list[str] = []
        self.environment: dict[str, str] = {}
        self._run_count = 0
        folder.mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------------ the world

    def feed(self, count: int) -> None:
        first = self.produced
        self.produced += count
        values = (f"{number:06}" for number in range(first, self.produced))
        produce_values(self.bootstrap, self.source, values)

    def start(self, failpoints: str = "") -> RunningJob:
        """Start one run with these failpoints armed."""
        if failpoints and not CLASSES.exists():
            # Only a run that nobody kills can write the archive: another query's, over one record.
            first = CopyQuery(self.folder / "first", self.bootstrap, f"first-{self.source}")
            first.feed(1)
            ended = first.run()
            assert ended.code == 0, ended.stderr[-3000:]
        self._run_count += 1
        return RunningJob(self, self._run_count, failpoints)

    def remove_unfinished_entry(self) -> None:
        """Remove the entry that Spark since 4.3 refuses after a kill in its first entry
        (docs/operating.md)."""
        if not self.logged("offsets"):
            for name in self.names_in("offsets"):
                (self.checkpoint / "offsets" / name).unlink()

    def run(self, failpoints: str = "") -> Run:
        """Run the query to its end, however it ends."""
        return self.start(failpoints).wait()

    def command(self, settings: dict[str, str]) -> list[str]:
        """Return the command of a run with this configuration of Spark."""
        command = [str(SPARK_SUBMIT), "--master", self.master, *conf_arguments(settings)]
        return [*command, str(Path(__file__).with_name(self.program)), *self.arguments()]

    def arguments(self) -> list[str]:
        given = [f"read.{name}={value}" for name, value in self.all_read_options.items()]
        given += [f"write.{name}={value}" for name, value in self.all_write_options.items()]
        return given + self.job_arguments

    @property
    def all_read_options(self) -> dict[str, str]:
        read = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.source,
            "group.id": self.group,
        }
        return read | self.read_options

    @property
    def all_write_options(self) -> dict[str, str]:
        write = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.target,
            "group.id": self.group,
            "checkpointLocation": self.checkpoint_location,
        }
        return write | self.write_options

    # ------------------------------------------------------------------ what the files say

    @property
    def checkpoint_location(self) -> str:
        return str(self.checkpoint)

    def names_in(self, log: str) -> list[str]:
        folder = self.checkpoint / log
        return [path.name for path in folder.iterdir()] if folder.exists() else []

    def text_of(self, path: str) -> str:
        """The text of one of the checkpoint's files."""
        return (self.checkpoint / path).read_text()

    def logged(self, log: str) -> list[int]:
        """The batch ids in the checkpoint's "offsets" or "commits"."""
        return sorted(int(name) for name in self.names_in(log) if name.isdigit())

    def next_batch(self) -> int:
        """The batch id that no run has planned yet."""
        return max(self.logged("offsets"), default=-1) + 1

    def end_of_batch(self, batch_id: int) -> dict[int, int]:
        """Return the exclusive end of a batch by input partition; empty for batch -1."""
        if batch_id < 0:
            return {}
        offsets = json.loads(self.text_of(f"offsets/{batch_id}").splitlines()[-1])
        return {int(number): end for number, end in offsets[self.source].items()}

    def records_of_batch(self, batch_id: int) -> set[Coordinates]:
        """The input records of a planned batch."""
        starts, ends = self.end_of_batch(batch_id - 1), self.end_of_batch(batch_id)
        return {
            (number, position)
            for number, end in ends.items()
            for position in range(starts.get(number, 0), end)
        }

    # ------------------------------------------------------------------ what the topics say

    def output(self, isolation: str = "read_committed") -> Counter[Coordinates]:
        seen = read_topic(self.bootstrap, self.target, isolation=isolation)
        places = (json.loads(each.value)["source"] for each in seen)
        return Counter((place["partition"], place["offset"]) for place in places)

    def input(self) -> set[Coordinates]:
        return {(each.partition, each.offset) for each in read_topic(self.bootstrap, self.source)}

    def group_offsets(self) -> dict[int, int]:
        return committed_offsets(self.bootstrap, self.group, self.source, self.partitions)

    def check_exactly_once(self) -> None:
        """Fail unless each input record is in the output once, and the group stands at the end."""
        output, expected = self.output(), self.input()
        assert len(expected) == self.produced
        doubled = {place: count for place, count in output.items() if count > 1}
        assert not doubled, f"doubled: {doubled}"
        assert set(output) == expected, f"lost or invented: {set(output) ^ expected}"
        ends = Counter(number for number, _ in expected)
        assert self.group_offsets() == dict(ends)


class RunningJob:
    """Run of the job, as a process group of its own."""

    def __init__(self, query: CopyQuery, number: int, failpoints: str) -> None:
        self._fired = query.folder / f"fired-{number}"
        self._log = query.folder / f"run-{number}.log"
        self._new_classes = None if CLASSES.exists() or failpoints else query.folder / "classes"
        settings = SPARK_CONFIG | query.spark_config | self._java_options()
        command = query.command(settings)
        environment = spark_environment(SITE, REPOSITORY, SITE.parents[1]) | {
            "TXNLOG_FAILPOINTS": failpoints,
            "TXNLOG_FAILPOINTS_FIRED": str(self._fired),
            **query.environment,
        }
        self.process = started(
            command, self._log, env=environment, cwd=query.folder, start_new_session=True
        )

    def _java_options(self) -> dict[str, str]:
        """Return the JVM's options: the first run that is not killed writes the class archive,
        later runs read it."""
        if self._new_classes is not None:
            return java_options(f"-XX:ArchiveClassesAtExit={self._new_classes}")
        return java_options()

    def wait(self, timeout_s: int = RUN_SECONDS_MAX) -> Run:
        try:
            code = self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            text = self._log.read_text(errors="replace")
            raise AssertionError(
                f"the job still ran after {timeout_s} s:\n{text[-3000:]}"
            ) from None
        finally:
            self._end_group()
        if self._new_classes is not None and self._new_classes.exists() and code == 0:
            CLASSES.parent.mkdir(exist_ok=True)
            beside = CLASSES.with_name(f"{CLASSES.name}.{os.getpid()}")
            shutil.move(self._new_classes, beside)
            # Other tests' JVMs may start at this moment: the whole archive, or none.
            beside.replace(CLASSES)
        return Run(code, self._log.read_text(errors="replace"), self.fired())

    def fired(self) -> tuple[str, ...]:
        return tuple(self._fired.read_text().splitlines()) if self._fired.exists() else ()

    def wait_fired(self, failpoint: str) -> None:
        """Return when this failpoint has fired; fails when the job ends before."""

        def done() -> bool:
            ended = self.process.poll() is not None
            assert failpoint in self.fired() or not ended, self._log.read_text()[-3000:]
            return failpoint in self.fired()

        wait_until(done, f"failpoint {failpoint}", timeout_s=RUN_SECONDS_MAX)

    def resume(self) -> None:
        """SIGCONT to every process of the run, once a failpoint has stopped all of them.

        A failpoint says that it fires before it acts. The staging server may be no descendant any
        more: what started it may have ended.
        """
        wait_until(lambda: set(self._states().values()) == {"T"}, "the driver to be stopped")
        for pid in self._states():
            os.kill(pid, signal.SIGCONT)

    def _states(self) -> dict[int, str]:
        """The states of Java and of Python processes that have this run's environment."""
        mark = f"TXNLOG_FAILPOINTS_FIRED={self._fired}".encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    name, _, rest = (process / "stat").read_text().rpartition(") ")
                    if "java" in name or "python" in name:
                        found[int(process.name)] = rest[0]
        return found

    def kill(self) -> None:
        """SIGKILL to every process of the run."""
        self._end_group()
        self.process.wait()

    def _end_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def descendants(pid: int) -> list[int]:
    """A process and all below it; Spark's Python daemons lead process groups of their own."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found
