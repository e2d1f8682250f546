"""The installed package, instead of the checkout: built, unpacked and run elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.harness.availability import available
from support.harness.maven import Unavailable

from txnlog_spark import __version__
from txnlog_spark.tools.explain import explain

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "txnlog_spark",
    "txnlog_kafka",
    "broker_sim",
    "pyspark_txnlog",
    "txnlog_python",
    "txnlog_testing",
)
SOURCES = (*PACKAGES, "jobs", "conf")
FILES = ("setup.cfg", "pyproject.toml", "PACKAGE.md", "CHANGELOG.md", "LICENSE")
ABSENT = "raise ModuleNotFoundError(f\"No module named '{__name__}'\", name=__name__)\n"
SERVES = """
from broker_sim import LocalCluster
from txnlog_kafka.host.client import Client

with LocalCluster("data") as cluster:
    print(cluster.bootstrap_servers.rpartition(":")[0])
"""
IMPORTS = """
import importlib, sys

for name in sys.argv[1:]:
    try:
        importlib.import_module(f"txnlog_spark.{name}")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
NAMES_THE_EXTRA = "PySpark 4.2 or newer is needed: pip install 'txnlog_spark[spark]'"


def run(folder: Path, *words: str, path: str = "") -> str:
    """Run a Python command in a folder, with `path` alone beside the packages; return its text."""
    done = started(folder, *words, path=path)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def started(folder: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command to its end, however it ends."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, built from a copy so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    wheel = available(lambda: build_wheel(source, folder))
    shutil.unpack_archive(wheel, folder / "site", "zip")
    return folder / "site"


def build_wheel(source: Path, folder: Path) -> Path:
    """The wheel, as pip builds it. Unavailable where the build's own needs cannot be had."""
    words = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [sys.executable, *words, "--wheel-dir", str(folder), str(source)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if "Could not find a version that satisfies the requirement setuptools" in done.stderr:
        raise Unavailable("setuptools is not to be had from the package index")
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_runs_its_commands(installed: Path, tmp_path: Path) -> None:
    def module(*words: str) -> str:
        return run(tmp_path, "-m", *words, path=str(installed))

    assert module("broker_sim", "--version") == f"broker_sim {__version__}\n"
    assert "progress" in module("txnlog_spark", "--help")
    explained = module("txnlog_spark", "explain", "TXNLOG_AVRO.SCHEMA")
    assert explained == explain("TXNLOG_AVRO.SCHEMA")
    assert "--isolation-level" in module("broker_sim", "consume", "--help")


def test_the_wheel_has_the_packages_and_nothing_of_the_checkout_besides(installed: Path) -> None:
    where = "import txnlog_spark, pyspark_txnlog; print(txnlog_spark.__file__)"
    found = run(installed.parent, "-c", where, path=str(installed)).strip()
    assert Path(found) == installed / "txnlog_spark" / "__init__.py"
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {*PACKAGES}
    for name in names - {"pyspark_txnlog"}:
        assert (installed / name / "py.typed").exists()


def test_the_wheel_brings_pyspark_with_its_extra_alone(installed: Path) -> None:
    """A platform has a PySpark of its own, which `pip install txnlog_spark` must leave alone."""
    (metadata,) = installed.glob("*.dist-info/METADATA")
    asked = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE)
    pyspark = [each for each in asked if re.match(r"pyspark\b", each)]
    assert pyspark == ['pyspark<6,>=4.2; extra == "spark"']


def test_the_description_of_the_wheel_has_the_changelog(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    assert "\n## Unreleased" in metadata.read_text()


@pytest.fixture
def no_pyspark(installed: Path, tmp_path: Path) -> str:
    """A PYTHONPATH with the wheel on which PySpark is not to be found, by children neither."""
    for name in ("pyspark", "py4j"):
        (tmp_path / "absent").mkdir(exist_ok=True)
        (tmp_path / "absent" / f"{name}.py").write_text(ABSENT)
    return os.pathsep.join((str(tmp_path / "absent"), str(installed)))


def test_broker_client_and_commands_run_without_pyspark(no_pyspark: str, tmp_path: Path) -> None:
    assert "start" in run(tmp_path, "-m", "broker_sim", "--help", path=no_pyspark)
    assert "progress" in run(tmp_path, "-m", "txnlog_spark", "--help", path=no_pyspark)
    assert run(tmp_path, "-c", SERVES, path=no_pyspark) == "127.0.0.1\n"
    unknown = ("--bootstrap-server", "127.0.0.1:1", "--timeout-ms", "10", "--checkpoint", "none")
    shown = started(tmp_path, "-m", "txnlog_spark", "progress", "show", *unknown, path=no_pyspark)
    assert "pyspark" not in shown.stderr
    assert shown.stderr.startswith("txnlog_spark: ")
    assert shown.stderr.count("\n") == 1


def test_a_module_that_needs_pyspark_names_the_extra(no_pyspark: str, tmp_path: Path) -> None:
    said = run(tmp_path, "-c", IMPORTS, "datasource", "avro", "metrics", path=no_pyspark)
    assert said.splitlines() == [f"ModuleNotFoundError: {NAMES_THE_EXTRA}"] * 3


def test_a_command_that_needs_pyspark_ends_with_one_line(no_pyspark: str, tmp_path: Path) -> None:
    where = ("--path", ".txnlog", "--topic", "dead")
    run(tmp_path, "-m", "broker_sim", "topics", "create", *where, path=no_pyspark)
    words = ("-m", "txnlog_spark", "dead-letters", "show", *where)
    done = started(tmp_path, *words, path=no_pyspark)
    assert (done.returncode, done.stderr) == (1, f"txnlog_spark: {NAMES_THE_EXTRA}\n")
