"""The recipes of docs/deploying.md, as printed: an environment that is shipped to a cluster.

The machines of a cluster have folders, HOME and a Spark of their own, and cannot see the driver's
where the system lets a process have mounts of its own. In `make test` the environment is small, and
names this machine's packages; in `make chaos` it is the one of the page, from a package index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of
from support.harness.availability import available
from support.harness.maven import REPOSITORY, Unavailable
from support.harness.printed import code_blocks, section
from support.spark.clusters import Cluster, Standalone, Yarn, has_mounts, yarn_class_path

PAGE = (REPOSITORY / "docs" / "deploying.md").read_text(encoding="utf-8")
PACKED = ("txnlog_spark", "txnlog_kafka", "broker_sim", "pyspark_txnlog", "txnlog_python")
PACKED_TOO = ("setup.cfg", "pyproject.toml", "PACKAGE.md", "CHANGELOG.md", "LICENSE")
ARCHIVE_BYTES_MAX = 150 * 1024 * 1024
"""Limit of the archive's size; with PySpark the archive would have 560 MB."""


def block(heading: str, language: str = "sh") -> str:
    """The first block of this language below a heading of the page."""
    return code_blocks(language, section(PAGE, heading))[0]


def pack_small(folder: Path) -> None:
    """`env.tar.gz` in the shape that venv-pack gives it, with links to what this machine has."""
    made = folder / "small"
    (made / "bin").mkdir(parents=True)
    python = Path(sys.executable).resolve()
    (made / "bin" / "python").symlink_to(python)
    (made / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = made / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    paths = [each for each in sys.path if each.endswith("site-packages")]
    (site / "machine.pth").write_text("\n".join([str(REPOSITORY), *paths]))
    with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
        for each in made.iterdir():
            archive.add(each, each.name)


def pack_as_printed(cluster: Cluster) -> None:
    """`env.tar.gz` by the page's commands. Unavailable where there is no package index."""
    folder = cluster.driver.folder
    source = folder / "source"
    for name in PACKED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
    for name in PACKED_TOO:
        shutil.copy(REPOSITORY / name, source)
    try:
        cluster.driver.run(block("The Python environment"), PACKAGE=str(source))
    except AssertionError as error:
        if "Could not find a version that satisfies the requirement" in str(error):
            raise Unavailable("the packages are not to be had from the package index") from error
        raise
    archive = folder / "env.tar.gz"
    assert archive.stat().st_size < ARCHIVE_BYTES_MAX
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert any(name.endswith("/pyspark_txnlog/__init__.py") for name in names)
    assert not any("/site-packages/pyspark/" in name for name in names)
    shutil.rmtree(folder / "packed")


def run_recipe(cluster: Cluster, bootstrap: str, heading: str, **variables: str) -> None:
    """Submit the page's job by the page's commands; its output is that of the whole input."""
    for topic in ("orders", "orders-loud"):
        create_topic(bootstrap, topic, 2)
    for partition in (0, 1):
        produce_values(bootstrap, "orders", [f"anvil {partition}"], partition=partition)
    (cluster.driver.folder / "job.py").write_text(block("The Python environment", "python"))
    said = cluster.driver.run(block(heading), BROKERS=bootstrap, **cluster.variables, **variables)
    written = values_of(read_topic(bootstrap, "orders-loud", isolation="read_committed"))
    assert written == ["ANVIL 0", "ANVIL 1"], f"{said[-3000:]}"
    assert cluster.unpacked(), "no environment was unpacked for executors"


def test_the_unit_of_the_page_is_one_that_systemd_takes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    unit, variables = block("systemd", "ini"), block("systemd", "text")
    given = {line.partition("=")[0] for line in variables.splitlines()}
    assert set(re.findall(r"\$\{(\w+)\}", unit)) <= given
    path = tmp_path / "shouter.service"
    path.write_text(unit.replace("/srv/spark/bin/spark-submit", "/bin/true"))
    command = shutil.which("systemd-analyze")
    if command is None:
        record_property("said", "there is no systemd to ask")
        return
    asked = subprocess.run([command, "verify", path], capture_output=True, text=True, check=False)
    unknown = set(re.findall(r"Unknown key[^\n]*?'(\w+)'", asked.stderr))
    assert asked.returncode == 0, asked.stderr
    assert unknown <= {"RestartSteps", "RestartMaxDelaySec"}, "systemd before 254 lacks these two"


@pytest.fixture(autouse=True)
def says_what_is_not_hidden(record_property: Callable[[str, object], None]) -> None:
    """Record in the report that the cluster's machines could see the driver's folder.

    A process without mounts of its own cannot hide the folder, so the test shows less there.
    """
    if not has_mounts():
        record_property("said", "the cluster's machines could see the driver's folder")


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """A broker with nothing in it: the page names the topics."""
    with SimBroker(tmp_path / "broker") as broker:
        yield broker.bootstrap_servers


@pytest.mark.chaos
def test_the_recipe_for_client_mode_runs_as_printed(tmp_path: Path, bootstrap: str) -> None:
    with Standalone(tmp_path / "cluster") as cluster:
        pack_small(cluster.driver.folder)
        run_recipe(cluster, bootstrap, "Client mode")


@pytest.mark.chaos
def test_an_environment_packed_as_printed_runs_in_client_mode(
    tmp_path: Path, bootstrap: str
) -> None:
    with Standalone(tmp_path / "cluster") as cluster:
        available(lambda: pack_as_printed(cluster))
        run_recipe(cluster, bootstrap, "Client mode")


@pytest.mark.chaos
def test_an_environment_packed_as_printed_runs_in_cluster_mode(
    tmp_path: Path, bootstrap: str
) -> None:
    available(yarn_class_path)
    with Yarn(tmp_path / "cluster") as cluster:
        available(lambda: pack_as_printed(cluster))
        checkpoint = f"file://{cluster.shared}/checkpoint"
        run_recipe(cluster, bootstrap, "Cluster mode", CHECKPOINT=checkpoint)
