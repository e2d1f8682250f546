"""Rates against plain lists of what was sent, and levels against their written order."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.controller.image import QuotaEntity, quota_entity
from broker_sim.core.quotas import Rate, quota_of

PAUSES_MS = st.one_of(st.integers(0, 300), st.integers(0, 20_000))
AMOUNTS = st.integers(0, 5_000)


@given(
    sent=st.lists(st.tuples(PAUSES_MS, AMOUNTS), min_size=1, max_size=40),
    samples=st.integers(1, 12),
    window_ms=st.sampled_from([1000, 3000]),
    quota=st.floats(1, 5_000),
)
def test_a_rate_counts_whole_windows_and_what_overlaps_them(
    sent: list[tuple[int, int]], samples: int, window_ms: int, quota: float
) -> None:
    rate, now_ms = Rate(samples, window_ms), 1_000
    taken: list[tuple[int, int]] = []
    for pause_ms, amount in sent:
        now_ms += pause_ms
        rate.record(amount, now_ms)
        taken.append((now_ms, amount))
        expected = naive_throttle_ms(taken, samples, window_ms, quota, now_ms)
        assert abs(rate.throttle_ms(quota, now_ms) - expected) <= 1
    assert rate.is_idle(now_ms + samples * window_ms)


def naive_throttle_ms(
    taken: Iterable[tuple[int, int]], samples: int, window_ms: int, quota: float, now_ms: int
) -> float:
    """The same from all that was ever sent: groups of a window, the old ones left out."""
    groups: list[list[tuple[int, int]]] = []
    for at_ms, amount in taken:
        if not groups or at_ms - groups[-1][0][0] >= window_ms:
            groups.append([])
        groups[-1].append((at_ms, amount))
    recent = [each for each in groups if now_ms - each[-1][0] < samples * window_ms]
    elapsed_ms = now_ms - recent[0][0][0]
    missing = max(0, samples - 1 - elapsed_ms // window_ms)
    measured_ms = max(1, elapsed_ms + missing * window_ms)
    total = sum(amount for each in recent for _, amount in each)
    return max(0.0, total * 1000 / quota - measured_ms)


@given(
    amounts=st.lists(st.integers(1, 30_000), min_size=1, max_size=60),
    quota=st.integers(500, 5_000),
)
def test_who_waits_as_told_sends_no_more_than_the_quota_and_a_burst(
    amounts: list[int], quota: int
) -> None:
    rate, now_ms = Rate(11, 1000), 0
    for count, amount in enumerate(amounts):
        allowed = quota * (now_ms / 1000 + 12)
        # What goes beyond it is waited for after the last one.
        assert sum(amounts[:count]) <= allowed + max(amounts)
        rate.record(amount, now_ms)
        now_ms += rate.throttle_ms(quota, now_ms)


@given(sent=st.lists(st.tuples(PAUSES_MS, AMOUNTS), max_size=20), amount=AMOUNTS)
def test_what_is_taken_back_does_not_count(sent: list[tuple[int, int]], amount: int) -> None:
    rate, now_ms = Rate(11, 1000), 1_000
    for pause_ms, each in sent:
        now_ms += pause_ms
        rate.record(each, now_ms)
    before = rate.throttle_ms(100, now_ms)
    rate.record(amount, now_ms)
    rate.record(-amount, now_ms)
    assert rate.throttle_ms(100, now_ms) == before


ORDER = (
    "users/{user} clients/{client}",
    "users/{user} clients/<default>",
    "users/{user}",
    "users/<default> clients/{client}",
    "users/<default> clients/<default>",
    "users/<default>",
    "clients/{client}",
    "clients/<default>",
)
"""The levels as Kafka's documentation has them, the first that is set counts."""


def level(path: str, user: str, client: str) -> QuotaEntity:
    parts = (part.split("/") for part in path.split())
    kinds = {"users": ("user", user), "clients": ("client-id", client)}
    return quota_entity(
        {kinds[kind][0]: None if name == "<default>" else kinds[kind][1] for kind, name in parts}
    )


def sharing(path: str, user: str, client: str) -> tuple[str, str]:
    """Who shares a rate: each user and each client id that the level tells apart."""
    return (user if "users" in path else "", client if "clients" in path else "")


@given(
    set_here=st.sets(st.sampled_from(ORDER)),
    others=st.sets(st.sampled_from(ORDER)),
    client=st.sampled_from(["c", ""]),
)
def test_the_first_level_with_the_quota_counts(
    set_here: set[str], others: set[str], client: str
) -> None:
    quotas: dict[QuotaEntity, dict[str, float]] = {}
    for number, path in enumerate(ORDER):
        if path in set_here:
            quotas.setdefault(level(path, "u", "c"), {})["wanted"] = 1.0 + number
        if path in others:
            quotas.setdefault(level(path, "u", "c"), {})["another"] = 99.0
            quotas.setdefault(level(path, "v", "d"), {}).setdefault("another", 99.0)
    matching = [p for p in ORDER if p in set_here and (client or "clients" not in p)]
    expected = None
    if matching:
        expected = 1.0 + ORDER.index(matching[0]), sharing(matching[0], "u", client)
    assert quota_of(quotas, "wanted", "u", client) == expected
