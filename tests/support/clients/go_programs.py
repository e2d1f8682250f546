"""Programs with franz-go, compiled from `support/clients/go`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from support.harness.maven import CACHE, Unavailable

SOURCES = Path(__file__).with_name("go")
BUILT = CACHE / "go-tools"
BUILD_SECONDS_MAX = 600


def go_program(name: str) -> list[str]:
    """Return the command of a program, compiled once. Unavailable where Go or the modules are not
    had."""
    digest = hashlib.sha256()
    for source in sorted((SOURCES / name).iterdir()):
        digest.update(source.read_bytes())
    program = BUILT / digest.hexdigest()[:16]
    if not program.exists():
        if shutil.which("go") is None:
            raise Unavailable("franz-go is not here: `go` is not installed")
        BUILT.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["go", "build", "-o", str(program), "."],
            cwd=SOURCES / name, check=False, capture_output=True, text=True,
            timeout=BUILD_SECONDS_MAX,
        )  # fmt: skip
        if done.returncode != 0:
            raise Unavailable(f"franz-go is not here: {done.stderr.strip()[-200:]}")
    return [str(program)]
