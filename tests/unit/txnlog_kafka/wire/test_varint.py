"""Varints of lengths, counts and tags, at the edges; test_records has the varints of records."""

from __future__ import annotations

import pytest

from txnlog_kafka.wire.varint import (
    MalformedVarint,
    decode_signed,
    decode_unsigned,
    encode_unsigned,
)


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**31 - 1, "ffffffff07")],
)
def test_seven_bits_a_byte_the_lowest_first(value: int, data: str) -> None:
    assert encode_unsigned(value).hex() == data
    assert decode_unsigned(bytes.fromhex("ff" + data + "ff"), 1) == (value, 1 + len(data) // 2)


@pytest.mark.parametrize("data", ["", "80", "ffffffff", "ffffffffff01"])
def test_bytes_that_end_too_early_or_too_late_are_refused(data: str) -> None:
    with pytest.raises(MalformedVarint):
        decode_unsigned(bytes.fromhex(data), 0)


def test_a_signed_one_has_ten_bytes_at_most() -> None:
    assert decode_signed(b"\xff" * 9 + b"\x01", 0) == (-(2**63), 10)
    with pytest.raises(MalformedVarint):
        decode_signed(b"\xff" * 10, 0)
