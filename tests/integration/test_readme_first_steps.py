"""The README's first steps, as printed, in an empty folder: everybody begins with them.

`make wheel` names the Python of an environment with nothing but the installed wheel in
TXNLOG_INSTALLED_PYTHON; else it is the tests' own Python and this tree.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.secured_kafka import SECURED_BROKERS
from support.clients.librdkafka import create_topic
from support.harness.availability import started_when_asked
from support.harness.printed import code_blocks, section

LINE_S_MAX = 600
"""Seconds on a busy machine; most of the time is Spark's start."""
INSTALLED = os.environ.get("TXNLOG_INSTALLED_PYTHON")
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STEPS = section(README, "First steps")


def block(language: str) -> str:
    """The one block of this language in the section."""
    (found,) = code_blocks(language, STEPS)
    return found


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell without the virtual environment, as those of cron or an IDE.

    `python` and `python3` of its PATH fail: nothing of the first steps may run another Python than
    the one that runs the command.
    """
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name in ("python", "python3"):
        (bin_folder / name).write_text('#!/bin/sh\necho "the python3 of PATH ran" >&2\nexit 1\n')
        (bin_folder / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    path = os.pathsep.join((str(bin_folder), os.environ["PATH"]))
    tree = {"PYTHONPATH": "" if INSTALLED else str(ROOT)}
    return kept | tree | {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_java")
def test_the_first_steps_end_with_the_rows_that_are_printed_there(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "job.py").write_text(block("python"), encoding="utf-8")
    said, told = "", ""
    variables = environment(tmp_path)
    python = shlex.quote(INSTALLED or sys.executable)
    for printed in block("sh").splitlines():
        line = re.sub(r"\bpython\b", python, printed)
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LINE_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr[-3000:]}"
        said = done.stdout
        told += done.stderr
    assert said == block("text")
    assert re.search(
        r" INFO txnlog_spark: .*, batch \d+: 2 rows to orders-loud, committed in ", told
    )
    # The source's last line may be lost: Spark passes it on in a thread, which a script that ends
    # may outrun. test_prove_planted.py looks for it, on a driver that stays.
    assert " INFO txnlog_spark: orders: 2 offsets to read, the first batch starts" in told


def test_the_first_hour_names_all_missing_grants_at_once_and_explains_an_error(
    tmp_path: Path,
) -> None:
    """The Python of the first steps checks an empty folder and a cluster that grants nothing.

    Besides the missing grants, `check` finds the python3 of PATH, which Spark's workers would run.
    """
    with started_when_asked(SECURED_BROKERS, lambda name: tmp_path / name) as broker_of:
        kafka = broker_of("broker_sim")
        for topic in ("orders", "orders-loud"):
            create_topic(kafka.bootstrap_servers, topic, 1)
        words = ["check", "--bootstrap-server", kafka.bootstrap_servers, "--group", "shouter"]
        words += ["--input", "orders", "--output", "orders-loud", "--checkpoint", "checkpoints"]
        variables = environment(tmp_path)
        with kafka.security.only([]):
            refused = command(words, variables, tmp_path)
    assert refused.returncode == 1, refused.stderr
    grants = re.findall(r"kafka-acls\.sh .* --operation (\w+) --([a-z-]+) (\S+)", refused.stdout)
    assert sorted(grants) == [
        ("Read", "group", "shouter"),
        ("Read", "group", "shouter.progress."),
        ("Read", "topic", "orders"),
        ("Write", "topic", "orders-loud"),
        ("Write", "transactional-id", "txnlog-shouter"),
    ]
    assert f"export PYSPARK_PYTHON={INSTALLED or sys.executable}" in refused.stdout
    explained = command(["explain", "TXNLOG_UNKNOWN_TOPIC"], variables, tmp_path)
    assert (explained.returncode, explained.stderr) == (0, "")
    assert "TXNLOG_UNKNOWN_TOPIC" in explained.stdout


def command(
    words: list[str], variables: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run `python -m txnlog_spark` as the person of the first steps does."""
    return subprocess.run(
        [INSTALLED or sys.executable, "-m", "txnlog_spark", *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LINE_S_MAX,
        check=False,
    )
