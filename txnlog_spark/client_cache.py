"""Connection settings of a cluster, and one client for each of them in a process.

Spark builds new readers and writers all the time, in worker processes that live on: the planner of
each micro-batch, the tasks, the committer. So connections are kept here, by their settings, and not
in those objects. They are never pickled and never survive a fork (`process_local`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txnlog_kafka.host import broker_process
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import PLAINTEXT, PREFIX, Security, read_security
from txnlog_kafka.host.security_options import SECURITY_OPTIONS
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.invariants import present
from txnlog_spark.errors import DeadlineExceeded, RemoteProtocolError
from txnlog_spark.options.parse import check_cluster, settings_of
from txnlog_spark.process_local import process_local

CLIENTS_MAX = 8
"""Most clients of a process. All queries of a session share its workers; the least recently used
client is closed first."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of a connection: `bootstrap_servers`, or the embedded broker in `path`."""

    bootstrap_servers: str | None
    path: str | None
    client_id: str
    connect_timeout_ms: int
    idle_ms_max: int
    """Milliseconds after which an idle connection is closed; -1 for never."""
    session: SessionConfig
    security: Security
    is_made: bool = field(compare=False)
    """True if an embedded broker without data is created: for a write, but not for a read."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, writes: bool = False) -> ConnectionSettings:
        """Return the settings for the values of `options.parse_options`.

        Raises the OptionErrors of `check_cluster` and `read_security`.
        """
        check_cluster(values)
        return cls.of(values, read_security(_security_options(values)), writes=writes)

    @classmethod
    def of(
        cls, values: Mapping[str, Any], security: Security = PLAINTEXT, *, writes: bool = False
    ) -> ConnectionSettings:
        """Return the settings for some options' values; the other options have their defaults."""
        return cls(
            **settings_of(values, "connection"),
            session=SessionConfig(**settings_of(values, "session")),
            security=security,
            is_made=writes,
        )

    def with_timeouts(self, api_ms: int, request_ms: int | None = None) -> ConnectionSettings:
        """Return a copy with other timeouts of an operation with its retries, and of a request."""
        request_ms = self.session.request_timeout_ms if request_ms is None else request_ms
        session = replace(self.session, operation_timeout_ms=api_ms, request_timeout_ms=request_ms)
        return replace(self, session=session)


def _security_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the security options that are set or have a default, by Kafka's names."""
    found = {option.name: values[PREFIX + option.name] for option in SECURITY_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def resolve_bootstrap(settings: ConnectionSettings) -> str:
    """Return `host:port,host:port`; start the embedded broker if the settings name one."""
    if settings.bootstrap_servers is not None:
        return settings.bootstrap_servers
    path = present(settings.path, "settings name a cluster or a path")
    return broker_process.ensure_broker(path, is_made=settings.is_made)


class ClientCache:
    """Clients of one process, by their settings.

    Queries share a client if all fields of `ConnectionSettings` that are compared are equal. Facts
    about a query are not stored here.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[ConnectionSettings, str], Client] = {}

    def get(self, settings: ConnectionSettings, servers: str) -> Client:
        """Return the client for these settings and brokers; connect if needed.

        Raises DeadlineExceeded or RemoteProtocolError if no broker can be reached.
        """
        client = self._clients.pop((settings, servers), None)
        if client is None:
            client = _connect_client(settings, servers)
        while len(self._clients) >= CLIENTS_MAX:
            self._clients.pop(next(iter(self._clients))).close()
        self._clients[settings, servers] = client
        return client

    def close(self) -> None:
        """Close all clients and forget them."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def client_for(settings: ConnectionSettings, bootstrap_servers: str | None = None) -> Client:
    """Return this process's client. A task passes the address that its planner resolved."""
    servers = bootstrap_servers or resolve_bootstrap(settings)
    return process_local(ClientCache).get(settings, servers)


def _connect_client(settings: ConnectionSettings, servers: str) -> Client:
    session = settings.session
    config = replace(
        session,
        bootstrap_timeout_ms=min(session.bootstrap_timeout_ms, session.operation_timeout_ms),
    )
    client = Client(
        servers,
        client_id=settings.client_id,
        config=config,
        security=settings.security,
        connect_timeout_s=settings.connect_timeout_ms / 1000,
        idle_s_max=None if settings.idle_ms_max < 0 else settings.idle_ms_max / 1000,
    )
    if settings.path is not None:
        client.brokers_option = f"--path {shlex.quote(str(Path(settings.path).absolute()))}"
    _reach_brokers(client, servers)
    return client


def _reach_brokers(client: Client, servers: str) -> None:
    """Ask for the cluster's metadata once, so that a wrong address has another error than a slow
    request."""
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
