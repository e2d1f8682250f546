"""Cache of the coordinators of groups and transactional ids, and its bound."""

from __future__ import annotations

from support.core.core_broker import CoreBroker

from txnlog_kafka.operations.calls import GROUP, TRANSACTION, find_coordinator
from txnlog_kafka.operations.session import COORDINATORS_MAX
from txnlog_kafka.wire.messages import ApiKey


def test_a_client_that_makes_many_batch_writes_remembers_the_coordinators_of_the_last() -> None:
    """Each has a transactional id and a group of its own."""
    cluster = CoreBroker()
    session = cluster.session()

    def find(key_type: int, key: str) -> int:
        return cluster.run(find_coordinator(session, key_type, key, deadline=session.deadline()))

    for number in range(COORDINATORS_MAX):
        assert find(TRANSACTION, f"txnlog-write-{number}") == 1
        assert find(GROUP, f"write-{number}.progress") == 1
    assert len(session.coordinators) == COORDINATORS_MAX
    asked = len(cluster.requests(ApiKey.FIND_COORDINATOR))
    find(TRANSACTION, f"txnlog-write-{COORDINATORS_MAX - 1}")
    assert len(cluster.requests(ApiKey.FIND_COORDINATOR)) == asked
    find(TRANSACTION, "txnlog-write-0")
    assert len(cluster.requests(ApiKey.FIND_COORDINATOR)) == asked + 1
