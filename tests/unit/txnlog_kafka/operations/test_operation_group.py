"""Operations side by side: none waits for another, and each gets its own answers."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker

from txnlog_kafka.errors import DeadlineExceeded
from txnlog_kafka.operations.calls import call_all, receive, send
from txnlog_kafka.operations.effects import Call, Receive, Sleep
from txnlog_kafka.operations.operation_group import OperationGroup
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.messages import APIS, ApiKey

METADATA = APIS[ApiKey.METADATA].request


def request(node: int) -> Call:
    return Call(node, METADATA(topics=[]), 1_000)


def cluster_of(*delays_ms: int) -> CoreBroker:
    """Nodes from 1, each with its delay."""
    nodes = tuple(range(1, len(delays_ms) + 1))
    return CoreBroker(2, nodes=nodes, delay_ms=lambda call: delays_ms[call.node - 1])


def finished(cluster, parts):
    """When each part was done, in the order in which they were, by virtual time."""

    def operation():
        together = OperationGroup(lambda: cluster.now_ms)
        for key, part in parts.items():
            yield from together.start(key, part)
        found = []
        while not together.is_empty:
            key, _ = yield from together.next_done()
            found.append((key, cluster.now_ms))
        return found

    return cluster.run(operation())


def one_after_another(node: int, count: int):
    for _ in range(count):
        ticket = yield from send(request(node))
        yield from receive(ticket)


def all_at_once(*nodes: int):
    outcomes = yield from call_all(tuple(map(request, nodes)))
    assert len(outcomes) == len(nodes)


def sleeping(*durations_ms: int):
    for duration_ms in durations_ms:
        yield Sleep(duration_ms)


def test_each_part_goes_on_when_its_own_answer_comes():
    parts = {"slow": one_after_another(1, 2), "fast": one_after_another(2, 5)}
    assert finished(cluster_of(100, 10), parts) == [("fast", 50), ("slow", 200)]


def test_a_sleep_stops_nobody_else():
    parts = {"naps": sleeping(30, 40), "asks": one_after_another(1, 3), "nothing": all_at_once()}
    found = finished(cluster_of(20), parts)
    assert found == [("nothing", 1), ("asks", 60), ("naps", 70)]


def test_a_part_that_waits_for_several_answers_gets_them_all():
    parts = {"several": all_at_once(1, 2, 1), "one": one_after_another(2, 1)}
    assert finished(cluster_of(50, 20), parts) == [("one", 40), ("several", 100)]


def test_a_part_that_waits_no_longer_than_it_wants():
    def impatient():
        ticket = yield from send(request(1))
        nothing = yield Receive(frozenset({ticket}), within_ms=15)
        assert nothing is None
        yield from receive(ticket)

    parts = {"impatient": impatient(), "other": one_after_another(2, 4)}
    assert finished(cluster_of(100, 10), parts) == [("other", 40), ("impatient", 100)]


def test_parts_may_have_parts():
    def nested(cluster):
        yield from ()
        inner = OperationGroup(lambda: cluster.now_ms)
        yield from inner.start(1, one_after_another(1, 1))
        yield from inner.start(2, sleeping(5))
        assert (yield from inner.next_done())[0] == 2
        assert (yield from inner.next_done())[0] == 1

    cluster = cluster_of(30, 10)
    assert finished(cluster, {"outer": nested(cluster), "b": one_after_another(2, 2)}) == [
        ("b", 20),
        ("outer", 30),
    ]


def test_what_a_part_raises_is_raised_and_the_others_go_on():
    cluster = cluster_of(10)

    def failing():
        yield Sleep(3)
        raise DeadlineExceeded("waiting", 3, "nothing")

    def operation():
        together = OperationGroup(lambda: cluster.now_ms)
        yield from together.start("asks", one_after_another(1, 1))
        yield from together.start("fails", failing())
        with pytest.raises(DeadlineExceeded):
            yield from together.next_done()
        return (yield from together.next_done())[0]

    assert cluster.run(operation()) == "asks"


def test_a_cancelled_part_is_closed_and_not_waited_for():
    closed = []

    def part():
        try:
            yield Sleep(10**6)
        finally:
            closed.append(True)

    cluster = cluster_of(10)

    def operation():
        together = OperationGroup(lambda: cluster.now_ms)
        yield from together.start("long", part())
        yield from together.start("asks", one_after_another(1, 1))
        together.cancel("long")
        yield from together.next_done()
        assert together.is_empty
        with pytest.raises(InvariantViolation):
            yield from together.next_done()

    cluster.run(operation())
    assert closed == [True]
    assert cluster.now_ms == 10
