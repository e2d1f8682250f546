"""Broker as a process: the data directory's lock, the listening socket, signals, READY.

The data of broker `k` lives in `<data-dir>/broker-k`, so that a directory can hold a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig, ConfigValue
from broker_sim.core.data_directory import CLEAN_SHUTDOWN_FILE
from broker_sim.core.endpoint import (
    Endpoint,
    Listener,
    format_listeners,
    read_listeners,
    read_registry,
)
from broker_sim.core.security.bearer import TokenChecks
from broker_sim.server.broker_server import BrokerServer
from broker_sim.server.client_connection import ClientConnection
from broker_sim.server.codecs import CODECS
from broker_sim.server.faults.requests import PATH as FAULTS_PATH
from broker_sim.server.faults.requests import faults_answer
from broker_sim.server.faults.rules import FaultRules
from broker_sim.server.http_server import HttpServer, metrics_answer
from broker_sim.server.metrics import BrokerMetrics
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage
from broker_sim.server.system import StorageFull
from broker_sim.server.tls import TlsServer, build_tls_context
from broker_sim.server.tokens import token_checks
from txnlog_kafka.processes import has_ended, start_time
from txnlog_kafka.wire.invariants import present

LOCK_FILE = ".lock"
BACKLOG = 1024
PARENT_POLL_SECONDS = 0.5
HAND_OVER_SECONDS_MAX = 10.0
"""Time limit of a controlled shutdown. If the cluster's registry or controller does not answer, the
broker stops without it, and its session ends later."""
LINGER_SECONDS = 5.0
"""Seconds that a broker whose application ended waits for a client to come back.

Another application may have asked for its address, and be about to connect.
"""


METRICS, FAULTS = "--metrics-port", "--fault-port"
_log = logging.getLogger(__name__)


class CannotStart(Exception):
    """Failure to start; the text says why and what to do."""


def broker_directory(data_dir: Path, node_id: int) -> Path:
    """Return the directory of a broker's files."""
    return data_dir / f"broker-{node_id}"


def run(
    data_dir: Path,
    overrides: Mapping[str, str | ConfigValue],
    *,
    exit_with_pid: int | None,
    metrics: Endpoint | None = None,
    faults: Endpoint | None = None,
) -> None:
    """Start, print READY, serve until SIGTERM or SIGINT, stop cleanly.

    A broker of a cluster is ready, and lets clients in, when the registry knows it. `metrics` is
    the address that serves figures over HTTP, and `faults` the one that takes rules of faults; the
    lines METRICS and FAULTS then name them. A line LISTENER follows for each listener but the
    first.

    Raises ConfigError or CannotStart before READY, StorageError if the data directory cannot be
    relied on; any other exception is a crash.
    """
    config = BrokerConfig(overrides)
    listeners = read_listeners(config)
    read_registry(config)
    contexts = {each.name: build_tls_context(each, config) for each in listeners}
    tokens = token_checks(config, listeners)
    root = broker_directory(data_dir, config.integer("node.id"))
    with lock_directory(root), contextlib.ExitStack() as stack:
        sockets = {each.name: stack.enter_context(listen(each.bound)) for each in listeners}
        config = _with_ports(overrides, listeners, sockets)
        doors = [
            _Door(each, sockets[each.name], contexts[each.name]) for each in read_listeners(config)
        ]
        asked = {
            option: stack.enter_context(listen(endpoint, option))
            for option, endpoint in ((METRICS, metrics), (FAULTS, faults))
            if endpoint is not None
        }
        asyncio.run(_serve(root, config, doors, exit_with_pid, asked, tokens))


@contextlib.contextmanager
def lock_directory(root: Path, holder: str = "broker") -> Iterator[None]:
    """Hold the directory for this process. Raises CannotStart if another `holder` has it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CannotStart(f"cannot use the data directory {root}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise CannotStart(
            f"another {holder} is running on {root}; stop it, or give another --data-dir"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def listen(endpoint: Endpoint, option: str = "--port") -> Iterator[socket.socket]:
    """Yield the listening socket. Raises CannotStart if the address is not available."""
    try:
        infos = socket.getaddrinfo(
            endpoint.host or None,
            endpoint.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        family, kind, protocol, _, address = infos[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise CannotStart(
            f"cannot listen on {endpoint}: {error.strerror}; choose another with {option}"
        ) from error
    with listening:
        listening.listen(BACKLOG)
        listening.setblocking(False)
        yield listening


def _with_ports(
    overrides: Mapping[str, str | ConfigValue],
    listeners: Iterable[Listener],
    sockets: Mapping[str, socket.socket],
) -> BrokerConfig:
    """Return the configuration with the ports that were bound; a configured port may be 0."""
    bound, advertised = {}, {}
    for each in listeners:
        host, port = sockets[each.name].getsockname()[:2]
        bound[each.name] = Endpoint(each.bound.host or host, port)
        advertised[each.name] = Endpoint(each.advertised.host, each.advertised.port or port)
    values = {**overrides, "listeners": format_listeners(bound)}
    if overrides.get("advertised.listeners"):
        values["advertised.listeners"] = format_listeners(advertised)
    return BrokerConfig(values)


@dataclass(frozen=True, slots=True)
class _Door:
    """Open listener: its socket, and its TLS if it has any."""

    listener: Listener
    listening: socket.socket
    context: ssl.SSLContext | None

    async def serve(
        self, accept: Callable[[Listener], ClientConnection]
    ) -> asyncio.Server | TlsServer:
        """Accept connections."""
        if self.context is not None:
            return TlsServer(self.listening, self.context, lambda: accept(self.listener))
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: accept(self.listener), sock=self.listening, backlog=BACKLOG
        )


async def _serve(
    root: Path,
    config: BrokerConfig,
    doors: Sequence[_Door],
    exit_with_pid: int | None,
    asked: Mapping[str, socket.socket],
    tokens: TokenChecks,
) -> None:
    storage = FileStorage(root)
    space = SpaceGuard(root, config.integer("log.dir.reserved.bytes"))
    rng = secrets.SystemRandom()
    host = BrokerServer(
        lambda: Broker(config, storage, rng, codecs=CODECS, token_checks=tokens),
        storage,
        config,
        space,
        BrokerMetrics() if METRICS in asked else None,
        FaultRules() if FAULTS in asked else None,
    )
    # What the process before this one learned of a failed fsync is not known any more.
    storage.reads_medium = storage.size_bytes(CLEAN_SHUTDOWN_FILE) is None
    recover(host, root)
    stopping = stop_event(host)
    watcher = asyncio.create_task(watch_parent(exit_with_pid, host.clients_were_there, stopping))
    await _first_of(host.serving, stopping)
    # Only now: a broker of a cluster opens its logs once the registry has answered.
    storage.reads_medium = False
    if stopping.is_set():
        watcher.cancel()
        await stop(host)
        return
    servers = [await door.serve(host.accept) for door in doors]
    sys.stdout.write(f"READY bootstrap.servers={doors[0].listener.advertised}\n")
    side_servers = await _serve_http(host, asked)
    for door in doors[1:]:
        sys.stdout.write(f"LISTENER {door.listener.name}://{door.listener.advertised}\n")
    sys.stdout.flush()
    await stopping.wait()
    watcher.cancel()
    if config.boolean("controlled.shutdown.enable"):
        await host.hand_over(HAND_OVER_SECONDS_MAX)
    for server in [*servers, *side_servers]:
        server.close()
    await stop(host)


async def _serve_http(host: BrokerServer, asked: Mapping[str, socket.socket]) -> list[HttpServer]:
    """Serve figures and rules of faults on the sockets that there are, and say where."""
    servers = []
    for option, listening in asked.items():
        if option == METRICS:
            name, path, answer = "METRICS", "/metrics", metrics_answer(host.metrics_text)
        else:
            rules = present(host.faults, "it was made with rules")
            name, path, answer = "FAULTS", FAULTS_PATH, faults_answer(rules)
        servers.append(HttpServer(listening, answer))
        await servers[-1].start()
        at, port = listening.getsockname()[:2]
        sys.stdout.write(f"{name} http://{Endpoint(at, port)}{path}\n")
    return servers


async def _first_of(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


def recover(host: BrokerServer, root: Path) -> None:
    """Start the core. Raises CannotStart if there is no free space for it."""
    try:
        host.start()
    except StorageFull as full:
        raise CannotStart(
            f"there is no free space to recover in {root} ({full}); free some"
        ) from full


def stop_event(host: BrokerServer) -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT and a failed host set."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    host.failed.add_done_callback(lambda _: stopping.set())
    return stopping


async def stop(host: BrokerServer) -> None:
    """Stop cleanly. Raises the host's failure, if it failed."""
    if host.failed.done():
        host.failed.result()
    host.stop()
    # One turn of the loop lets the transports send what they hold and close.
    await asyncio.sleep(0)


async def watch_parent(
    pid: int | None, clients_were_there: Callable[[], bool], stopping: asyncio.Event
) -> None:
    """Stop when the process that wanted this broker is gone, and no other client uses it.

    The connections of that process have gone with it: open connections belong to others, such as a
    second application that found this broker in its directory.
    """
    if pid is None:
        return
    started = start_time(pid)
    while not has_ended(pid, started):
        clients_were_there()
        await asyncio.sleep(PARENT_POLL_SECONDS)
    _log.info("process %d is gone, stopping when no client is left", pid)
    loop = asyncio.get_running_loop()
    last_seen = loop.time()
    while True:
        # The time is looked at last: this process may have stood still for longer than that.
        if clients_were_there():
            last_seen = loop.time()
        elif loop.time() - last_seen >= LINGER_SECONDS:
            break
        await asyncio.sleep(PARENT_POLL_SECONDS)
    _log.info("no client is left, stopping")
    stopping.set()
