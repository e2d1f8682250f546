"""Azurite, Microsoft's emulator of Azure's storage, from the npm registry; it needs Node.js."""

from __future__ import annotations

import fcntl
import shutil
import socket
import subprocess
from pathlib import Path

from azure.storage.blob import ContainerClient
from support.brokers.apache_kafka import REPOSITORY, START_TIMEOUT_S, Unavailable, die_with_parent
from support.brokers.probe import free_ports, wait_until

VERSION = "3.35.0"
HOME = REPOSITORY / ".cache" / "azurite" / VERSION
NPM_TIMEOUT_S = 300
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Not a secret: every Azurite has this account."""
CONTAINER = "checkpoints"


def azurite() -> Path:
    """The script that starts it, fetched once. Unavailable says why not."""
    HOME.mkdir(parents=True, exist_ok=True)
    script = HOME / "node_modules" / ".bin" / "azurite-blob"
    with (HOME.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            _fetch()
    return script


def _fetch() -> None:
    if shutil.which("npm") is None:
        raise Unavailable("Azurite is not here: `npm` is not installed")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(HOME)]
    done = subprocess.run(
        [*command, f"azurite@{VERSION}"],
        check=False, capture_output=True, text=True, timeout=NPM_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise Unavailable(f"Azurite is not to be had: {done.stderr[-300:]}")


class Azurite:
    """One emulator with one container. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Azurite:
        command = [str(azurite()), "--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        command += ["--location", str(self._folder), "--silent", "--skipApiVersionCheck"]
        command += ["--disableTelemetry"]
        with (self._folder / "azurite.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
            )  # fmt: skip
        wait_until(self._answers, "Azurite answers", timeout_s=START_TIMEOUT_S)
        credential = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
        url = f"http://{self.address}/{ACCOUNT}"
        ContainerClient(url, CONTAINER, credential).create_container()
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

    def location(self, path: str) -> str:
        return f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/{path}"
