"""`kafka-dump-log` reads the files of both brokers and finds nothing wrong with them.

A broker of each kind writes segments with committed and aborted transactions, every codec, plain
and transactional offsets, and a group that comes and goes. Then the broker stops, and the tool
dumps its files.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.probe import wait_until
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import (
    TIMEOUT_S,
    consumer,
    create_topic,
    delete_group,
    produce_values,
    read_topic,
    transactional,
    values_of,
)
from support.harness.availability import check_available
from support.kafka.java_tools import DUMP_LOG
from support.raw.raw import Connection, RawProducer

from broker_sim.__main__ import main
from broker_sim.cli.timeline_logs import find_stories, find_written

pytestmark = pytest.mark.kafka

BROKERS = {"broker_sim": SimBroker, "apache_kafka": ApacheKafka}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ROUNDS = 12
SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "200"}
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@dataclass
class Stopped:
    """A broker's data directory, and what its clients know is in there."""

    data_dir: Path
    committed: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)

    def files(self, topic: str, *suffixes: str) -> list[Path]:
        """The files of a topic's partitions, by name."""
        found = self.data_dir.glob(f"{topic}-*/*")
        return sorted(path for path in found if path.suffix in suffixes)


def load_data(bootstrap: str, stopped: Stopped) -> None:
    """A topic of many segments: plain, committed and aborted records in every codec."""
    create_topic(bootstrap, "data", config=SMALL)
    for codec in CODECS:
        values = [f"plain {codec} {n} {'x' * 60}" for n in range(40)]
        produce_values(bootstrap, "data", values, compression_type=codec, batch_num_messages=20)
        stopped.plain += values
    writers = {
        codec: transactional(bootstrap, f"writer-{codec}", compression_type=codec)
        for codec in CODECS
    }
    for number in range(ROUNDS):
        for codec, writer in writers.items():
            commits = number % 3 != 0
            values = [f"{'good' if commits else 'bad'} {codec} {number} {n}" for n in range(4)]
            writer.begin_transaction()
            for value in values:
                writer.produce("data", value, key=b"k", headers=[("h", b"v")], partition=0)
            assert writer.flush(TIMEOUT_S) == 0
            (writer.commit_transaction if commits else writer.abort_transaction)(TIMEOUT_S)
            (stopped.committed if commits else stopped.aborted).extend(values)


def load_groups(bootstrap: str, port: int) -> None:
    """Committed offsets with metadata, a group of a member, a deleted one, transactional ones."""
    place = TopicPartition("data", 0, 7, metadata="a note")
    for group in ("kept", "deleted"):
        member = consumer(bootstrap, group)
        member.subscribe(["data"])
        wait_until(lambda one=member: one.poll(0.05) is None and one.assignment(), "partitions")
        member.commit(offsets=[place], asynchronous=False)
        member.close()
    delete_group(AdminClient({"bootstrap.servers": bootstrap}), "deleted")
    with Connection(port) as connection:
        producer = RawProducer(connection, "offsets")
        assert producer.find_coordinator() == "NONE"
        assert producer.init() == "NONE"
        for commit, at in ((True, 11), (False, 12)):
            assert producer.add_offsets("in-transaction") == "NONE"
            assert producer.commit_offset("in-transaction", "data", 0, at) == "NONE"
            assert producer.end(commit=commit, version=4) == "NONE"


@pytest.fixture(scope="module", params=BROKERS)
def stopped(request, tmp_path_factory) -> Iterator[Stopped]:
    """Return the data directory of each kind of broker, stopped after producers and groups wrote to
    it."""
    check_available(request.param)
    broker = BROKERS[request.param](tmp_path_factory.mktemp("dump"))
    with broker:
        stopped = Stopped(broker.data_dir)
        load_data(broker.bootstrap_servers, stopped)
        load_groups(broker.bootstrap_servers, broker.port)
        seen = read_topic(broker.bootstrap_servers, "data")
        assert values_of(seen) == sorted(stopped.plain + stopped.committed)
    yield stopped


@pytest.fixture
def dump(java) -> Callable[..., str]:
    """Runs kafka-dump-log on files, which must not find anything to complain about."""

    def run(files: list[Path], *words: str) -> str:
        assert files
        done = java.ok(DUMP_LOG, "--files", ",".join(map(str, files)), *words)
        # The tool takes -1 for the offset before a segment's first one, whatever that is.
        starts = {f"  -1 is followed by {int(path.stem)}" for path in files if path.stem.isdigit()}
        heads = {f"Non-consecutive offsets in {path}" for path in files}
        # Clients of earlier tests live in the same JVM, and miss brokers that are gone.
        told = {line for line in done.err.splitlines() if " clientId=" not in line}
        assert told - starts - heads == set()
        assert "invalid bytes" not in done.out
        assert "isvalid: false" not in done.out
        return done.out

    return run


RECORD = re.compile(r"^\| offset: (\d+) .*? payload: (.*)$", re.MULTILINE)
# Where a slow machine holds Apache Kafka up for its session timeout, partitions are led anew: the
# epoch of a coordinator is not 0 on every machine.
MARKER = re.compile(
    r"^\| offset: (\d+) .*? endTxnMarker: (\w+) coordinatorEpoch: \d+", re.MULTILINE
)
ENTRY = re.compile(r"key: (\{.*\}) payload: (\{.*\}|<DELETE>)$", re.MULTILINE)


def entries(text: str, key_type: str) -> dict[str, list[Any]]:
    """Return by key the values that a decoder printed, in the log's order; None for a tombstone."""
    found: dict[str, list[Any]] = {}
    for key, payload in ENTRY.findall(text):
        parsed = json.loads(key)
        if parsed["type"] == key_type:
            name = " ".join(str(part) for part in parsed["data"].values())
            value = None if payload == "<DELETE>" else json.loads(payload)["data"]
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.invariant(72)
def test_every_record_of_every_segment_is_read_back(stopped, dump):
    segments = stopped.files("data", ".log")
    assert len(segments) > 4
    text = dump(segments, "--deep-iteration", "--print-data-log")
    records = dict(RECORD.findall(text))
    written = stopped.plain + stopped.committed + stopped.aborted
    assert Counter(records.values()) == Counter(written)
    markers = dict(MARKER.findall(text))
    decided = {"COMMIT": len(stopped.committed) // 4, "ABORT": len(stopped.aborted) // 4}
    assert Counter(markers.values()) == Counter(decided)
    # Nothing between them: every offset is a record's or a marker's.
    assert sorted(map(int, [*records, *markers])) == list(range(len(records) + len(markers)))
    codecs = set(re.findall(r"compresscodec: (\w+)", text))
    assert codecs == set(CODECS)
    starts = [int(path.stem) for path in segments]
    assert [int(n) for n in re.findall(r"Log starting offset: (\d+)", text)] == starts


def test_offset_and_time_indexes_pass_the_sanity_check_and_point_to_their_records(stopped, dump):
    indexes = stopped.files("data", ".index", ".timeindex")
    text = dump(indexes, "--index-sanity-check")
    # The active segment may have no entry yet.
    assert text.count("passed sanity check.") >= len(indexes) - 1
    assert len(re.findall(r"passed sanity check\.|is empty\.", text)) == len(indexes)
    assert dump(indexes, "--verify-index-only").count("Dumping") == len(indexes)
    # Printed, they hold entries: a check of nothing would find nothing.
    text = dump(stopped.files("data", ".index"))
    assert len(re.findall(r"^offset: \d+ position: \d+", text, re.MULTILINE)) > len(indexes)
    text = dump(stopped.files("data", ".timeindex"))
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", text, re.MULTILINE)) > 4


def test_the_index_of_aborted_transactions_has_each_of_them(stopped, dump):
    text = dump(stopped.files("data", ".txnindex"))
    pattern = r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
    aborted = [tuple(map(int, found)) for found in re.findall(pattern, text)]
    log = dump(stopped.files("data", ".log"), "--deep-iteration", "--print-data-log")
    ends = sorted(int(at) for at, kind in MARKER.findall(log) if kind == "ABORT")
    assert [last for _, _, last, _ in aborted] == ends
    values = {int(at): value for at, value in RECORD.findall(log)}
    writers = {producer_id: codec for codec, producer_id in producer_ids(stopped, dump).items()}
    # Kafka writes markers later than it answers: other producers' records lie between.
    found = [
        values[at]
        for producer_id, first, last, _ in aborted
        for at in range(first, last)
        if values.get(at, "").split(" ")[1:2] == [writers[producer_id]]
    ]
    assert Counter(found) == Counter(stopped.aborted)


def test_a_producer_snapshot_knows_every_producer_and_no_open_transaction(stopped, dump):
    *_, last = stopped.files("data", ".snapshot")
    pattern = r"producerId: (\d+) producerEpoch: (\d+) .*currentTxnFirstOffset: ([\w.]+)"
    producers = re.findall(pattern, dump([last]))
    ids = set(producer_ids(stopped, dump).values())
    assert ids <= {int(producer_id) for producer_id, _, _ in producers}
    assert {open_at for _, _, open_at in producers} == {"OptionalLong.empty"}


def transactions(stopped: Stopped, dump: Callable[..., str]) -> str:
    """The transaction log, decoded."""
    return dump(stopped.files("__transaction_state", ".log"), "--transaction-log-decoder")


def producer_ids(stopped: Stopped, dump: Callable[..., str]) -> dict[str, int]:
    """The producer id of the writer of each codec."""
    states = entries(transactions(stopped, dump), "0")
    return {codec: states[f"writer-{codec}"][-1]["producerId"] for codec in CODECS}


def test_the_transaction_log_tells_each_transaction_s_life(stopped, dump):
    text = transactions(stopped, dump)
    states = entries(text, "0")
    assert set(states) == {f"writer-{codec}" for codec in CODECS} | {"offsets"}
    statuses = [each["transactionStatus"] for each in states["offsets"]]
    assert statuses == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit",
                        "Ongoing", "PrepareAbort", "CompleteAbort"]  # fmt: skip
    topics = [
        [part["topic"] for part in each["transactionPartitions"] or []]
        for each in states["offsets"]
    ]
    assert [name for part in topics for name in part] == ["__consumer_offsets"] * 4
    for codec in CODECS:
        kinds = Counter(each["transactionStatus"] for each in states[f"writer-{codec}"])
        commits = len(stopped.committed) // 4 // len(CODECS)
        aborts = ROUNDS - commits
        assert kinds == {
            "Empty": 1, "Ongoing": ROUNDS, "PrepareCommit": commits, "CompleteCommit": commits,
            "PrepareAbort": aborts, "CompleteAbort": aborts,
        }  # fmt: skip


def test_the_offsets_log_tells_commits_groups_and_what_was_deleted(stopped, dump):
    text = dump(stopped.files("__consumer_offsets", ".log"), "--offsets-decoder")
    offsets, groups = entries(text, "1"), entries(text, "2")
    kept = offsets["kept data 0"][-1]
    # librdkafka's Python client sends the string's end too.
    assert (kept["offset"], kept["metadata"].rstrip("\0")) == (7, "a note")
    assert offsets["deleted data 0"][-1] is None
    assert [each["offset"] for each in offsets["in-transaction data 0"]] == [11, 12]
    assert [kind for _, kind in MARKER.findall(text)] == ["COMMIT", "ABORT"]
    member = next(each for each in groups["kept"] if each["members"])
    assert (member["protocolType"], member["protocol"]) == ("consumer", "range")
    assert member["members"][0]["clientId"] == "rdkafka"
    assert groups["kept"][-1]["members"] == []
    assert groups["deleted"][-1] is None


def test_the_timeline_gives_each_transaction_its_own_records_and_marker(stopped, tmp_path):
    stories = find_stories(stopped.data_dir)
    assert set(stories) == {f"writer-{codec}" for codec in CODECS} | {"offsets"}
    for codec in CODECS:
        starts = set()
        for number, story in enumerate(stories[f"writer-{codec}"]):
            (written,) = find_written(story, stopped.data_dir).values()
            assert sum(batch.record_count for batch in written.batches) == 4
            starts.add(written.batches[0].base_offset)
            kind = "COMMIT" if number % 3 != 0 else "ABORT"
            assert (written.marker.kind, story.records[-1].state.label) == (
                kind, f"Complete{kind.capitalize()}",
            )  # fmt: skip
            assert starts and max(starts) == written.batches[0].base_offset < written.marker.offset
        assert len(starts) == ROUNDS
    committed = [
        w.offsets
        for story in stories["offsets"]
        for w in find_written(story, stopped.data_dir).values()
    ]
    assert committed == [[("in-transaction", "data", 0, at)] for at in (11, 12)]
    output = tmp_path / "t.svg"
    assert main(["timeline", str(stopped.data_dir), "--transactional-id", "offsets",
                 "--output", str(output)]) == 0  # fmt: skip
    assert "data-0: 12" in output.read_text()
