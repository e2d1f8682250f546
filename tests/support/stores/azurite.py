"""Azurite, Microsoft's emulator of Azure's storage, from the npm registry; it needs Node.js."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Self

from azure.storage.blob import ContainerClient
from support.brokers.processes import Server
from support.harness.maven import CACHE, Unavailable, completed_once

VERSION = "3.35.0"
HOME = CACHE / "azurite" / VERSION
NPM_TIMEOUT_S = 300
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Account and key of every Azurite: not a secret."""
CONTAINER = "checkpoints"


def azurite() -> Path:
    """The script that starts it, fetched once. Unavailable says why not."""
    with completed_once(HOME) as is_first:
        if is_first:
            _fetch()
    return HOME / "node_modules" / ".bin" / "azurite-blob"


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


class Azurite(Server):
    """Azurite emulator with one container."""

    what = "Azurite"

    def _command(self) -> list[str]:
        command = [str(azurite()), "--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        command += ["--location", str(self._folder), "--silent", "--skipApiVersionCheck"]
        return [*command, "--disableTelemetry"]

    def __enter__(self) -> Self:
        super().__enter__()
        credential = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
        url = f"http://{self.address}/{ACCOUNT}"
        ContainerClient(url, CONTAINER, credential).create_container()
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def location(self, path: str) -> str:
        return f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/{path}"
