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

from txnlog_spark import embedded
from txnlog_spark.client.driver import Client
from txnlog_spark.errors import DeadlineExceeded, RemoteProtocolError, check
from txnlog_spark.options import check_cluster
from txnlog_spark.protocol.cluster import refresh_metadata
from txnlog_spark.protocol.session import SessionConfig

TOPIC_WAIT_MS_MAX = 15_000
BOOTSTRAP_TIMEOUT_MS_MAX = 30_000
CLIENTS_MAX = 8
"""Workers are shared by all queries of a session; the client that was made first goes first."""

_clients: dict[tuple[int, ConnectionSettings, str], Client] = {}


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

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> ConnectionSettings:
        """From the values of `options.parse_options`. Raises OptionError, see `check_cluster`."""
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
        )


def resolve_bootstrap(settings: ConnectionSettings) -> str:
    """`host:port,host:port`; starts the embedded broker when that is asked for."""
    if settings.bootstrap_servers is not None:
        return settings.bootstrap_servers
    check(settings.path is not None, "settings name a cluster or a path")
    return embedded.ensure_broker(str(settings.path))


def client_for(settings: ConnectionSettings, bootstrap_servers: str | None = None) -> Client:
    """This process's client. A task is given the address that its planner resolved."""
    servers = bootstrap_servers or resolve_bootstrap(settings)
    key = (os.getpid(), settings, servers)
    client = _clients.get(key)
    if client is None:
        while len(_clients) >= CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
        config = SessionConfig(
            request_timeout_ms=settings.request_timeout_ms,
            operation_timeout_ms=settings.api_timeout_ms,
            bootstrap_timeout_ms=min(BOOTSTRAP_TIMEOUT_MS_MAX, settings.api_timeout_ms),
            topic_wait_ms=min(TOPIC_WAIT_MS_MAX, settings.api_timeout_ms),
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
        )
        client = Client(
            servers,
            client_id=settings.client_id,
            config=config,
            connect_timeout_s=settings.connect_timeout_ms / 1000,
            idle_s_max=None if settings.idle_ms_max < 0 else settings.idle_ms_max / 1000,
        )
        _reach(client, servers)
        _clients[key] = client
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
        raise RemoteProtocolError(
            f"{error.args[0].partition('] ')[2]} (kafka.bootstrap.servers={servers})"
        ) from error
