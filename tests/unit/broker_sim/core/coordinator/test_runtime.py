"""Partition of a coordinator, and timers that fire at their deadline and only then."""

from __future__ import annotations

import pytest

from broker_sim.core.coordinator.runtime import java_hash_code, partition_for
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import CancelTimer, Effects, SetTimer


@pytest.mark.parametrize(
    ("text", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
        ("Aa", 2112),
        ("BB", 2112),
    ],
)
def test_the_hash_is_javas(text, hash_code) -> None:
    assert java_hash_code(text) == hash_code


def test_the_partition_is_the_absolute_hash_modulo_the_count() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("hello", 50) == 99162322 % 50
    assert all(0 <= partition_for(f"id-{i}", 7) < 7 for i in range(500))


def test_a_timer_fires_once_at_its_deadline_and_not_when_moved_or_cancelled() -> None:
    fired: list[str] = []
    timers = KeyedTimers()
    effects = Effects(now_ms=0, monotonic_ms=100)
    timers.schedule(("a",), 50, lambda _: fired.append("a"), effects)
    timers.schedule(("b",), 50, lambda _: fired.append("b"), effects)
    assert effects.timers == [SetTimer(("a",), 150), SetTimer(("b",), 150)]
    timers.schedule(("a",), 500, lambda _: fired.append("later"), effects)
    timers.cancel(("b",), effects)
    timers.cancel(("b",), effects)
    assert effects.timers[2:] == [SetTimer(("a",), 600), CancelTimer(("b",))]
    for key in (("a",), ("b",), ("unknown",)):
        timers.fire(key, Effects(now_ms=0, monotonic_ms=150))
    assert fired == []
    for _ in range(2):
        timers.fire(("a",), Effects(now_ms=0, monotonic_ms=600))
    assert fired == ["later"]
    assert ("a",) not in timers
