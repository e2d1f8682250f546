"""Programs and jars that are fetched once into `.cache` of the repository, mostly by Maven."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache"
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"
MAVEN_TIMEOUT_S = 600


class Unavailable(RuntimeError):
    """An outside program cannot be had on this machine, such as for lack of Maven or a network."""


@contextmanager
def completed_once(folder: Path) -> Iterator[bool]:
    """Give True to the first process that asks: its block completes the folder, or raises.

    Other processes wait meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_first = not (folder / "complete").exists()
        yield is_first
        if is_first:  # archives of classes are named after the time of this file
            (folder / "complete").touch()


def fetched_jars(what: str, name: str, artifacts: Mapping[str, str], *options: str) -> Path:
    """Return the folder of these artifacts' jars, and of all that they depend on.

    Each artifact has the `group:artifact` of a dependency that is left out, or "". The folder is
    named after the POM too: another POM never runs on the jars, complete or not, of an older one.
    """
    pom = _pom(artifacts)
    folder = CACHE / f"{name}-{hashlib.sha256(pom.encode()).hexdigest()[:8]}"
    with completed_once(folder) as is_first:
        if is_first:
            (folder / "pom.xml").write_text(pom)
            command = ["-f", str(folder / "pom.xml"), f"{DEPENDENCY_PLUGIN}:copy-dependencies"]
            _maven(
                what, *command, "-DincludeScope=runtime", f"-DoutputDirectory={folder}", *options
            )
    return folder


def fetched_file(what: str, artifact: str, folder: Path) -> Path:
    """Return the file of `group:artifact:version`, a jar, or of `...:type:classifier`."""
    _, name, version, *more = artifact.split(":")
    kind, *classifier = more or ["jar"]
    file = folder / f"{'-'.join((name, version, *classifier))}.{kind}"
    if not file.exists():
        plugin = f"{DEPENDENCY_PLUGIN}:copy"
        _maven(what, plugin, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}")
    return file


def _pom(artifacts: Mapping[str, str]) -> str:
    dependencies = []
    for artifact, left_out in artifacts.items():
        exclusion = f"<exclusion>{_tags(left_out)}</exclusion>" if left_out else ""
        more = f"<exclusions>{exclusion}</exclusions>"
        dependencies.append(f"<dependency>{_tags(artifact)}{more}</dependency>\n")
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"{_tags('txnlog.tests:jars:1')}<packaging>pom</packaging>\n"
        f"<dependencies>\n{''.join(dependencies)}</dependencies></project>\n"
    )


def _tags(artifact: str) -> str:
    names = ("groupId", "artifactId", "version")
    return "".join(f"<{n}>{v}</{n}>" for n, v in zip(names, artifact.split(":"), strict=False))


def _maven(what: str, *arguments: str) -> None:
    """Run Maven. Unavailable has its complaint."""
    if shutil.which("mvn") is None:
        raise Unavailable(f"{what} is not here: `mvn` is not installed")
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", *arguments],
            check=False, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} is not here: Maven took {MAVEN_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
        reason = lines[0] if lines else done.stderr.strip()[-200:]
        raise Unavailable(f"{what} is not here: Maven said {reason!r}")
