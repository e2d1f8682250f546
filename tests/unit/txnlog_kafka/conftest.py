"""Fixtures of the client's tests: a broker on a socket, a clock, and a CA."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.certificates import Authority
from support.sockets.socket_broker import SocketBroker


class Clock:
    """Seconds that pass when the test says so."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker() -> Iterator[SocketBroker]:
    with SocketBroker() as running:
        yield running


@pytest.fixture(scope="session")
def ca() -> Authority:
    return Authority()
