"""A client that gives up after a few attempts, however slow the machine is.

The error of a broker that lets nobody in has its reason from the last attempt. A deadline of some
hundred milliseconds can end within an attempt, and then the reason is that there was no answer in
time. Here each look at the session's clock takes four seconds of its own time: ten looks, five
attempts, each of which may take seconds of real time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import PLAINTEXT, Security
from txnlog_kafka.operations.session import SessionConfig

LOOK_MS = 4_000
LOOKS = 10


@contextmanager
def client_of_few_attempts(
    bootstrap_servers: str, security: Security = PLAINTEXT, request_timeout_ms: int = 30_000
) -> Iterator[Client]:
    """A client whose session's clock goes on by being looked at."""
    looks = itertools.count(0, LOOK_MS)
    config = SessionConfig(
        bootstrap_timeout_ms=LOOKS * LOOK_MS, request_timeout_ms=request_timeout_ms
    )
    with Client(bootstrap_servers, config=config, security=security) as client:
        client.session.monotonic_ms = lambda: next(looks)
        yield client
