"""Programs of Debian: the one on PATH, else the package unpacked into `.cache/debian`.

Nothing of the system changes: apt downloads the package and those of its libraries that are not
installed, and `dpkg -x` unpacks them into a folder that only `LD_LIBRARY_PATH` names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.harness.maven import CACHE, Unavailable, completed_once

FETCH_TIMEOUT_S = 300


@dataclass(frozen=True)
class Program:
    """Path of a program, and the environment that it runs in."""

    path: str
    environment: dict[str, str]


def debian_program(package: str, path: str) -> Program:
    """Return the program of `path`, below /, of a package. Unavailable says why it cannot be
    had."""
    there = shutil.which(Path(path).name) or shutil.which(f"/{path}")
    if there is not None:
        return Program(there, dict(os.environ))
    folder = CACHE / "debian" / package
    with completed_once(folder) as is_first:
        if is_first:
            _Unpacking(package, folder).run()
    folders = sorted({str(path.parent) for path in folder.glob("root/usr/lib/**/*.so*")})
    inherited = os.environ.get("LD_LIBRARY_PATH")
    libraries = os.pathsep.join([*folders, *([inherited] if inherited else [])])
    return Program(str(folder / "root" / path), os.environ | {"LD_LIBRARY_PATH": libraries})


@dataclass(frozen=True)
class _Unpacking:
    package: str
    folder: Path

    def run(self) -> None:
        """Download, and unpack below `root`."""
        tools = ("apt-get", "dpkg")
        missing = [name for name in tools if shutil.which(name) is None]
        if missing:
            raise self._unavailable(f"neither it nor {', '.join(missing)} is installed")
        try:
            self._download([])
        except Unavailable:
            # No package lists on this machine, or old ones: fetch them into a folder of ours.
            (self.folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
            lists = ["-o", f"Dir::State::Lists={self.folder / 'lists'}"]
            self._fetch(["apt-get", *lists, "update"])
            self._download(lists)
        for package in sorted(self.folder.glob("*.deb")):
            self._fetch(["dpkg", "-x", str(package), str(self.folder / "root")])
            package.unlink()

    def _download(self, lists: Sequence[str]) -> None:
        """The package and what it lacks, by apt's present lists or those the options name."""
        plan = self._run(
            ["apt-get", *lists, "install", "--simulate", "--no-install-recommends", self.package]
        )
        lacking = [line.split()[1] for line in plan.stdout.splitlines() if line[:5] == "Inst "]
        if not lacking:
            raise self._unavailable("apt knows no package of this name")
        self._fetch(["apt-get", *lists, "download", *lacking])

    def _fetch(self, command: list[str]) -> None:
        try:
            done = self._run(command)
        except subprocess.TimeoutExpired:
            raise self._unavailable(f"{command[0]} took {FETCH_TIMEOUT_S} s") from None
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise self._unavailable(f"{command[0]} said {reason!r}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=FETCH_TIMEOUT_S,
        )

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(f"{self.package} is not here: {reason}")


RUN_TIMEOUT_S = 600


def promtool() -> Program:
    """Return a promtool that runs here. Unavailable says why it cannot be had."""
    return debian_program("prometheus", "usr/bin/promtool")


def run_promtool(program: Program, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run to the end; what it says is in `stdout`, errors too."""
    return subprocess.run(
        [program.path, *map(str, arguments)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=program.environment,
        timeout=RUN_TIMEOUT_S,
    )
