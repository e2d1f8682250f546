"""An emulator of Google Cloud Storage from PyPI, `gcp-storage-emulator`, in a process of its own.

In this process it could not answer: pyarrow's client keeps Python from running meanwhile.
"""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

from support.brokers.apache_kafka import START_TIMEOUT_S, Unavailable, die_with_parent
from support.brokers.probe import free_ports, wait_until

BUCKET = "checkpoints"


def gcs_emulator() -> str:
    """The module that starts it. Unavailable without its package."""
    name = "gcp_storage_emulator"
    if importlib.util.find_spec(name) is None:
        raise Unavailable("the emulator of Google Cloud Storage is not installed")
    return name


class GcsEmulator:
    """One emulator with one bucket, in memory. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)

    def __enter__(self) -> GcsEmulator:
        command = [sys.executable, "-m", gcs_emulator(), "start", "--in-memory"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--default-bucket", BUCKET]
        with (self._folder / "gcs.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
            )  # fmt: skip
        wait_until(self._answers, "the emulator of GCS answers", timeout_s=START_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def options(self) -> dict[str, str]:
        """How to reach it: options without `txnlog.fs.`."""
        return {
            "gs.storage.root.url": f"http://127.0.0.1:{self.port}",
            "gs.auth.type": "UNAUTHENTICATED",
        }
