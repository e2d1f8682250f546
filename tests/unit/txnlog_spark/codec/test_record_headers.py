"""Headers of records: of many records in rounds, of few one after the other, the same columns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_kafka.wire.records import HEADER_BYTES, CorruptBatch, Record, encode_batch, refresh_crc
from txnlog_spark.codec import record_headers
from txnlog_spark.codec.decode import decode_batches

Headers = tuple[tuple[str, bytes | None], ...]

headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=5)), max_size=5)
batches = st.lists(headers.map(tuple), min_size=1, max_size=12)


def read(batch: bytes, few: int) -> list[object] | type[Exception]:
    """The headers, or that they are corrupt, with this many records taken for few."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record_headers, "FEW", few)
        try:
            columns = decode_batches(
                batch, start_offset=0, end_offset=2**62, aborted=None, include_headers=True
            )
        except CorruptBatch:
            return CorruptBatch
    return [[(each["key"], each["value"]) for each in row] for row in columns.headers.to_pylist()]


def batch_of(rows: list[Headers]) -> bytes:
    return encode_batch([Record(b"k", b"v", 0, row) for row in rows])


@given(batches)
def test_few_records_and_many_give_the_same_headers(rows: list[Headers]) -> None:
    for few in (0, 3, 100):
        assert read(batch_of(rows), few) == [list(row) for row in rows]


@given(batches, st.data())
def test_bytes_that_are_no_headers_are_corrupt_either_way(
    rows: list[Headers], data: st.DataObject
) -> None:
    batch = bytearray(batch_of(rows))
    at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    refresh_crc(batch, 0, len(batch))
    assert read(bytes(batch), 0) == read(bytes(batch), 100)


@pytest.mark.parametrize("few", [0, 100])
def test_a_name_of_negative_length_is_corrupt_although_the_bytes_end_with_the_record(few) -> None:
    batch = bytearray(encode_batch([Record(b"k", b"v")]))
    batch[HEADER_BYTES] += 2  # one byte more
    batch[-1:] = b"\x02\x01"  # one header, a name of -1
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    refresh_crc(batch, 0, len(batch))
    assert read(bytes(batch), few) is CorruptBatch


def test_a_record_of_many_headers_takes_no_round_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    whole: Callable = record_headers.read_varints
    monkeypatch.setattr(
        record_headers, "read_varints", lambda *given: rounds.append(1) or whole(*given)
    )
    many = tuple((f"{number}", b"x") for number in range(20_000))
    rows = [(("a", None),)] * 100 + [many]
    assert read(batch_of(rows), record_headers.FEW) == [list(row) for row in rows]
    assert len(rounds) == 2
