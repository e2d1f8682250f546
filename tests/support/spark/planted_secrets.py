"""A Spark job with another secret in each place that takes one, and all that is left of it to see.

`run_planted` gives what could show the secrets of `planted_world`, by place.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from support.brokers.probe import wait_until
from support.brokers.processes import started
from support.query.staging_home import wait_for_no_server
from support.spark.planted_world import AZURE, CLIENT, GIVEN_BY_SERVERS, SECRETS, USER, World, marks
from support.spark.spark_copy import REPOSITORY, SMALL, java_options, spark_environment

from txnlog_spark.staging.address import ServerAddress
from txnlog_spark.staging.channel import ServerGone, connect_local, connect_remote
from txnlog_spark.staging.frames import Kind

PLACES = ("log", "events", "checkpoints", "files", "processes", "explained", "progress", "errors")
SUPPORT = Path(__file__).parents[1]
READY_SECONDS_MAX = 480


class Seen:
    """Texts that a run leaves to be seen, by place and name."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, bytes]] = {place: {} for place in PLACES}
        self.marks: dict[str, list[str]] = {}
        """Parts of each planted secret's values that must appear nowhere."""
        self.token = ""
        """Token of the staging server."""
        self.unexpected = ""

    def having(self, mark: str, place: str) -> list[str]:
        """Return the texts of a place that contain the mark, as it is or in HTTP's Basic
        authorization."""
        encoded = (base64.b64encode(f"{user}:{mark}".encode()) for user in (USER, CLIENT))
        forms = [mark.encode(), *(each.rstrip(b"=")[:-1] for each in encoded)]
        return [
            name for name, text in self.texts[place].items() if any(form in text for form in forms)
        ]


def run_planted(folder: Path, *, has_azure: bool, s3a: list[Path]) -> Seen:
    """Run the job in a folder whose path is short enough for a Unix socket.

    With what needs Azure's emulator, and Spark's checkpoints in a store by these jars of S3A.
    """
    seen, job = Seen(), folder / "job"
    for each in (job, job / "tmp", job / "local", job / "events", job / "kept"):
        each.mkdir()
    with ExitStack() as stack:
        world = World(folder, stack, has_azure=has_azure, has_checkpoints=bool(s3a))
        seen.marks = _marks(world)
        process = _start(world, job, s3a)
        try:
            wait_until(
                lambda: process.poll() is not None or _is_ready(job),
                "the job has done its steps",
                timeout_s=READY_SECONDS_MAX,
            )
            _look_at_processes(seen, job)
            _look_at_staging(seen, job)
            _look_at_files(seen, world)  # what a process removes at its end is still there
        finally:
            process.communicate()
            wait_for_no_server(job / "tmp")  # it removes files at its end
            _look_at_files(seen, world)
    return seen


def _marks(world: World) -> dict[str, list[str]]:
    found = {}
    for name in SECRETS:
        if world.cloud is not None or not name.startswith(AZURE):
            used = (world.right, world.wrong)[: 1 if name in GIVEN_BY_SERVERS else 2]
            found[name] = [mark for of in used for mark in marks(name, of[name])]
    return found


def _is_ready(job: Path) -> bool:
    return b"READY\n" in (job / "log").read_bytes()


def _start(world: World, job: Path, s3a: list[Path]) -> subprocess.Popen[bytes]:
    config = SMALL | java_options() | {
        "spark.driver.memory": "600m",
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (job / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.broadcast.compress": "false",
        "spark.shuffle.compress": "false",
        "spark.sql.redaction.options.regex": "(?i)url|user[.]info|keystore[.]key|account[.]key",
        "spark.python.daemon.module": "planted_daemon",
        "spark.jars": ",".join(map(str, s3a)),
    } | (world.store.options("spark.hadoop.fs.") if s3a else {})  # fmt: skip
    environment = spark_environment(SUPPORT / "process_site", REPOSITORY, SUPPORT.parent)
    environment |= world.cloud.environment if world.cloud else {}
    environment |= {
        "SPARK_LOCAL_DIRS": str(job / "local"),
        "TMPDIR": str(job / "tmp"),
        "TXNLOG_KEPT": str(job / "kept"),
    }
    command = [sys.executable, str(Path(__file__).with_name("planted_job.py"))]
    process = started(command, job / "log", stdin=subprocess.PIPE, cwd=job, env=environment)
    process.stdin.write(json.dumps({"config": config, "steps": world.steps()}).encode() + b"\n")
    process.stdin.flush()
    return process


def _look_at_processes(seen: Seen, job: Path) -> None:
    """Read every process that the job has started, however long ago: all have its environment."""
    mark = f"TXNLOG_KEPT={job / 'kept'}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if mark in environ:
            seen.texts["processes"][f"{process.name} {command[:300]!r}"] = command + environ


def _look_at_staging(seen: Seen, job: Path) -> None:
    """The token of its staging server, and what a server says to a wrong one."""
    (socket,) = (job / "tmp").glob("txnlog-staging-*/*/socket")
    with connect_local(str(socket)) as channel:
        address = ServerAddress(**json.loads(channel.ask(Kind.WHERE, None, Kind.ADDRESS)))
    seen.token = address.token
    try:
        with connect_remote("127.0.0.1", address.port, "ab" * 32):
            raise AssertionError("a wrong token is taken")
    except ServerGone as error:
        seen.texts["errors"]["staging server"] = str(error).encode()


def _look_at_files(seen: Seen, world: World) -> None:
    """Read all files except those that the test itself has written."""
    job, notes = world.folder / "job", ("log", "explained", "progress", "errors")
    for root, place in (
        (job / "events", "events"),
        (world.folder / "checkpoints", "checkpoints"),
        (world.folder / "embedded", "files"),
        (job, "files"),
    ):
        for path in (each for each in root.rglob("*") if each.is_file()):
            own = path.name if path.parent == job and path.name in notes else place
            if own != "files" or job / "events" not in path.parents:
                seen.texts[own][str(path.relative_to(world.folder))] = path.read_bytes()
    for key in world.store.names():
        place = "checkpoints" if key.startswith("checkpoints/") else "files"
        seen.texts[place][key] = world.store.get(key)
    unexpected = job / "unexpected"
    seen.unexpected = unexpected.read_text() if unexpected.exists() else ""
