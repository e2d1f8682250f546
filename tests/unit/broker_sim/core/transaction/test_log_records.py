"""Damaged bytes of the transaction log; good ones are in `golden`."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core.coordinators import build_metadata

from broker_sim.core.coordinator.codec import CorruptRecord
from broker_sim.core.transaction.log_records import decode_key, decode_value, encode_value
from broker_sim.core.transaction.states import TransactionState

PARTITIONS = frozenset({("ab", 1), ("ab", 0), ("c", 7)})
ONGOING = build_metadata(TransactionState.ONGOING, partitions=PARTITIONS)
VALUE_V0 = encode_value(ONGOING, 0)
VALUE_V1 = encode_value(
    replace(ONGOING, previous_producer_id=4, next_producer_id=9, client_transaction_version=2), 2
)


def test_tags_of_later_versions_are_skipped() -> None:
    start_and_count = bytes.fromhex("000000000000003203")
    data = VALUE_V1.replace(start_and_count, start_and_count[:-1] + b"\x04")
    data += bytes.fromhex("0903aabbcc")
    assert decode_value("t", data) == decode_value("t", VALUE_V1)


@given(st.sampled_from([VALUE_V0, VALUE_V1]), st.integers(0, 70), st.binary(max_size=6))
def test_changed_bytes_are_a_value_or_are_refused(data, at, changed) -> None:
    with contextlib.suppress(CorruptRecord):
        decode_value("t", data[:at] + changed + data[at + len(changed) :])


@pytest.mark.parametrize("data", [VALUE_V0, VALUE_V1])
def test_every_cut_is_refused_or_reads_as_a_value(data) -> None:
    for length in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_value("t", data[:length])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(VALUE_V0[:17] + b"\x7f\xff\xff\xff" + VALUE_V0[21:], id="long array"),
        pytest.param(
            VALUE_V1.replace(bytes.fromhex("02020002"), bytes.fromhex("02030002ff")),
            id="tag of another length than its type",
        ),
        pytest.param(
            VALUE_V0.replace(
                bytes.fromhex("0001630000000100000007"), bytes.fromhex("000163ffffffff")
            ),
            id="null array of partitions",
        ),
    ],
)
def test_a_value_whose_lengths_cannot_be_is_refused(data) -> None:
    assert data not in (VALUE_V0, VALUE_V1)
    with pytest.raises(CorruptRecord):
        decode_value("t", data)


@pytest.mark.parametrize(
    "data", ["", "00", "0000ffff", "00000001ff", "0000fffe", "000000026162"[:-2]]
)
def test_a_key_without_version_or_with_a_null_or_broken_string_is_refused(data) -> None:
    with pytest.raises(CorruptRecord):
        decode_key(bytes.fromhex(data))
