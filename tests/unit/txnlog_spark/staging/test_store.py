"""Attempts in the staging server: the bound on their bytes, and their removal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_spark.staging.chunks import IndexSummary
from txnlog_spark.staging.frames import Forgotten, TaskAttempt
from txnlog_spark.staging.staged_output import StagedOutput, over_after_commit, over_after_failure
from txnlog_spark.staging.store import Store, StoreFull


def attempt(name: str = "a", batch_id: int = 1, run_id: str = "r", write: str = "q") -> TaskAttempt:
    return TaskAttempt(write, batch_id, run_id, name)


def test_beyond_the_bound_an_attempt_is_refused_with_the_options_and_stays_as_it_was() -> None:
    store = Store(150)
    store.open(attempt())
    store.open(attempt("of-another", write="other"))
    store.add(attempt("of-another", write="other"), 20)
    store.add(attempt(), 100)
    with pytest.raises(StoreFull) as caught:
        store.add(attempt(), 31)
    text = str(caught.value)
    assert text.startswith("120 bytes are staged on the driver, 100 of them by this query")
    for option in ("stagingDiskSpace=150", "stagingDirectory", "stagingLocation", "maxOffsetsPer"):
        assert option in text
    assert store.size_bytes == 120
    store.add(attempt(), 30)
    store.drop(attempt("of-another", write="other"))
    store.add(attempt(), 20)
    assert store.size_bytes == 150


@pytest.mark.parametrize(
    ("forgotten", "left"),
    [
        (Forgotten("q"), ["other-query"]),
        (Forgotten("q", up_to_batch=1), ["next-batch", "other-query"]),
        (Forgotten("q", batch_id=2), ["old-run", "this-run", "other-query"]),
        (Forgotten("q", but_run="new"), ["this-run", "next-batch", "other-query"]),
        (Forgotten("q", up_to_batch=1, run_id="new"), ["old-run", "next-batch", "other-query"]),
        (Forgotten("nobody"), ["old-run", "this-run", "next-batch", "other-query"]),
    ],
)
def test_what_is_forgotten_is_what_is_named_and_nothing_else(
    forgotten: Forgotten, left: list[str]
) -> None:
    store = Store(1_000)
    attempts = [
        attempt("old-run", 1, "old"),
        attempt("this-run", 1, "new"),
        attempt("next-batch", 2, "new"),
        attempt("other-query", 1, "x", "other"),
    ]
    for each in attempts:
        store.open(each)
        store.add(each, 10)
    gone = store.forget(forgotten)
    assert [each.name for each in attempts if store.is_kept(each)] == left
    assert sorted(each.name for each in gone) == sorted({a.name for a in attempts} - set(left))
    assert store.size_bytes == 10 * len(left)


def test_an_attempt_that_comes_when_its_batch_is_over_is_refused_and_a_replay_is_not() -> None:
    store = Store(100)
    store.forget(Forgotten("q", up_to_batch=3, run_id="r"))
    for late in (attempt("late", 3), attempt("later", 1)):
        with pytest.raises(StoreFull, match="its batch is committed, or has failed"):
            store.open(late)
    for wanted in (attempt("next", 4), attempt("replay", 3, "another-run")):
        store.open(wanted)
    store.forget(Forgotten("q", up_to_batch=3))
    store.forget(Forgotten("q", but_run="r"))
    store.open(attempt("third-run", 3, "third"))
    store.forget(Forgotten("write-1"))
    with pytest.raises(StoreFull):
        store.open(attempt("of-a-write", 0, "write-1", "write-1"))


def test_what_of_a_batch_is_over_is_refused_when_it_comes_and_another_planning_is_not() -> None:
    """After a failure another planning may be about to be committed; after a commit none is."""
    given = StagedOutput(attempt(), "q", 0, IndexSummary(0, 0, 0, 0, b""))
    another = attempt(run_id="another")
    failed, committed = over_after_failure([given]), over_after_commit("q", 1, "r")
    for over in (failed, committed):
        store = Store(100)
        store.open(attempt())
        store.open(another)
        for each in over:
            store.forget(each)
        assert not store.is_kept(attempt())
        assert store.is_kept(another) == (over is failed)
        with pytest.raises(StoreFull):
            store.open(attempt("late"))


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["add", "drop", "open"]), st.integers(0, 90))
    )
)
def test_the_account_is_what_is_kept_whatever_happens(
    steps: list[tuple[int, str, int]],
) -> None:
    store, kept = Store(200), {}
    for number, action, size in steps:
        each = attempt(str(number))
        if action == "open" and each not in kept:
            store.open(each)
            kept[each] = 0
        elif action == "drop":
            store.drop(each)
            kept.pop(each, None)
        elif action == "add" and each in kept:
            try:
                store.add(each, size)
            except StoreFull:
                assert sum(kept.values()) + size > 200
                continue
            kept[each] += size
        assert store.size_bytes == sum(kept.values()) <= 200
    assert len(store) == len(kept)
