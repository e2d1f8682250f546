"""Requests with values at the edge of what a record holds: refused or stored, never a crash."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, offset_commit, request

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

TOO_LONG = "g" * 40_000
"""More than the int16 of a record's key can say; a compact string of a request may be longer."""


@pytest.fixture
def broker() -> BrokerOnDisk:
    """Return a broker with both coordinators, and the topics `in` and `out`."""
    made = BrokerOnDisk()
    made.find_coordinators()
    for name in ("in", "out"):
        made.create_topic(name)
    return made


def test_an_offset_may_be_asked_to_be_kept_for_ever_by_the_largest_retention_time(broker) -> None:
    message = offset_commit(1, "in", retention_time_ms=2**63 - 1)
    assert broker.ask(message, 2).topics[0].partitions[0].error_code == 0
    broker.kill()
    fetched = broker.parts.groups.offset_fetch("g", None, require_stable=True)
    assert [o.committed_offset for o in fetched.offsets] == [1]


def test_a_group_id_that_no_record_holds_is_refused(broker) -> None:
    answer = broker.ask(offset_commit(1, "in", group_id=TOO_LONG), 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID


def test_a_transactional_id_that_no_record_holds_is_refused(broker) -> None:
    assert broker.producer(TOO_LONG).init() == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("group_id", TOO_LONG, ErrorCode.INVALID_GROUP_ID),
        ("group_instance_id", TOO_LONG, ErrorCode.INVALID_REQUEST),
        ("protocol_type", TOO_LONG, ErrorCode.INVALID_REQUEST),
        # It fits, and the member id, which is longer, does not.
        ("group_instance_id", "i" * 32_767, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_member_that_no_record_holds_may_not_join(broker, field, value, expected) -> None:
    fields = {"group_id": "g", "group_instance_id": "i", "protocol_type": "consumer"}
    message = request(
        ApiKey.JOIN_GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        protocols=[{"name": "range"}], **fields | {field: value},
    )  # fmt: skip
    assert broker.ask(message, 7).error_code == expected
    broker.advance(60_000)


def test_end_txn_5_bumps_the_epoch_whatever_transaction_version_is_finalized() -> None:
    broker = BrokerOnDisk({"transaction.version": 1})
    broker.create_topic("out")
    broker.find_coordinators()
    producer = broker.producer()
    assert producer.init() == "NONE"
    for commit in (True, False):
        producer_id, epoch = producer.identity
        assert producer.add_partitions("out", 0) == "NONE"
        assert producer.end(commit=commit, version=5) == "NONE"
        assert producer.identity == (producer_id, epoch + 1)
