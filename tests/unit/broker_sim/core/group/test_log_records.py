"""The bytes of the offsets log, against Kafka's layouts written out by hand."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.coordinator.codec import CorruptRecord
from broker_sim.core.group.classic_group import subscribed_topics
from broker_sim.core.group.log_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)

OFFSET_KEY = bytes.fromhex("00010001670002696e00000004")
GROUP_KEY = bytes.fromhex("0002000167")
OFFSET_V3 = bytes.fromhex("000300000000000000050000000200016d0000000000000064")
OFFSET_V1 = bytes.fromhex("0001000000000000000500016d000000000000006400000000000000c8")
OFFSET_V2 = bytes.fromhex("0002000000000000000500016d0000000000000064")
OFFSET_V4 = bytes.fromhex("0004000000000000000500000002026d000000000000006400")
TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
OFFSET_V4_WITH_ID = OFFSET_V4[:-1] + b"\x01\x00\x10" + TOPIC_ID.bytes
GROUP_V3 = bytes.fromhex(
    "0003"
    "0008" "636f6e73756d6572"  # consumer
    "00000007"  # generation
    "0005" "72616e6765"  # range
    "0001" "6d"  # leader
    "0000000000000064"  # state timestamp
    "00000001"  # one member
    "0001" "6d" "ffff" "0001" "63" "0001" "68"  # member, no instance, client, host
    "0000ea60" "0000afc8"  # rebalance and session timeout
    "00000002" "0102" "00000001" "03"
)  # fmt: skip
MEMBER = MemberValue("m", None, "c", "h", 60_000, 45_000, b"\x01\x02", b"\x03")
GROUP = GroupValue("consumer", 7, "range", "m", 100, (MEMBER,))


def test_keys() -> None:
    assert encode_offset_key(OffsetKey("g", "in", 4)) == OFFSET_KEY
    assert encode_group_key("g") == GROUP_KEY
    assert decode_key(OFFSET_KEY) == OffsetKey("g", "in", 4)
    assert decode_key(b"\x00\x00" + OFFSET_KEY[2:]) == OffsetKey("g", "in", 4)
    assert decode_key(GROUP_KEY) == GroupKey("g")
    assert decode_key(b"\x00\x03newer kind") is None


def test_offset_values() -> None:
    value = OffsetValue(5, 2, "m", 100)
    assert encode_offset_value(value) == OFFSET_V4
    assert decode_offset_value(OFFSET_V4) == value
    assert decode_offset_value(OFFSET_V3) == value
    identified = replace(value, topic_id=TOPIC_ID)
    assert encode_offset_value(identified) == OFFSET_V4_WITH_ID
    assert decode_offset_value(OFFSET_V4_WITH_ID) == identified
    assert decode_offset_value(OFFSET_V2) == OffsetValue(5, -1, "m", 100)
    assert decode_offset_value(b"\0\0" + OFFSET_V2[2:]) == OffsetValue(5, -1, "m", 100)
    expiring = OffsetValue(5, -1, "m", 100, 200)
    assert encode_offset_value(expiring) == OFFSET_V1
    assert decode_offset_value(OFFSET_V1) == expiring


def test_a_topic_id_of_another_length_is_refused() -> None:
    with pytest.raises(CorruptRecord):
        decode_offset_value(OFFSET_V4[:-1] + b"\x01\x00\x02ab")


def test_group_values() -> None:
    assert encode_group_value(GROUP) == GROUP_V3
    assert decode_group_value(GROUP_V3) == GROUP
    empty = GroupValue("", 0, None, None, -1, ())
    assert decode_group_value(encode_group_value(empty)) == empty


def test_group_values_of_older_versions() -> None:
    v2 = bytes.fromhex("0002") + GROUP_V3[2:].replace(bytes.fromhex("6dffff0001"), b"m\x00\x01")
    assert decode_group_value(v2) == GROUP
    v0 = bytes.fromhex(
        "0000" "0008" "636f6e73756d6572" "00000007" "ffff" "ffff" "00000001"
        "0001" "6d" "0001" "63" "0001" "68" "0000afc8" "00000000" "00000000"
    )  # fmt: skip
    (member,) = decode_group_value(v0).members
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (45_000, 45_000)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_key, OFFSET_KEY), (decode_key, GROUP_KEY), (decode_offset_value, OFFSET_V3),
        (decode_offset_value, OFFSET_V1), (decode_offset_value, OFFSET_V4),
        (decode_offset_value, OFFSET_V4_WITH_ID), (decode_offset_value, OFFSET_V2),
        (decode_group_value, GROUP_V3),
    ],
)  # fmt: skip
def test_every_cut_and_a_version_from_the_future_are_refused(decode, data) -> None:
    for length in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode(data[:length])
    if decode is not decode_key:
        with pytest.raises(CorruptRecord):
            decode(b"\x00\x05" + data[2:])


@given(st.sampled_from([OFFSET_V4_WITH_ID, GROUP_V3]), st.integers(2, 90), st.binary(max_size=6))
def test_changed_bytes_are_a_value_or_are_refused(data, at, changed) -> None:
    decode = decode_group_value if data == GROUP_V3 else decode_offset_value
    with contextlib.suppress(CorruptRecord):
        decode(data[:at] + changed + data[at + len(changed) :])


def test_subscriptions_are_read_as_far_as_version_0_goes() -> None:
    one = bytes.fromhex("00030000000200016100016200000001ff") + b"later fields"
    two = bytes.fromhex("000000000001000163ffffffff")
    assert subscribed_topics([one, two]) == {"a", "b", "c"}
    for cut in range(len(two)):
        assert subscribed_topics([one, two[:cut]]) is None
    assert subscribed_topics([b"\x00\x00\x7f\xff\xff\xff"]) is None
