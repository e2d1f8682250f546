"""Records of the internal topics as they lie in files: fixed bytes of every version that is read.

`internal_records.txt` has what release 0.1.0 wrote. The bytes of versions that are only read follow
Kafka's definitions.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from broker_sim.core.group import log_records as groups
from broker_sim.core.group.log_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
)
from broker_sim.core.transaction import log_records as transactions
from broker_sim.core.transaction.metadata import TransactionMetadata
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.records import Record, decode_records, encode_batch, iter_batches

LINES = (Path(__file__).parent / "internal_records.txt").read_text(encoding="utf-8").splitlines()
WRITTEN = {name: bytes.fromhex(data) for name, data in map(str.split, LINES)}
S = TransactionState
TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
PARTITIONS = frozenset({("töpic", 1), ("töpic", 0), ("c", 2**31 - 1)})


def transaction(state: TransactionState, **fields) -> TransactionMetadata:
    """Return a transaction with every field set, except `fields`, which replace the values here."""
    values = {
        "transactional_id": "txn-é",
        "producer_id": 2**40,
        "producer_epoch": 32766,
        "timeout_ms": 60_000,
        "state": state,
        "last_update_ms": 1_700_000_000_123,
        "partitions": PARTITIONS,
        "start_ms": 1_700_000_000_000,
    }
    return TransactionMetadata(**{**values, **fields})


EMPTY = transaction(S.EMPTY, partitions=frozenset(), start_ms=-1)
TAGGED = transaction(
    S.PREPARE_COMMIT, previous_producer_id=7, next_producer_id=2**40 + 1,
    client_transaction_version=2,
)  # fmt: skip
WRITTEN_TRANSACTIONS = [
    (EMPTY, 0, "EMPTY_0"),
    (EMPTY, 2, "EMPTY_2"),
    (transaction(S.ONGOING), 0, "ONGOING_0"),
    (transaction(S.COMPLETE_ABORT, client_transaction_version=1), 1, "ABORT_1"),
    (TAGGED, 2, "TAGGED_2"),
]


@pytest.mark.parametrize(("metadata", "transaction_version", "name"), WRITTEN_TRANSACTIONS)
def test_a_transaction_lies_there_as_before(metadata, transaction_version, name) -> None:
    assert transactions.encode_value(metadata, transaction_version) == WRITTEN[name]
    assert transactions.decode_value("txn-é", WRITTEN[name]) == metadata


MEMBER = MemberValue("m-é", None, "client", "/127.0.0.1", 300_000, 45_000, b"\x00\x01", b"")
STATIC = MemberValue("s-1", "instance", "client", "/::1", 60_000, 6_000, b"\xff" * 200, b"\x00")
WRITTEN_VALUES = [
    (OffsetValue(2**40, 7, "metä", 1_700_000_000_123), "OFFSET"),
    (OffsetValue(0, topic_id=TOPIC_ID), "OFFSET_ID"),
    (OffsetValue(5, -1, "", 100, 200), "OFFSET_EXPIRING"),
    (OffsetValue(5, 1, "m" * 200, 100), "OFFSET_LONG"),
    (GroupValue("consumer", 7, "range", "m-é", 1_700_000_000_123, (MEMBER, STATIC)), "GROUP"),
    (GroupValue("", 0, None, None, -1, ()), "GROUP_EMPTY"),
]


@pytest.mark.parametrize(("value", "name"), WRITTEN_VALUES)
def test_offsets_and_groups_lie_there_as_before(value, name) -> None:
    encode, decode = (
        (groups.encode_offset_value, groups.decode_offset_value)
        if isinstance(value, OffsetValue)
        else (groups.encode_group_value, groups.decode_group_value)
    )
    assert encode(value) == WRITTEN[name]
    assert decode(WRITTEN[name]) == value


OLD = GroupValue("consumer", 7, "range", "m", -1, (MemberValue("m", None, "c", "h", 60_000,
    45_000, b"\x01\x02", b"\x03"),))  # fmt: skip
HEAD = "0008 636f6e73756d6572 00000007 0005 72616e6765 0001 6d"
READ_GROUPS = {
    "0000" + HEAD + "00000001 00016d 000163 000168 0000afc8 00000002 0102 00000001 03": 45_000,
    "0001" + HEAD + "00000001 00016d 000163 000168 0000ea60 0000afc8 00000002 0102 00000001 03":
        60_000,
    "0002" + HEAD + "ffffffffffffffff 00000001 00016d 000163 000168 0000ea60 0000afc8"
    "00000002 0102 00000001 03": 60_000,
    "0004 09 636f6e73756d6572 00000007 06 72616e6765 02 6d ffffffffffffffff"
    "02 02 6d 00 02 63 02 68 0000ea60 0000afc8 03 0102 02 03 00 01 05 01 ff": 60_000,
}  # fmt: skip


@pytest.mark.parametrize("data", READ_GROUPS)
def test_groups_of_other_versions_are_read(data) -> None:
    value = groups.decode_group_value(bytes.fromhex(data))
    assert value.members[0].rebalance_timeout_ms == READ_GROUPS[data]
    assert [m.member_id for m in value.members] == ["m"]
    assert value.members[0].assignment == b"\x03"
    assert (value.protocol_type, value.generation_id, value.leader, value.state_ms) == (
        OLD.protocol_type, OLD.generation_id, OLD.leader, OLD.state_ms,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "leader_epoch", "expire_ms"),
    [
        ("0000 0000000000000005 00016d 0000000000000064", -1, -1),
        ("0001 0000000000000005 00016d 0000000000000064 00000000000000c8", -1, 200),
        ("0002 0000000000000005 00016d 0000000000000064", -1, -1),
        ("0003 0000000000000005 00000002 00016d 0000000000000064", 2, -1),
        ("0004 0000000000000005 00000002 026d 0000000000000064 01 09 02 abcd", 2, -1),
    ],
)
def test_offsets_of_every_version_are_read(data, leader_epoch, expire_ms) -> None:
    value = groups.decode_offset_value(bytes.fromhex(data))
    assert value == OffsetValue(5, leader_epoch, "m", 100, expire_ms)


KEYS = [
    (transactions.encode_key("txn-é"), "KEY_TRANSACTION", "txn-é"),
    (groups.encode_offset_key(OffsetKey("g", "in", 4)), "KEY_OFFSET", OffsetKey("g", "in", 4)),
    (groups.encode_group_key("g"), "KEY_GROUP", GroupKey("g")),
]


@pytest.mark.parametrize(("encoded", "name", "key"), KEYS)
def test_a_key_and_its_tombstone(encoded, name, key) -> None:
    batch = encode_batch([Record(encoded, None, 1_700_000_000_123)], base_offset=3)
    assert batch == WRITTEN[name]
    ((header, position),) = iter_batches(WRITTEN[name])
    (record,) = decode_records(WRITTEN[name], position, header)
    decode = transactions.decode_key if isinstance(key, str) else groups.decode_key
    assert (decode(record.key or b""), record.value) == (key, None)


def test_the_oldest_key_of_an_offset_is_read_and_later_kinds_are_not_known() -> None:
    oldest = bytes.fromhex("0000 0001 67 0002 696e 00000004")
    assert groups.decode_key(oldest) == OffsetKey("g", "in", 4)
    for kind in (3, 8, 11, -1):
        assert groups.decode_key(kind.to_bytes(2, "big", signed=True) + b"\x00\x01g") is None
    assert transactions.decode_key(b"\x00\x01whatever") is None
