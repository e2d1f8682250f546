"""File formats, byte by byte from their published layout, refused when damaged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.core.log_build import TOPIC_ID, LogOnDisk, build_batch

from broker_sim.core.log import AbortedTransaction, LogConfig, files
from broker_sim.core.log.indexes import CorruptIndex, OffsetIndex, TimeIndex, TransactionIndex
from broker_sim.core.log.leader_epochs import LeaderEpochs
from broker_sim.core.log.producer_snapshots import (
    CorruptSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from broker_sim.core.log.producer_state import ProducerStateEntry
from broker_sim.core.log.segment_states import decode_states, encode_states


def harmed(data: bytes) -> Iterator[bytes]:
    """The bytes with each bit flipped, and cut at each length."""
    for at in range(len(data) * 8):
        bad = bytearray(data)
        bad[at // 8] ^= 1 << at % 8
        yield bytes(bad)
    for length in range(len(data)):
        yield data[:length]


def restored(index, data: bytes):
    """The index of a later life, whose file holds `data`."""
    again = type(index)() if isinstance(index, TransactionIndex) else type(index)(100)
    again.restore(index.count, index.crc, lambda size_bytes: data[:size_bytes])
    return again


def some_indexes() -> list:
    offsets, times, aborted = OffsetIndex(100), TimeIndex(100), TransactionIndex()
    for i in range(5):
        offsets.append(105 + i, 10 + i)
        times.maybe_append(1000 + i, 105 + i)
        aborted.append(AbortedTransaction(i, 100, 105 + i, 100))
    return [offsets, times, aborted]


def one_more(index) -> bytes:
    match index:
        case OffsetIndex():
            return index.append(111, 99)
        case TimeIndex():
            return index.maybe_append(2000, 111)
    return index.append(AbortedTransaction(9, 100, 111, 112))


def test_index_files_read_back_and_go_on():
    for index in some_indexes():
        again = restored(index, index.encode() + b"bytes that came later")
        assert one_more(index) == one_more(again) == again.tail()
        again.load()
        assert (again.encode(), again.count, again.crc) == (
            index.encode(), index.count, index.crc,
        )  # fmt: skip


def test_an_index_file_with_any_flipped_bit_or_lost_byte_is_noticed():
    for index in some_indexes():
        for bad in harmed(index.encode()):
            with pytest.raises(CorruptIndex):
                restored(index, bad).load()


def test_index_lookups_are_floors():
    index = OffsetIndex(0)
    for offset, position in ((9, 100), (19, 200)):
        index.append(offset, position)
    assert index.floor(8) is None
    assert index.floor(9) == index.floor(18) == (9, 100)
    assert index.floor_position(99) is None
    assert index.floor_position(10_000) == (19, 200)
    times = TimeIndex(0)
    times.maybe_append(500, 9)
    assert (times.offset_before(500), times.offset_before(501)) == (-1, 9)


def test_a_snapshot_with_any_flipped_bit_or_lost_byte_is_refused():
    for bad in harmed(encode_snapshot([ProducerStateEntry(7, 2, 9, 55, 90)])):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(bad)


def test_segment_states_with_any_flipped_bit_or_lost_byte_are_refused():
    on_disk = LogOnDisk()
    for i in range(12):
        on_disk.produce("x" * 100, producer=(7, 0, i))
    on_disk.produce("aborted", producer=(8, 0, 0), transactional=True)
    on_disk.mark(8, 0, "abort")
    states = [segment.state() for segment in on_disk.log._local.segments]
    data = encode_states([(0, 0), (3, 7)], states)
    assert decode_states(data) == ([(0, 0), (3, 7)], {s.base_offset: s for s in states})
    for bad in harmed(data):
        assert decode_states(bad) is None, bad


def test_a_snapshot_keeps_the_newest_batch_only():
    on_disk = LogOnDisk(LogConfig())
    for sequence in range(3):
        on_disk.produce("x", producer=(7, 0, sequence))
    on_disk.restart("clean")
    assert on_disk.append(build_batch("x", producer=(7, 0, 2))).duplicate
    assert not on_disk.append(build_batch("x", producer=(7, 0, 1))).duplicate
    on_disk.restart("kill")
    assert on_disk.append(build_batch("x", producer=(7, 0, 2))).duplicate


def test_leader_epochs_remember_where_each_began():
    epochs = LeaderEpochs()
    assert [epochs.assign(e, o) for e, o in ((0, 0), (0, 5), (2, 10), (1, 11))] == [
        True,
        False,
        True,
        False,
    ]
    assert epochs.encode() == b"0\n2\n0 0\n2 10\n"
    assert [epochs.end_offset_for(e, 20) for e in (-1, 0, 1, 2, 3)] == [
        (-1, -1),
        (0, 10),
        (0, 10),
        (2, 20),
        (-1, -1),
    ]
    again = LeaderEpochs.decode(epochs.encode())
    assert again is not None
    assert again.entries == epochs.entries
    assert epochs.truncate_start(12)
    assert epochs.entries == [(2, 12)]
    epochs.truncate_end(12)
    assert epochs.latest is None


@pytest.mark.parametrize("text", [b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"\xff\xfe"])
def test_a_checkpoint_that_is_none_is_refused(text):
    assert LeaderEpochs.decode(text) is None


def test_a_deleted_partition_leaves_nothing_and_its_name_fits_a_file_system():
    on_disk = LogOnDisk()
    on_disk.produce("a")
    on_disk.call(on_disk.log.delete)
    assert on_disk.disk.list("") == ()
    name = files.deleted_directory_name("t" * 249, 123, TOPIC_ID)
    assert len(name) == 255
    assert name.endswith("-delete")
