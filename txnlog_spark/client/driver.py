"""Signatures first; see the commit that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.session import Session, SessionConfig

T = TypeVar("T")


class Client:
    """The blocking host of operations: `client.run(operation(client.session, ...))`."""

    session: Session

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "txnlog-spark",
        config: SessionConfig | None = None,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """`bootstrap_servers` is "host:port,host:port"; connections are opened when needed.

        `security` are the options of `kafka.*` without that prefix; anything but
        security.protocol=PLAINTEXT raises OptionError.
        """
        raise NotImplementedError

    def run(self, operation: Operation[T]) -> T:
        """Carry the operation to its end and return its result, or raise what it raised."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections; the client may be used again."""
        raise NotImplementedError

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
