"""`make matrix`: tests on each Python and Java of this machine, PySpark 4.2 and 4.3, and several
versions of Apache Kafka. `docs/versions.md` has a table of what ran when, and how it ended.

    python tests/matrix.py [WORD ...]    only the runs that have all of these words in their name
    python tests/matrix.py --page        none: writes the page from what is recorded

Each pair of PySpark and Python has an environment of its own in `.cache/matrix`. A run is recorded
in `tests/recorded/matrix.json`, in the place of an older one; what this machine lacks keeps what
was recorded elsewhere. Exit code 1 when a run failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
CACHE, PAGE = ROOT / ".cache" / "matrix", ROOT / "docs" / "versions.md"
RECORDED = ROOT / "tests" / "recorded" / "matrix.json"
PYSPARKS = ("4.2", "4.3")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
JAVAS = ("17", "25")
KAFKAS = ("Kafka 3.9.1", "Kafka 4.3.1", "Kafka 4.4.0")
PURE, SIM = "pure tests", "broker_sim"
COLUMNS = (PURE, SIM, *KAFKAS)
UNRELEASED = f"| 5.0 | not released: [what was tried](#spark-50) |{' |' * (len(COLUMNS) + 1)}"
Recorded = dict[str, dict[str, str | int]]
"""Recorded runs by name: their fields with full versions, their counts and their day."""
PLACE = re.compile(r"(<!-- runs: .*? -->\n).*?(<!-- end of runs -->)", re.DOTALL)


@dataclass(frozen=True)
class Run:
    """Tests to run, and the versions: `4.3` and `3.12` of PySpark and Python, `17` of Java."""

    pyspark: str
    python: str
    java: str
    tests: str  # one of COLUMNS

    @property
    def name(self) -> str:
        """Name such as `PySpark 4.3, Python 3.12, Java 17, broker_sim`."""
        return f"PySpark {self.pyspark}, Python {self.python}, Java {self.java}, {self.tests}"


def planned() -> Iterator[Run]:
    """The runs: each version beside the others' usual ones, and each PySpark on each Python."""
    newest, python, java = PYSPARKS[-1], PYTHONS[0], JAVAS[0]
    yield from (Run(pyspark, each, java, SIM) for each in PYTHONS for pyspark in PYSPARKS)
    yield from (Run(newest, python, each, SIM) for each in JAVAS[1:])
    yield from (Run(newest, python, java, kafka) for kafka in KAFKAS)
    yield from (Run(newest, each, java, PURE) for each in PYTHONS)


def said(*command: str | Path) -> str:
    """Return the output of a command, "" if it does not run: pyenv has a shim for every Python."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def find_python(version: str) -> Path | None:
    """The Python of this version that is on the PATH or of pyenv."""
    pyenv = Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")
    found = [Path(shutil.which(f"python{version}") or "python"), *sorted(pyenv)]
    wanted = f"Python {version}."
    return next((each for each in found if said(each, "--version").startswith(wanted)), None)


def find_java(version: str) -> Path | None:
    """The home of a Java of this version: of JAVA_HOME, of the PATH, or where Linux has them."""
    on_path = Path(shutil.which("java") or "/usr/bin/java").resolve().parents[1]
    homes = [Path(os.environ.get("JAVA_HOME", on_path)), on_path, *Path("/usr/lib/jvm").glob("*")]
    return next((home for home in homes if java_version(home).split(".")[0] == version), None)


def java_version(home: Path) -> str:
    """Return a version such as `17.0.15`, "" if there is no Java."""
    found = re.search(r'version "([\d.]+)', said(home / "bin" / "java", "-version"))
    return found[1] if found else ""


def environment_of(run: Run, python: Path) -> Path:
    """The Python of an environment with the project and this PySpark, made when it is missing."""
    folder, config = CACHE / f"python-{run.python}-pyspark-{run.pyspark}", ConfigParser()
    made, ready = folder / "bin" / "python", folder / "ready"
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = config["options.extras_require"]
    wanted = config["options"]["install_requires"] + extras["spark"] + extras["test"]
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        print(f"== matrix: installing PySpark {run.pyspark} for Python {run.python}", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        editable = ["--config-settings", "editable_mode=compat", "-e", f"{ROOT}[spark,test]"]
        subprocess.run([*pip, *editable, f"pyspark=={run.pyspark}.*"], check=True)
        subprocess.run([*pip, "--no-deps", "pyjks>=20"], check=True)
        ready.write_text(wanted, encoding="utf-8")
    return made


def pytest_arguments(run: Run) -> list[str]:
    """Return the tests to run: pure ones, or those with the mark `matrix` on one kind of broker."""
    if run.tests == PURE:
        folders = [f"tests/{each}" for each in ("unit", "golden", "property")]
        processes = "tests/unit/broker_sim/server"
        return [*folders, f"--ignore={processes}", "-n", "2", "-m", "not slow and not chaos"]
    files = sorted((ROOT / "tests" / "integration").glob("test_*.py"))
    marked = [str(path) for path in files if "mark.matrix" in path.read_text(encoding="utf-8")]
    kind = "not apache_kafka" if run.tests == SIM else "apache_kafka"
    return [*marked, "-n", "0", "-m", "matrix", "-k", kind]


def carry_out(run: Run, python: Path, java: Path) -> dict[str, str | int]:
    """Run the tests; their counts, and the versions as they are in full."""
    made, report = environment_of(run, python), CACHE / f"{run.name}.xml"
    report.unlink(missing_ok=True)
    variables = os.environ | {
        "CI": "true",  # what cannot be had here is a failure
        "JAVA_HOME": str(java),
        "PATH": f"{java / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        **({"TXNLOG_KAFKA_VERSION": run.tests.split()[1]} if run.tests in KAFKAS else {}),
    }
    command = [made, "-m", "pytest", "-q", f"--junitxml={report}", *pytest_arguments(run)]
    print(f"== matrix: {run.name}", flush=True)
    subprocess.run(command, cwd=ROOT, env=variables, check=False)
    suite = next(ElementTree.parse(report).iter("testsuite")).attrib
    failed, skipped = int(suite["failures"]) + int(suite["errors"]), int(suite["skipped"])
    return asdict(run) | {
        "passed": int(suite["tests"]) - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "date": datetime.now(UTC).date().isoformat(),
        "pyspark": said(made, "-c", "import pyspark; print(pyspark.__version__)").strip(),
        "python": said(made, "--version").split()[1],
        "java": java_version(java),
    }


def outcome(recorded: Recorded, run: Run) -> str:
    """A cell of the table."""
    found = recorded.get(run.name)
    if found is None:
        return "not run"
    counts = (f"{found[each]} {each}" for each in ("passed", "failed", "skipped") if found[each])
    return f"{found['date']}: {', '.join(counts)}"


def table(recorded: Recorded) -> str:
    """Markdown: a row for each PySpark, Python and Java, a column for each kind of tests."""
    lines = [f"| PySpark | Python | Java | {' | '.join(COLUMNS)} |", f"|{'---|' * 8}"]
    for pyspark, python, java in ((s, p, j) for s in PYSPARKS for p in PYTHONS for j in JAVAS):
        runs = [Run(pyspark, python, java, each) for each in COLUMNS]
        ran = [recorded[run.name] for run in runs if run.name in recorded]
        full = ran[-1] if ran else {"pyspark": pyspark, "python": python, "java": java}
        versions = (full["pyspark"], full["python"], full["java"])
        cells = [*versions, *(outcome(recorded, run) for run in runs)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, UNRELEASED]) + "\n"


def page(text: str, recorded: Recorded) -> str:
    """The page with the table in its place."""
    return PLACE.sub(lambda found: f"{found[1]}\n{table(recorded)}\n{found[2]}", text)


def known() -> Recorded:
    """Return the versions that are recorded now."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}


def main(words: list[str]) -> int:
    """Carry out the runs that are wanted and can be, and write what is known after each."""
    failed = 0
    for run in (run for run in planned() if all(word in run.name for word in words)):
        python, java = find_python(run.python), find_java(run.java)
        if python is None or java is None:
            print(f"== matrix: {run.name}: not run, it is not on this machine", flush=True)
            continue
        found = carry_out(run, python, java)
        failed += found["failed"] != 0
        text = json.dumps(known() | {run.name: found}, indent=0, sort_keys=True)
        RECORDED.write_text(text + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), known()), encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
