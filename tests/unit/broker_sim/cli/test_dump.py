"""`dump`: files as a broker writes them, damaged ones, and what it must never do: write."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest
from support.core.batch_layout import stamped

from broker_sim.cli.main import main
from broker_sim.core.log.offset_checkpoint import encode_offsets, encode_stray
from broker_sim.core.log.producer_snapshots import encode_snapshot
from broker_sim.core.log.producer_state import BatchMetadata, ProducerStateEntry
from broker_sim.core.log.segment_states import encode_states
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
)

LOG = "00000000000000000000.log"
FIRST = encode_batch(
    [Record(b"k", b"one", 5, (("h", b"x"),)), Record(None, None, 6)], leader_epoch=3
)
SECOND = encode_batch(
    [Record(b"\xff", b"three", 7)], base_offset=2, producer_id=9, producer_epoch=1,
    base_sequence=4, transactional=True,
)  # fmt: skip


MARKER = stamped(encode_marker(TransactionMarker(9, 1, MarkerType.ABORT, 8), timestamp=8), 3)
"""The abort of producer 9 at offset 3."""


@pytest.fixture
def dump(tmp_path, capsys):
    """`dump({name: bytes}, *options)`: (exit code, items, stderr) of dumping these files."""

    def run(files: dict[str, bytes], *options: str, folder: str = "orders-0"):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        for name, data in files.items():
            (place / name).write_bytes(data)
        before = {each: each.stat().st_mtime_ns for each in place.iterdir()}
        code = main(["dump", str(place), "--json", *options])
        out, err = capsys.readouterr()
        assert {each: each.stat().st_mtime_ns for each in place.iterdir()} == before
        items = [json.loads(line) for line in out.splitlines()]
        return code, [each for each in items if each["kind"] != "file"], err

    return run


def fields(item: dict, *names: str) -> tuple:
    return tuple(item[name] for name in names)


def test_a_segment_is_told_batch_by_batch(dump):
    code, items, err = dump({LOG: FIRST + SECOND + MARKER})
    assert (code, err, [each["kind"] for each in items]) == (0, "", ["batch"] * 3)
    assert [fields(each, "baseOffset", "lastOffset", "count", "position") for each in items] == [
        (0, 1, 2, 0),
        (2, 2, 1, len(FIRST)),
        (3, 3, 1, len(FIRST) + len(SECOND)),
    ]
    assert fields(items[0], "partitionLeaderEpoch", "CreateTime", "magic") == (3, 6, 2)
    names = ("producerId", "producerEpoch", "baseSequence", "isTransactional", "isControl")
    assert fields(items[1], *names) == (9, 1, 4, True, False)
    assert fields(items[2], "isControl", "isvalid") == (True, True)


def test_records_are_told_when_asked_for_and_markers_by_their_meaning(dump):
    _, items, _ = dump({LOG: FIRST + SECOND + MARKER}, "--deep")
    records = [each for each in items if each["kind"] == "record"]
    assert [fields(each, "offset", "keySize", "valueSize") for each in records] == [
        (0, 1, 3),
        (1, -1, -1),
        (2, 1, 5),
        (3, 4, 6),
    ]
    assert fields(records[0], "key", "payload", "headers") == ("k", "one", ["h=x"])
    assert fields(records[1], "key", "payload", "timestamp") == (None, None, 6)
    assert fields(records[2], "key", "payload", "sequence") == ("0xff", "three", 4)
    assert fields(records[3], "endTxnMarker", "coordinatorEpoch") == ("ABORT", 8)


def test_the_first_damaged_byte_of_a_segment_is_named_whatever_bit_is_flipped(dump):
    data = FIRST + SECOND
    outside_the_crc = set(range(len(FIRST), len(FIRST) + 8)) | set(
        range(len(FIRST) + 12, len(FIRST) + 16)
    )
    for at in range(len(FIRST), len(data), 3):
        bad = bytearray(data)
        bad[at] ^= 0x40
        code, items, err = dump({LOG: bytes(bad)})
        if at in outside_the_crc and code == 0:
            continue
        assert (code, items[-1]["kind"], items[-1]["position"]) == (1, "damaged", len(FIRST)), at
        assert f"{LOG} is damaged at byte {len(FIRST)}" in err
        assert items[0]["kind"] == "batch"


@pytest.mark.parametrize("left", [1, 11, HEADER_BYTES - 1, HEADER_BYTES, len(SECOND) - 1])
def test_a_torn_segment_is_told_up_to_the_tear(dump, left):
    code, items, err = dump({LOG: FIRST + SECOND[:left]})
    assert (code, [each["kind"] for each in items]) == (1, ["batch", "damaged"])
    assert items[-1]["position"] == len(FIRST)
    assert "are left" in err


def test_an_index_is_not_damaged_by_the_damage_of_its_log(dump):
    index = "00000000000000000000.index"
    entries = struct.pack(">iiii", 2, len(FIRST), 9, len(FIRST + SECOND))
    code, items, err = dump({LOG: FIRST + SECOND[:11], index: entries})
    damaged = [each for each in items if each["kind"] == "damaged"]
    assert (code, [each["position"] for each in damaged]) == (1, [len(FIRST)])
    assert f"{index} is damaged" not in err
    # Behind the end of a log without damage there is no batch.
    code, items, err = dump({LOG: FIRST + SECOND, index: entries})
    assert code == 1
    assert f"{index} is damaged at byte 8" in err


def test_offsets_that_do_not_rise_are_damage(dump):
    code, items, _ = dump({LOG: SECOND + FIRST})
    assert (code, items[-1]["position"]) == (1, len(SECOND))


def test_indexes_are_told_up_to_the_room_made_in_advance(dump):
    files = {
        LOG: FIRST + SECOND,
        "00000000000000000000.index": struct.pack(">ii", 2, len(FIRST)) + bytes(800),
        "00000000000000000000.timeindex": struct.pack(">qi", 6, 1) + bytes(1200),
        "00000000000000000000.txnindex": struct.pack(">hqqqq", 0, 9, 2, 3, 4),
    }
    code, items, _ = dump(files)
    entries = [each for each in items if each["kind"] == "entry"]
    assert code == 0
    assert fields(entries[0], "offset", "position") == (2, len(FIRST))
    assert fields(entries[1], "timestamp", "offset") == (6, 1)
    names = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
    assert fields(entries[2], *names) == (9, 2, 3, 4)


@pytest.mark.parametrize(
    ("name", "data", "position"),
    [
        ("00000000000000000000.index", struct.pack(">iiii", 2, 70, 1, 90), 8),
        ("00000000000000000000.index", struct.pack(">ii", 1, 5), 0),
        ("00000000000000000000.index", struct.pack(">ii", 2, len(FIRST)) + b"\1\2\3", 8),
        ("00000000000000000000.timeindex", struct.pack(">qiqi", 6, 1, 5, 2), 12),
        ("00000000000000000000.txnindex", struct.pack(">hqqqq", 7, 9, 2, 3, 4), 0),
        ("00000000000000000000.txnindex", struct.pack(">hqqqq", 0, 9, 3, 2, 4), 0),
        ("00000000000000000000.txnindex", b"\1" * 10, 0),
        ("00000000000000000004.snapshot", b"\0\1\0\0\0\0\0\0\0\0", 0),
        ("leader-epoch-checkpoint", b"0\n1\n", 0),
        ("recovery-point-offset-checkpoint", b"0\n1\norders 0\n", 0),
        ("segment-state-checkpoint", b"0\n00000000\n0\n", 0),
    ],
)
def test_a_damaged_file_beside_a_segment_is_named_and_the_others_are_told(
    dump, name, data, position
):
    files = {name: data}
    if name.endswith(".index") and position == 0:
        files[LOG] = FIRST + SECOND
    code, items, err = dump({**files, "partition.metadata": b"version: 0\ntopic_id: x\n"})
    damaged = [each for each in items if each["kind"] == "damaged"]
    assert (code, [each["position"] for each in damaged]) == (1, [position])
    assert f"{name} is damaged at byte {position}" in err
    assert [each["text"] for each in items if each["kind"] == "line"] == [
        "version: 0",
        "topic_id: x",
    ]


def test_snapshots_and_checkpoints_are_told(dump):
    entry = ProducerStateEntry(
        producer_id=9, producer_epoch=1, coordinator_epoch=2, last_timestamp=7,
        current_txn_first_offset=2, batches=(BatchMetadata(4, 2, 0, 7),),
    )  # fmt: skip
    code, items, _ = dump(
        {
            "00000000000000000004.snapshot": encode_snapshot([entry]),
            "leader-epoch-checkpoint": b"0\n2\n0 0\n3 2\n",
            "replication-offset-checkpoint": encode_offsets({("orders", 1): 4}),
            "segment-state-checkpoint": encode_states([(0, 0)], []),
        }
    )
    told = {each["file"]: each for each in items}
    assert code == 0
    names = ("producerId", "currentTxnFirstOffset", "lastSequence", "lastOffset")
    assert fields(told["00000000000000000004.snapshot"], *names) == (9, 2, 4, 2)
    assert fields(told["leader-epoch-checkpoint"], "epoch", "startOffset") == (3, 2)
    assert fields(told["replication-offset-checkpoint"], "topic", "offset") == ("orders", 4)
    assert told["segment-state-checkpoint"]["kind"] == "epoch"


def test_the_cluster_metadata_are_told_as_they_are(dump):
    record = json.dumps({"version": 1, "type": "topic", "name": "orders"}).encode()
    batch = encode_batch([Record(None, record, 1), Record(None, b"\1\2\0rest", 1)])
    _, items, _ = dump({LOG: batch}, "--deep", folder="__cluster_metadata-0")
    assert items[1]["payload"] == {"version": 1, "type": "topic", "name": "orders"}
    assert fields(items[2], "frame", "type", "version", "payload") == (1, 2, 0, "rest")


def test_records_that_the_decoder_does_not_know_are_told_raw(dump):
    _, items, _ = dump({LOG: FIRST}, "--deep", "--offsets-decoder")
    assert fields(items[1], "key", "payload") == ("k", "one")
    _, items, _ = dump({LOG: FIRST}, "--deep", folder="__transaction_state-3")
    assert fields(items[1], "key", "payload") == ("k", "one")


def test_paths_that_are_missing_or_no_file_of_a_broker_are_refused(tmp_path, capsys):
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    assert main(["dump", str(tmp_path / "nowhere"), str(other)]) == 1
    out, err = capsys.readouterr()
    assert "nowhere: No such file or directory" in err
    assert "notes.txt is damaged at byte 0: this is not a file of a broker" in err
    assert "Dumping" in out


def test_the_checksum_beside_a_checkpoint_is_told_as_it_is(tmp_path, capsys):
    path = tmp_path / "log-start-offset-checkpoint.crc"
    path.write_text("00000000 1234abcd 5678abcd\n")
    assert main(["dump", str(tmp_path)]) == 0
    assert "  line: text=00000000 1234abcd 5678abcd" in capsys.readouterr().out


def test_what_was_known_of_a_log_that_was_set_aside_is_told_as_it_is(tmp_path, capsys):
    path = tmp_path / "stray-offset-checkpoint"
    path.write_bytes(encode_stray({"log-start-offset-checkpoint": 3}))
    assert main(["dump", str(tmp_path)]) == 0
    assert "  line: text=log-start-offset-checkpoint 0 3\n" in capsys.readouterr().out


def test_a_folder_without_any_file_of_a_broker_is_refused(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello")
    assert main(["dump", str(tmp_path)]) == 1
    assert f"{tmp_path}: the folder has no file of a broker" in capsys.readouterr().err


def test_a_file_that_a_running_broker_removes_meanwhile_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / LOG).write_bytes(FIRST)
    gone = tmp_path / "00000000000000000000.snapshot"
    monkeypatch.setattr("broker_sim.cli.dump._files", lambda path: iter((gone, path / LOG)))
    assert main(["dump", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert err == f"broker_sim: {gone}: No such file or directory\n"
    assert "  batch: baseOffset=0" in out


def test_a_dump_ends_quietly_when_its_reader_has_enough(tmp_path):
    (tmp_path / LOG).write_bytes(FIRST)
    arguments = [sys.executable, "-m", "broker_sim", "dump", str(tmp_path / LOG)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path):
    folder = tmp_path / "größe"
    folder.mkdir()
    (folder / LOG).write_bytes(FIRST)
    done = subprocess.run(
        [sys.executable, "-m", "broker_sim", "dump", str(folder)],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"/gr\\xf6\\xdfe/" in done.stdout


def test_text_is_one_line_an_item(tmp_path, capsys):
    path = tmp_path / LOG
    path.write_bytes(FIRST)
    assert main(["dump", str(path), "--deep-iteration"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Dumping {path} ({len(FIRST)} bytes)"
    assert lines[1].startswith("  batch: baseOffset=0 lastOffset=1 count=2 baseSequence=-1")
    assert lines[2] == (
        '    record: offset=0 timestamp=5 keySize=1 valueSize=3 sequence=-1 headers=["h=x"] '
        "key=k payload=one"
    )
    assert lines[3].endswith("key=null payload=null")
