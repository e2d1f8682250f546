"""Comparison of two failovers."""

from __future__ import annotations

from support.clients.failover.story import Outcome


def verdict(*errors: str) -> tuple[object, ...]:
    return Outcome("franz-go", "group", errors, 0, 0, went_on=True, pause_ms=1).verdict


def test_an_error_that_one_cluster_alone_makes_a_client_report_is_a_difference():
    assert verdict() != verdict("UNKNOWN_MEMBER_ID")


def test_lost_connections_are_none():
    assert verdict("_TRANSPORT", "connection refused") == verdict()
