"""docs/broker/testing.md as printed: a broker in the tests of another application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.harness.printed import code_blocks, section

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "broker" / "testing.md").read_text(encoding="utf-8")
(TEST,) = code_blocks("python", section(PAGE, "In pytest"))


def test_the_printed_tests_pass_and_one_that_expects_another_record_fails(tmp_path: Path) -> None:
    """pytest on the block, in a folder that has nothing else."""
    (tmp_path / "test_orders.py").write_text(TEST)
    (tmp_path / "test_wrong.py").write_text(TEST.replace('== b"rope"', '== b"anvil"'))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "assert b'rope' == b'anvil'" in done.stdout
