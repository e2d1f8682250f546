"""Registry as a process: the same host, lock and signals as a broker's.

Its files are in `<data-dir>/registry`. It listens on the loopback interface alone, because it asks
for no login.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from pathlib import Path

from broker_sim.core.config import BrokerConfig
from broker_sim.core.endpoint import Endpoint
from broker_sim.registry.config import RegistryConfig
from broker_sim.registry.journal import RegistryDamaged
from broker_sim.registry.registry import Registry
from broker_sim.server.broker_server import BrokerServer
from broker_sim.server.process import (
    BACKLOG,
    CannotStart,
    listen,
    lock_directory,
    recover,
    stop,
    stop_event,
    watch_parent,
)
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage

LOOPBACK = "127.0.0.1"
REQUEST_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a request, mostly the records of an append."""
RESERVED_BYTES = 1024 * 1024
"""Free space that is left for the ends of sessions."""


def run(
    data_dir: Path,
    port: int,
    registry_config: RegistryConfig,
    *,
    exit_with_pid: int | None = None,
) -> None:
    """Start, print READY, serve until SIGTERM or SIGINT, stop cleanly.

    Raises CannotStart before READY, StorageError if the data directory cannot be relied on; any
    other exception is a crash.
    """
    root = data_dir / "registry"
    with lock_directory(root, "registry"), listen(Endpoint(LOOPBACK, port)) as listening:
        asyncio.run(_serve(root, listening, registry_config, exit_with_pid))


async def _serve(
    root: Path,
    listening: socket.socket,
    registry_config: RegistryConfig,
    exit_with_pid: int | None,
) -> None:
    # Of a broker's configurations those of sockets count here, and "listeners" has to be valid.
    config = BrokerConfig({"socket.request.max.bytes": str(REQUEST_BYTES_MAX)})
    storage = FileStorage(root)
    host = BrokerServer(
        lambda: Registry(registry_config, storage, secrets.SystemRandom()),
        storage,
        config,
        SpaceGuard(root, RESERVED_BYTES),
    )
    # What the process before this one learned of a failed fsync is not known any more.
    storage.reads_medium = True
    try:
        recover(host, root)
    except RegistryDamaged as damaged:
        raise CannotStart(
            f"in {root} {damaged}; restore the folder from a copy, for what brokers were answered "
            "must not be forgotten"
        ) from damaged
    storage.reads_medium = False
    stopping = stop_event(host)
    loop = asyncio.get_running_loop()
    watcher = asyncio.create_task(watch_parent(exit_with_pid, host.clients_were_there, stopping))
    server = await loop.create_server(host.accept, sock=listening, backlog=BACKLOG)
    sys.stdout.write(f"READY registry={LOOPBACK}:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    await stopping.wait()
    watcher.cancel()
    server.close()
    await stop(host)
