"""kcat, the C command line client: the one on PATH, else Debian's package unpacked into `.cache/`.

Nothing of the system changes: apt downloads the package and those of its libraries that are not
installed, and `dpkg -x` unpacks them into a folder that only `LD_LIBRARY_PATH` names.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.brokers.apache_kafka import Unavailable
from support.brokers.probe import wait_until

FOLDER = Path(__file__).resolve().parents[3] / ".cache" / "kcat"
FETCH_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120
LEADER_MOVED = "offsets_for_times failed: Broker: Not leader for partition"
DEPENDS = ("--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks")
DEPENDS += ("--no-replaces", "--no-enhances")


@dataclass(frozen=True)
class Kcat:
    """The program and the environment it runs in."""

    program: str
    environment: dict[str, str]

    def run(
        self, bootstrap: str, *arguments: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end against a broker. AssertionError with its words when it fails."""
        command = [self.program, "-b", bootstrap, "-m", "60", *arguments]
        done = subprocess.run(
            command,
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=RUN_TIMEOUT_S,
        )
        if check:
            _check(done)
        return done

    def output(self, bootstrap: str, *arguments: str) -> str:
        """What a `run` printed that only reads. Among several brokers it runs again when a leader
        moved while kcat asked for the offset of a time: librdkafka hands that to kcat, which ends.
        """
        done: list[subprocess.CompletedProcess[str]] = []

        def has_ended() -> bool:
            done.append(self.run(bootstrap, *arguments, check=False))
            return LEADER_MOVED not in done[-1].stderr or "," not in bootstrap

        wait_until(has_ended, "the leader")
        _check(done[-1])
        return done[-1].stdout


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise AssertionError(f"{done.args} ended with {done.returncode}: {done.stderr}")


@functools.cache
def kcat() -> Kcat:
    """A kcat that runs here. Unavailable says why there is none."""
    program = shutil.which("kcat")
    if program is not None:
        return Kcat(program, dict(os.environ))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (FOLDER / "complete").exists():
            _unpack_packages()
    folders = sorted({str(path.parent) for path in FOLDER.glob("root/usr/lib/**/*.so.*")})
    inherited = os.environ.get("LD_LIBRARY_PATH")
    libraries = os.pathsep.join([*folders, *([inherited] if inherited else [])])
    environment = os.environ | {"LD_LIBRARY_PATH": libraries}
    return Kcat(str(FOLDER / "root/usr/bin/kcat"), environment)


def _unpack_packages() -> None:
    tools = [name for name in ("apt-get", "apt-cache", "dpkg", "dpkg-query") if not _is_here(name)]
    if tools:
        raise Unavailable(f"kcat is not here: neither it nor {', '.join(tools)} is installed")
    try:
        _download([])
    except Unavailable:
        # No package lists on this machine, or old ones: fetch them into a folder of ours.
        (FOLDER / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        lists = ["-o", f"Dir::State::Lists={FOLDER / 'lists'}"]
        _fetch(["apt-get", *lists, "update"])
        _download(lists)
    for package in sorted(FOLDER.glob("*.deb")):
        _fetch(["dpkg", "-x", str(package), str(FOLDER / "root")])
    (FOLDER / "complete").touch()


def _download(lists: Sequence[str]) -> None:
    """kcat and what it lacks into FOLDER, by apt's present lists or those the options name."""
    missing = [name for name in _dependencies(lists) if not _is_installed(name)]
    if not missing:
        raise Unavailable("kcat is not here: apt knows no package of this name")
    _fetch(["apt-get", *lists, "download", *missing])


def _is_here(tool: str) -> bool:
    return shutil.which(tool) is not None


def _dependencies(lists: Sequence[str]) -> list[str]:
    """kcat and all it depends on, by apt's present knowledge; empty when it does not know kcat."""
    done = _run(["apt-cache", *lists, "depends", *DEPENDS, "kcat"])
    lines = done.stdout.splitlines()
    return [line.strip() for line in lines if line and line[0].isalnum()]


def _is_installed(package: str) -> bool:
    return _run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package]).stdout.startswith("ii")


def _fetch(command: list[str]) -> None:
    try:
        done = _run(command)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"kcat is not here: {command[0]} took {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unavailable(f"kcat is not here: {command[0]} said {reason!r}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=FOLDER, timeout=FETCH_TIMEOUT_S
    )
