"""An emulator of Google Cloud Storage from PyPI, `gcp-storage-emulator`, in a process of its own.

In this process it could not answer: pyarrow's client keeps Python from running meanwhile.
"""

from __future__ import annotations

import importlib.util
import sys

from support.brokers.processes import Server
from support.harness.maven import Unavailable

BUCKET = "checkpoints"


def gcs_emulator() -> str:
    """The module that starts it. Unavailable without its package."""
    name = "gcp_storage_emulator"
    if importlib.util.find_spec(name) is None:
        raise Unavailable("the emulator of Google Cloud Storage is not installed")
    return name


class GcsEmulator(Server):
    """Emulator of GCS with one bucket, in memory."""

    what = "the emulator of GCS"

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", gcs_emulator(), "start", "--in-memory"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--default-bucket", BUCKET]
        return command

    def options(self) -> dict[str, str]:
        """Options to reach the emulator, without `txnlog.fs.`."""
        return {
            "gs.storage.root.url": f"http://127.0.0.1:{self.port}",
            "gs.auth.type": "UNAUTHENTICATED",
        }
