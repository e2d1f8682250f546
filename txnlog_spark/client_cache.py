"""Which cluster, and one client of it per process.

Spark builds new readers and writers all the time, in worker processes that live on: the planner
of each micro-batch, the tasks, the committer. So connections are kept here, by what they connect
to, and not in those objects; they are never pickled and never survive a fork (`process_local`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txnlog_kafka.host import embedded
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
"""Workers are shared by all queries of a session; the least recently used client goes first."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How to reach the brokers: `bootstrap_servers`, or the embedded broker under `path`."""

    bootstrap_servers: str | None
    path: str | None
    client_id: str
    connect_timeout_ms: int
    idle_ms_max: int
    """-1: never closed."""
    session: SessionConfig
    security: Security
    is_made: bool = field(compare=False)
    """True if an embedded broker without data is made: for a write, and not for a read."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, writes: bool = False) -> ConnectionSettings:
        """From the values of `options.parse_options`.

        Raises OptionError, see `check_cluster` and `read_security`.
        """
        check_cluster(values)
        return cls.of(values, read_security(_security_options(values)), writes=writes)

    @classmethod
    def of(
        cls, values: Mapping[str, Any], security: Security = PLAINTEXT, *, writes: bool = False
    ) -> ConnectionSettings:
        """From some options' values; the others have their defaults."""
        return cls(
            **settings_of(values, "connection"),
            session=SessionConfig(**settings_of(values, "session")),
            security=security,
            is_made=writes,
        )

    def with_timeouts(self, api_ms: int, request_ms: int | None = None) -> ConnectionSettings:
        """The same with another timeout of an operation including retries, and of a request."""
        request_ms = self.session.request_timeout_ms if request_ms is None else request_ms
        session = replace(self.session, operation_timeout_ms=api_ms, request_timeout_ms=request_ms)
        return replace(self, session=session)


def _security_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Those that were given or have a default, by Kafka's names."""
    found = {option.name: values[PREFIX + option.name] for option in SECURITY_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def resolve_bootstrap(settings: ConnectionSettings) -> str:
    """`host:port,host:port`; starts the embedded broker when that is asked for."""
    if settings.bootstrap_servers is not None:
        return settings.bootstrap_servers
    path = present(settings.path, "settings name a cluster or a path")
    return embedded.ensure_broker(path, is_made=settings.is_made)


class ClientCache:
    """The clients of one process, by what they connect to.

    Queries share a client where all that `ConnectionSettings` says is equal, and nothing more: what
    a query knows of itself is not kept here.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[ConnectionSettings, str], Client] = {}

    def get(self, settings: ConnectionSettings, servers: str) -> Client:
        """The client for these settings and brokers.

        Raises DeadlineExceeded or RemoteProtocolError when no broker can be reached.
        """
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


def client_for(settings: ConnectionSettings, bootstrap_servers: str | None = None) -> Client:
    """This process's client. A task is given the address that its planner resolved."""
    servers = bootstrap_servers or resolve_bootstrap(settings)
    return process_local(ClientCache).get(settings, servers)


def _connect(settings: ConnectionSettings, servers: str) -> Client:
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
