"""Choice of the conformance bodies that run on three brokers, with or without a kill, by target."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.brokers.cluster_broker import KILLED, WHOLE, Use
from support.brokers.cluster_runs import is_on_cluster, keep


class Item:
    """The part of a pytest item that the choice reads."""

    def __init__(self, kind: str | None, *marks: str, fixtures: tuple[str, ...] = ("broker",)):
        self.callspec = SimpleNamespace(params={} if kind is None else {"broker_name": kind})
        self.fixturenames = fixtures
        self.marks = [*marks]

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


@pytest.mark.parametrize(
    ("kind", "marks", "runs_in"),
    [
        (None, [], "make test"),
        ("broker_sim", ["one_broker", "no_kill"], "make test"),
        ("apache_kafka", [], "make test"),
        (WHOLE, [], "make chaos"),
        (WHOLE, ["no_kill"], "make chaos"),
        (WHOLE, ["failover"], "make chaos"),
        (WHOLE, ["one_broker"], None),
        (KILLED, [], "make chaos"),
        (KILLED, ["failover"], "make test"),
        (KILLED, ["no_kill"], None),
        (KILLED, ["one_broker", "failover"], None),
    ],
)
def test_marks_decide_what_runs_on_the_cluster_and_when(kind, marks, runs_in) -> None:
    item = Item(kind, *marks)
    found = ("make chaos" if "chaos" in item.marks else "make test") if keep(item) else None
    assert found == runs_in
    assert is_on_cluster(item) == (kind in (WHOLE, KILLED))


def test_a_body_that_takes_no_broker_is_not_for_the_cluster() -> None:
    assert not keep(Item(WHOLE, fixtures=("broker_name",)))
    assert keep(Item("broker_sim", fixtures=("broker_name",)))


def test_of_what_was_there_before_nobody_is_killed() -> None:
    before = Use(frozenset({("leader", "old", 0), ("group coordinator", "g", 1)}))
    now = Use(before.entries | {("leader", "new", 2), ("leader", "new", 1), ("leader", "old", 2)})
    assert now.brokers("leader", before) == [1, 2]
    assert now.brokers("group coordinator", before) == []
