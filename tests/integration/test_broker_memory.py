"""What comes to a broker and goes again leaves nothing in its memory.

Each object of each process is counted before and after. What Kafka, too, keeps for a while expires
within a second here. The long runs of the same are in `tests/chaos/test_chaos_broker_memory.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.memory_broker import Held, started
from support.core.comers import COMERS

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


@pytest.mark.parametrize("kind", COMERS)
def test_what_came_and_went_leaves_nothing(held, kind):
    held.check(kind, COUNT, LEAK)
