"""A registry process, and a client of it that waits for each answer."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.brokers.probe import exchange

from broker_sim.apis import OWN_APIS, RegistryApiKey, own_api_of
from broker_sim.apis.frames import decode_response, encode_request

TIMEOUT_S = 600.0


class RegistryProcess:
    """`python -m broker_sim registry`. A context manager; a killed one may be started again."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self._data_dir = data_dir
        self._arguments = arguments
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> RegistryProcess:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns when it can be used; it keeps its port."""
        command = [sys.executable, "-m", "broker_sim", "registry", "--data-dir"]
        self.process = subprocess.Popen(
            [*command, str(self._data_dir), "--port", str(self.port), *self._arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line.startswith("READY registry=127.0.0.1:"), line
        self.port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        self.process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(TIMEOUT_S)


class RegistryConnection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self) -> RegistryConnection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()

    def ask(self, key: RegistryApiKey, **fields: Any) -> Any:
        return self.ask_message(OWN_APIS[key].request(**fields))

    def ask_message(self, message: Any) -> Any:
        """Send a request that is already built, and return its answer."""
        self._correlation_id += 1
        framed = encode_request(message, self._correlation_id, "test")
        correlation_id, answer = decode_response(
            own_api_of(message), exchange(self.socket, framed[4:])
        )
        assert correlation_id == self._correlation_id
        return answer
