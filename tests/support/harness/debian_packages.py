"""Programs of Debian's packages, unpacked into a folder of ours: nothing of the system changes.

apt downloads a package, and those of its libraries that are not installed; `dpkg -x` unpacks them.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.brokers.apache_kafka import Unavailable

CACHE = Path(__file__).resolve().parents[3] / ".cache"
FETCH_TIMEOUT_S = 300
TOOLS = ("apt-get", "apt-cache", "dpkg", "dpkg-query")
DEPENDS = ("--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks")
DEPENDS += ("--no-replaces", "--no-enhances")


def unpacked(package: str, program: str, *, libraries: bool) -> Path:
    """The root of the unpacked files, with `usr/bin/<program>` in it.

    With `libraries` all that the package depends on and that is not installed is there too.
    Unavailable says why the package cannot be had.
    """
    folder = CACHE / program
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _Fetch(folder, package, program, libraries).unpack()
    return folder / "root"


class _Fetch:
    """Of one package; `said` begins the lines of Unavailable."""

    def __init__(self, folder: Path, package: str, program: str, libraries: bool) -> None:
        self._folder = folder
        self._package = package
        self._libraries = libraries
        self._program = program
        self._said = f"{program} is not here:"

    def unpack(self) -> None:
        """Into the folder `root`."""
        tools = [name for name in TOOLS if shutil.which(name) is None]
        if tools:
            raise Unavailable(f"{self._said} neither it nor {', '.join(tools)} is installed")
        try:
            self._download([])
        except Unavailable:
            # No package lists on this machine, or old ones: fetch them into a folder of ours.
            (self._folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
            lists = ["-o", f"Dir::State::Lists={self._folder / 'lists'}"]
            self._fetch(["apt-get", *lists, "update"])
            self._download(lists)
        for package in sorted(self._folder.glob("*.deb")):
            self._fetch(["dpkg", "-x", str(package), str(self._folder / "root")])
        if not (self._folder / "root" / "usr" / "bin" / self._program).exists():
            raise Unavailable(f"{self._said} Debian's package {self._package} has it not")
        (self._folder / "complete").touch()

    def _download(self, lists: Sequence[str]) -> None:
        """By apt's present lists or those the options name."""
        names = self._dependencies(lists) if self._libraries else [self._package]
        missing = [name for name in names if not self._is_installed(name)]
        if not missing:
            raise Unavailable(f"{self._said} apt knows no package {self._package}")
        self._fetch(["apt-get", *lists, "download", *missing])

    def _dependencies(self, lists: Sequence[str]) -> list[str]:
        """The package and all it depends on; empty when apt does not know the package."""
        done = self._run(["apt-cache", *lists, "depends", *DEPENDS, self._package])
        return [line.strip() for line in done.stdout.splitlines() if line and line[0].isalnum()]

    def _is_installed(self, package: str) -> bool:
        asked = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package]
        return package != self._package and self._run(asked).stdout.startswith("ii")

    def _fetch(self, command: list[str]) -> None:
        try:
            done = self._run(command)
        except subprocess.TimeoutExpired:
            late = f"{self._said} {command[0]} took {FETCH_TIMEOUT_S} s"
            raise Unavailable(late) from None
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Unavailable(f"{self._said} {command[0]} said {reason!r}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=self._folder,
            timeout=FETCH_TIMEOUT_S,
        )
