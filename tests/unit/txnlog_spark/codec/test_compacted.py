"""The connector reads what the cleaner leaves: gaps, batches without records, delete horizons."""

from __future__ import annotations

import pytest
from support.models.compacted_log import CompactedLog

from txnlog_spark.codec.decode import decode_batches


@pytest.fixture
def compacted() -> CompactedLog:
    """Keys written over, a tombstone, an aborted transaction whose producer is remembered."""
    log = CompactedLog()
    log.put(("a", "1"), ("b", "1"), producer_id=9)
    log.put(("x", "aborted"), producer_id=7, transactional=True)
    log.end(7, "abort")
    log.put(("a", "2"), ("gone", None), ("c", "1"))
    log.put(("b", "2"), ("a", "3"))
    log.roll()
    assert log.clean()
    return log


def test_every_survivor_is_read_with_its_offset_and_timestamp(compacted):
    read = compacted.read(0, committed=True)
    data = compacted.data_of(read)
    assert {header.record_count for header, _ in compacted.batches()} >= {0, 1, 2}
    aborted = [(entry.producer_id, entry.first_offset) for entry in read.aborted]
    columns = decode_batches(data, start_offset=0, end_offset=99, aborted=aborted)
    found = dict(
        zip(
            columns.offsets.tolist(),
            zip(columns.keys.to_pylist(), columns.values.to_pylist(), strict=True),
            strict=True,
        )
    )
    assert found == {
        at: (key.encode(), None if value is None else value.encode())
        for at, (key, value) in compacted.consume_pairs().items()
    }
    written = {5: 1, 6: 2, 7: 0, 8: 1}  # by offset, ms after the batch's first record
    times = dict(zip(columns.offsets.tolist(), columns.timestamps.tolist(), strict=True))
    assert {at: ms - compacted.now_ms for at, ms in times.items()} == written
