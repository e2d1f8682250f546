"""Clients, topics and groups that come and go leave nothing in a broker's memory.

The tests count each object of each process before and after. State that Kafka, too, keeps for a
while expires within a second here. `tests/chaos/test_chaos_broker_memory.py` has the long runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.memory_broker import Held, started
from support.core.churn import CHURN

pytestmark = pytest.mark.weekly(day=5)

COUNT = 160
CONNECTIONS = 500
LEAK = 30
"""Less than one of each way to go leaves; more than what comes and goes by itself."""


@pytest.fixture(
    scope="module",
    params=["one broker", pytest.param("three brokers", marks=pytest.mark.chaos)],
)
def held(request, tmp_path_factory) -> Iterator[Held]:
    folder = tmp_path_factory.mktemp("memory")
    with started(folder, cluster=request.param == "three brokers") as found:
        found.settle(COUNT)
        yield found


def test_connections_leave_nothing(held):
    held.check_connections(CONNECTIONS, LEAK)


@pytest.mark.parametrize("kind", CHURN)
def test_what_came_and_went_leaves_nothing(held, kind):
    held.check(kind, COUNT, LEAK)
