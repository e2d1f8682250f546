"""promtool, Prometheus' checker of rules, of Debian's package `prometheus`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.harness.debian import Program, debian_program

RUN_TIMEOUT_S = 600


def promtool() -> Program:
    """Return a promtool that runs here. Unavailable says why it cannot be had."""
    return debian_program("prometheus", "usr/bin/promtool")


def run_promtool(program: Program, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run to the end; what it says is in `stdout`, errors too."""
    return subprocess.run(
        [program.path, *map(str, arguments)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=program.environment,
        timeout=RUN_TIMEOUT_S,
    )
