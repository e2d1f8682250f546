"""Damaged bytes of the offsets log, good ones are in `golden`; what members subscribe to."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.core.coordinator.codec import CorruptRecord
from broker_sim.core.group.classic_group import subscribed_topics
from broker_sim.core.group.log_records import (
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

OFFSET_V1 = bytes.fromhex("0001000000000000000500016d000000000000006400000000000000c8")
OFFSET_V2 = bytes.fromhex("0002000000000000000500016d0000000000000064")
OFFSET_V3 = bytes.fromhex("000300000000000000050000000200016d0000000000000064")
OFFSET_V4 = encode_offset_value(OffsetValue(5, 2, "m", 100))
OFFSET_V4_WITH_ID = encode_offset_value(OffsetValue(5, 2, "m", 100, topic_id=uuid.UUID(int=7)))
MEMBER = MemberValue("m", None, "c", "h", 60_000, 45_000, b"\x01\x02", b"\x03")
GROUP_V3 = encode_group_value(GroupValue("consumer", 7, "range", "m", 100, (MEMBER,)))


def test_a_topic_id_of_another_length_is_refused() -> None:
    with pytest.raises(CorruptRecord):
        decode_offset_value(OFFSET_V4[:-1] + b"\x01\x00\x02ab")


WHOLE = [
    (decode_key, encode_offset_key(OffsetKey("g", "in", 4))),
    (decode_key, encode_group_key("g")),
    *((decode_offset_value, data) for data in (OFFSET_V1, OFFSET_V2, OFFSET_V3, OFFSET_V4)),
    (decode_offset_value, OFFSET_V4_WITH_ID),
    (decode_group_value, GROUP_V3),
]


@pytest.mark.parametrize(("decode", "data"), WHOLE)
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
