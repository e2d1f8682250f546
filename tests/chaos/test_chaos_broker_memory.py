"""The long run of what comes to a broker and goes again: also the memory of its process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.memory_broker import Held, started
from support.core.churn import CHURN

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

CONNECTIONS = 50_000
COUNT = 5_000
FIRST = 500
LEAK = 900
"""Less than one of each way to go leaves; more than the code of messages that are rare."""
GROWTH_BYTES_MAX = 16 * 1024 * 1024
"""A tenth of the growth of a broker that would keep its connections.

The freed memory that Python and its allocator hold varies by less.
"""


@pytest.fixture(scope="module", params=["one broker", "three brokers"])
def held(request, tmp_path_factory) -> Iterator[Held]:
    folder = tmp_path_factory.mktemp("memory")
    with started(folder, cluster=request.param == "three brokers") as found:
        found.settle(FIRST)
        yield found


def check_memory(before: list[int], after: list[int]) -> None:
    grown = [now - then for then, now in zip(before, after, strict=True)]
    print(f"grew by {[size // 1024 for size in grown]} KiB, from {[b // 1024 for b in before]}")
    assert max(grown) <= GROWTH_BYTES_MAX


def test_fifty_thousand_connections_leave_nothing(held):
    before = held.resident_bytes()
    held.check_connections(CONNECTIONS, LEAK)
    check_memory(before, held.resident_bytes())


@pytest.mark.parametrize("kind", CHURN)
def test_five_thousand_that_came_and_went_leave_nothing(held, kind):
    before = held.resident_bytes()
    held.check(kind, COUNT, LEAK)
    check_memory(before, held.resident_bytes())
