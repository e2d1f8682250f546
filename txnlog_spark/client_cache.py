"""Which cluster, and one client of it per process.

Spark builds new readers and writers all the time, in worker processes that live on: the planner
of each micro-batch, the tasks, the committer. So connections are kept here, by what they connect
to, and not in those objects; they are never pickled and never survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txnlog_kafka.host import embedded
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import PLAINTEXT, PREFIX, Security, read_security
from txnlog_kafka.host.security_options import SECURITY_OPTIONS
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.invariants import present
from txnlog_spark.errors import DeadlineExceeded, RemoteProtocolError
from txnlog_spark.options.table import check_cluster

TOPIC_WAIT_MS_MAX = 15_000
BOOTSTRAP_TIMEOUT_MS_MAX = 30_000
CLIENTS_MAX = 8
"""Workers are shared by all queries of a session; the least recently used client goes first."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How to reach the brokers: `bootstrap_servers`, or the embedded broker under `path`."""

    bootstrap_servers: str | None = None
    path: str | None = None
    client_id: str = "txnlog"
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000
    connect_timeout_ms: int = 10_000
    idle_ms_max: int = 540_000
    """-1: never closed."""
    rack: str = ""
    read_replica_ms: int = 300_000
    security: Security = PLAINTEXT

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> ConnectionSettings:
        """From the values of `options.parse_options`.

        Raises OptionError, see `check_cluster` and `read_security`.
        """
        check_cluster(values)
        return cls(
            bootstrap_servers=values["kafka.bootstrap.servers"],
            path=values["path"],
            client_id=values["kafka.client.id"],
            request_timeout_ms=values["kafka.request.timeout.ms"],
            api_timeout_ms=values["kafka.default.api.timeout.ms"],
            retry_backoff_ms=values["kafka.retry.backoff.ms"],
            retry_backoff_max_ms=values["kafka.retry.backoff.max.ms"],
            connect_timeout_ms=values["kafka.socket.connection.setup.timeout.ms"],
            idle_ms_max=values["kafka.connections.max.idle.ms"],
            rack=values.get("kafka.client.rack") or "",
            read_replica_ms=values["kafka.metadata.max.age.ms"],
            security=read_security(_security_options(values)),
        )


def _security_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Those that were given or have a default, by Kafka's names."""
    found = {option.name: values[PREFIX + option.name] for option in SECURITY_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def resolve_bootstrap(settings: ConnectionSettings) -> str:
    """`host:port,host:port`; starts the embedded broker when that is asked for."""
    if settings.bootstrap_servers is not None:
        return settings.bootstrap_servers
    return embedded.ensure_broker(present(settings.path, "settings name a cluster or a path"))


class ClientCache:
    """The clients of one process, by what they connect to; a forked child begins with none.

    Queries share a client where all that `ConnectionSettings` says is equal, and nothing more: what
    a query knows of itself is not kept here.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._clients: dict[tuple[ConnectionSettings, str], Client] = {}

    def get(self, settings: ConnectionSettings, servers: str) -> Client:
        """The client for these settings and brokers.

        Raises DeadlineExceeded or RemoteProtocolError when no broker can be reached.
        """
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        client = self._clients.pop((settings, servers), None)
        if client is None:
            client = _connect(settings, servers)
        while len(self._clients) >= CLIENTS_MAX:
            self._clients.pop(next(iter(self._clients))).close()
        self._clients[settings, servers] = client
        return client

    def close(self) -> None:
        """Close all clients and forget them."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()


_cache = ClientCache()


def client_for(settings: ConnectionSettings, bootstrap_servers: str | None = None) -> Client:
    """This process's client. A task is given the address that its planner resolved."""
    return _cache.get(settings, bootstrap_servers or resolve_bootstrap(settings))


def _connect(settings: ConnectionSettings, servers: str) -> Client:
    config = SessionConfig(
        request_timeout_ms=settings.request_timeout_ms,
        operation_timeout_ms=settings.api_timeout_ms,
        bootstrap_timeout_ms=min(BOOTSTRAP_TIMEOUT_MS_MAX, settings.api_timeout_ms),
        topic_wait_ms=min(TOPIC_WAIT_MS_MAX, settings.api_timeout_ms),
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        rack_id=settings.rack,
        read_replica_ms=settings.read_replica_ms,
    )
    client = Client(
        servers,
        client_id=settings.client_id,
        config=config,
        security=settings.security,
        connect_timeout_s=settings.connect_timeout_ms / 1000,
        idle_s_max=None if settings.idle_ms_max < 0 else settings.idle_ms_max / 1000,
    )
    _reach(client, servers)
    return client


def _reach(client: Client, servers: str) -> None:
    """Ask for the cluster once, so that a wrong address is distinguished from a slow request."""
    try:
        client.run(refresh_metadata(client.session, ()))
    except DeadlineExceeded as error:
        client.close()
        raise DeadlineExceeded(
            f"reaching a broker at kafka.bootstrap.servers={servers} (check the address, and that "
            "the cluster runs)",
            error.waited_ms,
            error.last_error,
        ) from error
    except RemoteProtocolError as error:
        client.close()
        raise error.with_advice(f"It was asked for at kafka.bootstrap.servers={servers}") from None
