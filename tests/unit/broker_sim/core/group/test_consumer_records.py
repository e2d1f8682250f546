"""The records of a consumer group: bytes as Kafka writes them, and what damaged bytes are."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.coordinator.codec import CorruptRecord
from broker_sim.core.group.consumer_records import (
    ConsumerGroupRecord,
    Current,
    GroupEpoch,
    MemberState,
    RecordKind,
    ResolvedRegex,
    Subscription,
    Target,
    TargetEpoch,
    decode_record,
    encode_record,
)

K = RecordKind
ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
WHOLE = [
    ConsumerGroupRecord(K.GROUP_EPOCH, "g", "", GroupEpoch(3, -7)),
    ConsumerGroupRecord(
        K.MEMBER, "g", "m", Subscription("i", "r", "c", "h", frozenset("ab"), "x.*", 5, "range")
    ),
    ConsumerGroupRecord(K.TARGET_EPOCH, "g", "", TargetEpoch(3, 1_000)),
    ConsumerGroupRecord(K.TARGET, "g", "m", Target({ONE: frozenset({2, 0}), TWO: frozenset({1})})),
    ConsumerGroupRecord(
        K.CURRENT,
        "g",
        "m",
        Current(4, 3, MemberState.UNREVOKED, {ONE: {0: 2, 1: 4}}, {TWO: {3: 1}}),
    ),
    ConsumerGroupRecord(K.REGEX, "g", "x.*", ResolvedRegex(frozenset({"xa"}), 7, 9)),
]


@pytest.mark.parametrize("record", WHOLE)
def test_a_record_is_read_as_it_was_written_and_each_cut_is_refused(record) -> None:
    key, value = encode_record(record)
    assert value is not None
    assert decode_record(key, value) == record
    tombstone = ConsumerGroupRecord(record.kind, record.group_id, record.name, None)
    assert encode_record(tombstone) == (key, None)
    assert decode_record(key, None) == tombstone
    for length in range(len(key)):
        with pytest.raises(CorruptRecord):
            decode_record(key[:length], value)
    for length in range(len(value)):
        with pytest.raises(CorruptRecord):
            decode_record(key, value[:length])


def test_bytes_are_those_of_kafka() -> None:
    epoch, member, target, regex = WHOLE[0], WHOLE[1], WHOLE[3], WHOLE[5]
    assert encode_record(epoch) == (
        bytes.fromhex("0003000167"),
        bytes.fromhex("0000 00000003 01 00 08 fffffffffffffff9"),
    )
    assert encode_record(member) == (
        bytes.fromhex("0005 0001 67 0001 6d"),
        bytes.fromhex("0000 0269 0272 0263 0268 03 0261 0262 04782e2a 00000005 0672616e6765 00"),
    )
    assert encode_record(target)[1] == bytes.fromhex(
        "0000 03" + ONE.hex + "03 00000000 00000002 00" + TWO.hex + "02 00000001 00 00"
    )
    assert encode_record(regex)[0] == bytes.fromhex("0010 0001 67 0003 782e2a")


def test_partitions_without_epochs_have_the_epoch_of_the_member() -> None:
    key = encode_record(WHOLE[4])[0]
    before_4_3 = bytes.fromhex("0000 00000004 00000003 00 02" + ONE.hex + "02 00000005 00 01 00")
    record = decode_record(key, before_4_3)
    assert record is not None
    assert record.value == Current(4, 3, MemberState.STABLE, {ONE: {5: 4}})


def test_a_state_of_a_newer_broker_is_unknown_and_other_keys_are_no_record() -> None:
    key, value = encode_record(ConsumerGroupRecord(K.CURRENT, "g", "m", Current(4, 3)))
    assert value is not None
    record = decode_record(key, value[:10] + b"\x09" + value[11:])
    assert record is not None
    assert record.value == Current(4, 3, MemberState.UNKNOWN)
    assert decode_record(bytes.fromhex("0004000167"), b"") is None


def test_as_many_epochs_as_partitions_are_needed() -> None:
    key, _ = encode_record(WHOLE[4])
    text = "0000 00000004 00000003 00 02" + ONE.hex + "02 00000005" + "01 00 01 01" + "01 00"
    with pytest.raises(CorruptRecord, match="1 partitions and 0 assignment epochs"):
        decode_record(key, bytes.fromhex(text))


@given(st.sampled_from(WHOLE), st.integers(2, 90), st.binary(max_size=6))
def test_changed_bytes_are_a_record_or_are_refused(record, at, changed) -> None:
    key, value = encode_record(record)
    assert value is not None
    with contextlib.suppress(CorruptRecord):
        decode_record(key, value[:at] + changed + value[at + len(changed) :])
