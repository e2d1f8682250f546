"""The jobs and the test of AGENTS.md, as printed, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
LINES_MAX = 80
RUN_S_MAX = 600
"""Seconds on a busy machine; most of the time is Spark's start."""


def files() -> dict[str, str]:
    """Each block of Python under the name that its heading gives it."""
    block = r"^## [^\n]*`(\w+\.py)`\n.*?```python\n(.*?)```"
    return dict(re.findall(block, PAGE, re.DOTALL | re.MULTILINE))


def test_the_page_is_one_page_and_every_block_on_it_is_a_file_that_runs() -> None:
    assert PAGE.count("\n") <= LINES_MAX
    assert set(files()) == {"shouter.py", "totals.py", "test_jobs.py"}
    assert PAGE.count("```") == 2 * len(files())


@pytest.mark.chaos
@pytest.mark.usefixtures("quick_java")
def test_the_jobs_do_what_their_test_says(tmp_path: Path) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_jobs.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "1 passed" in done.stdout
