"""promtool, Prometheus' checker of rules: the one on PATH, else that of Debian's `prometheus`."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from support.harness.debian_packages import unpacked

RUN_TIMEOUT_S = 120


@functools.cache
def promtool() -> str:
    """A promtool that runs here. Unavailable says why there is none."""
    found = shutil.which("promtool")
    if found is None:
        found = str(unpacked("prometheus", "promtool", libraries=False) / "usr/bin/promtool")
    return found


def run_promtool(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run to the end; what it says is in `stdout`, errors too."""
    return subprocess.run(
        [program, *map(str, arguments)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
