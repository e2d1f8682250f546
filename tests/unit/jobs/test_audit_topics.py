"""The audit from record batches to its exit code, on logs made in memory.

A fake client serves what a broker would: whole batches in small answers, and under read_committed
the list of aborted transactions, computed here from the history and not from the markers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from jobs import audit
from txnlog_kafka.operations.fetch_cursor import FetchedBatches
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP, ListedOffset
from txnlog_kafka.wire.records import (
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    stamp_offsets,
)


class FakeLog:
    """Partitions of topics as bytes, with what a broker knows about them."""

    def __init__(self) -> None:
        self.batches: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
        self.aborted: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.group: dict[tuple[str, int], int] = {}

    def end(self, where: tuple[str, int]) -> int:
        batches = self.batches.setdefault(where, [])
        return batches[-1][1] if batches else 0

    def append(self, where: tuple[str, int], batch: bytes, count: int) -> int:
        base, data = self.end(where), bytearray(batch)
        stamp_offsets(data, 0, base_offset=base, leader_epoch=0)
        self.batches[where].append((base, base + count, bytes(data)))
        return base

    def data(self, where: tuple[str, int], rows: list[tuple[bytes, bytes]], epoch: int = -1) -> int:
        """Append a batch of these rows; with an epoch, the batch is transactional."""
        records = [Record(key, value, 1000) for key, value in rows]
        batch = encode_batch(
            records,
            producer_id=9 if epoch >= 0 else -1,
            producer_epoch=epoch,
            base_sequence=0 if epoch >= 0 else -1,
            transactional=epoch >= 0,
        )
        return self.append(where, batch, len(rows))

    def mark(self, where: tuple[str, int], epoch: int, first_offset: int | None) -> None:
        """A marker: COMMIT, or ABORT of the transaction that began at `first_offset`."""
        kind = MarkerType.COMMIT if first_offset is None else MarkerType.ABORT
        marker = TransactionMarker(9, epoch, kind, 0)
        last_offset = self.append(where, encode_marker(marker, timestamp=1000), 1)
        if first_offset is not None:
            self.aborted.setdefault(where, []).append((9, first_offset, last_offset))

    # what jobs use of the client
    def topic_partitions(self, topics: list[str]) -> dict[str, tuple[int, ...]]:
        return {t: tuple(sorted(p for (name, p) in self.batches if name == t)) for t in topics}

    def list_offsets(
        self, specs: dict[tuple[str, int], int], *, read_committed: bool
    ) -> dict[tuple[str, int], ListedOffset]:
        return {
            where: ListedOffset(0 if spec == EARLIEST_TIMESTAMP else self.end(where), -1)
            for where, spec in specs.items()
        }

    def fetch_range(
        self,
        topic: str,
        partition: int,
        *,
        start_offset: int,
        end_offset: int,
        read_committed: bool,
    ) -> Iterator[FetchedBatches]:
        where = (topic, partition)
        for base, end, data in self.batches[where]:
            aborted = [
                (producer_id, first)
                for producer_id, first, last in self.aborted.get(where, [])
                if first < end and last >= base
            ]
            yield FetchedBatches(data, aborted if read_committed else None, end, end, end, 0)

    def committed_offsets(
        self, _group_id: str, *, require_stable: bool
    ) -> dict[tuple[str, int], int]:
        return self.group


def source_value(partition: int, offset: int, topic: str = "in") -> bytes:
    source = {"topic": topic, "partition": partition, "offset": offset}
    return json.dumps({"x": {"y": 1}, "source": source, "z": None}).encode()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Two input partitions of 3 records; an output with one aborted and two committed attempts."""
    log = FakeLog()
    for partition in (0, 1):
        where = ("in", partition)
        log.data(where, [(f"k{partition}".encode(), b"{}") for _ in range(3)])
        log.group[where] = 3
    rows = [(b"k0", source_value(0, n)) for n in range(3)]
    others = [(b"k1", source_value(1, n)) for n in range(3)]
    first = log.data(("out", 0), rows[:2], epoch=4)
    log.mark(("out", 0), 5, first)
    log.data(("out", 0), rows, epoch=6)
    log.mark(("out", 0), 7, None)
    log.data(("out", 1), others, epoch=7)
    log.mark(("out", 1), 8, None)
    monkeypatch.setattr(audit, "cluster_client", lambda *_: contextlib.nullcontext(log))
    return log


def run_audit(*more: str) -> int:
    args = ["--bootstrap-servers", "127.0.0.1:1", "--input-topic", "in", "--output-topic", "out"]
    return audit.main([*args, "--group-id", "g", *more])


def test_a_clean_log_passes_and_its_attempts_are_counted(
    log: FakeLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit.json"
    assert run_audit("--expect-aborted", "--json", str(out)) == 0
    found = json.loads(out.read_text())
    assert found["input_records"] == 6
    assert found["output_committed"] == 6
    assert found["output_uncommitted"] == 8
    assert found["transactions"] == {
        "committed": 2,
        "aborted": 1,
        "fenced": 1,
        "undecided": 0,
        "aborted_records": 2,
        "markers": 3,
    }
    assert "exactly-once holds" in capsys.readouterr().out


def test_a_duplicate_batch_fails_the_audit(
    log: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.data(("out", 1), [(b"k1", source_value(1, 2))], epoch=8)
    log.mark(("out", 1), 9, None)
    assert run_audit() == 1
    assert "ANOMALY duplicate: 1 (input partition 1 offset 2)" in capsys.readouterr().out


def test_records_without_coordinates_or_of_another_topic_are_foreign_and_nothing_else(
    log: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.data(("out", 1), [(b"k1", b"no json"), (b"k1", source_value(1, 2, "other"))])
    assert run_audit() == 1
    said = capsys.readouterr().out
    assert "ANOMALY foreign: 2 (they were not written by consume_transform_produce.py" in said
    assert said.count("ANOMALY") == 1


def test_a_broker_that_hides_a_committed_record_and_shows_an_aborted_one_is_caught(
    log: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.aborted = {("out", 1): [(9, 0, 3)]}
    assert run_audit() == 1
    text = capsys.readouterr().out
    assert "ANOMALY G1a: 2" in text
    assert "ANOMALY poll-skip: 3" in text


def test_an_undecided_transaction_is_hanging(
    log: FakeLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.data(("out", 1), [(b"k1", source_value(1, 2))], epoch=8)
    assert run_audit() == 1
    assert "hanging-transaction: 1 (producer id 9 epoch 8)" in capsys.readouterr().out


def test_a_log_without_aborted_attempts_is_vacuous_where_they_are_expected(log: FakeLog) -> None:
    del log.batches[("out", 0)][:2]
    log.aborted = {}
    assert run_audit() == 0
    assert run_audit("--expect-aborted") == 1


def test_group_offsets_short_of_the_end_fail_the_audit(log: FakeLog) -> None:
    log.group[("in", 1)] = 2
    assert run_audit() == 1


def test_what_cannot_be_read_is_neither_proof_nor_disproof(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise audit.TxnLogError("no broker")

    monkeypatch.setattr(log, "list_offsets", refuse)
    assert run_audit() == 2


def test_source_coordinates_are_the_same_by_columns_and_line_by_line() -> None:
    values = [source_value(n % 3, n) for n in range(100)]
    by_columns = audit.source_coordinates(pa.array(values, pa.binary()), "in")
    # A value over two lines cannot be parsed by columns.
    by_lines = audit.source_coordinates(pa.array([*values, b"{\n}", None], pa.binary()), "in")
    assert by_lines[0].tolist() == [*by_columns[0].tolist(), -1, -1]
    assert by_lines[1].tolist() == [*range(100), -1, -1]
    assert audit.source_coordinates(pa.array([], pa.binary()), "in")[0].tolist() == []
