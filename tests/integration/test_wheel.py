"""What the installed package has, and not only the checkout: built, unpacked and run elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.apache_kafka import Unavailable
from support.harness.availability import available

from txnlog_spark import __version__

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("txnlog_spark", "txnlog_kafka", "broker_sim", "pyspark_txnlog", "jobs", "conf")
FILES = ("setup.cfg", "pyproject.toml", "PACKAGE.md", "LICENSE")


def run(folder: Path, *words: str, path: str = "") -> str:
    """What a Python command prints, in a folder and with nothing but `path` beside the packages."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


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
    assert "--isolation-level" in module("broker_sim", "consume", "--help")


def test_the_wheel_has_the_packages_and_nothing_of_the_checkout_besides(installed: Path) -> None:
    where = "import txnlog_spark, pyspark_txnlog; print(txnlog_spark.__file__)"
    found = run(installed.parent, "-c", where, path=str(installed)).strip()
    assert Path(found) == installed / "txnlog_spark" / "__init__.py"
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"txnlog_spark", "txnlog_kafka", "broker_sim", "pyspark_txnlog"}
    for name in names - {"pyspark_txnlog"}:
        assert (installed / name / "py.typed").exists()
