"""docs/broker/testing.md as printed: a broker in the tests of another application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.harness.printed import code_blocks, section

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "broker" / "testing.md").read_text(encoding="utf-8")
(TEST,) = code_blocks("python", section(PAGE, "In pytest"))


def run_printed(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    """pytest on the block, in a folder that has nothing else."""
    (folder / "test_orders.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


def test_the_printed_tests_pass(tmp_path: Path) -> None:
    done = run_printed(tmp_path, TEST)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_printed_test_fails_when_it_expects_another_record(tmp_path: Path) -> None:
    done = run_printed(tmp_path, TEST.replace('== b"rope"', '== b"anvil"'))
    assert "assert b'rope' == b'anvil'" in done.stdout, done.stdout + done.stderr
