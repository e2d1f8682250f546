"""A new checkpoint that starts from the group's committed offsets while other clients may live."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.clients.librdkafka import committed_offsets, consumer, produce_values, transactional
from support.query.checkpoint_query import Query
from support.spark.connector import Pipe

from txnlog_spark.errors import CommittedOffsetsMoved, NoCommittedOffsets, OptionError
from txnlog_spark.offsets import START_NOTE, from_json_value
from txnlog_spark.sink.committer import commit_streaming
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.source.batch import TxnLogBatchReader
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader

pytestmark = pytest.mark.live


def values(numbers: range) -> list[str]:
    return [f"v{n:02}" for n in numbers]


class NewCheckpoint(Query):
    """The same query on a new checkpoint, with its reader; batches are logged as Spark does it."""

    def __init__(self, old: Query, folder: Path, word: str = "committed", **options: str) -> None:
        self.__dict__ |= old.__dict__
        self.checkpoint = folder
        (folder / "offsets").mkdir(parents=True)
        self.query_id = f"{old.query_id}-{folder.name}"
        (folder / "metadata").write_text(json.dumps({"id": self.query_id}))
        common = {"kafka.bootstrap.servers": old.bootstrap, "kafka.group.id": old.group}
        writer = common | {"checkpointLocation": str(folder)} | options
        self.settings = read_sink_settings(writer, streaming=True)
        reader = common | {"subscribe": old.input, "startingOffsets": word}
        self.reader = TxnLogStreamReader(read_source_settings(reader, streaming=True))

    def plan(self, batch_id: int, start: dict[str, Any]) -> dict[str, Any]:
        """latestOffset, and its answer logged."""
        end = json.loads(json.dumps(self.reader.latestOffset(start, ReadAllAvailable())))
        log = self.checkpoint / "offsets" / str(batch_id)
        log.write_text(f"v1\n{{}}\n{json.dumps(end)}")
        return end

    def run(self, batch_id: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Stage what the reader's tasks would read, and commit."""
        ranges = [r for share in self.reader.partitions(start, end) for r in share.ranges]
        rows = [v for r in ranges for v in values(range(r.start_offset, r.end_offset))]
        commit_streaming(self.settings, [self.stage(batch_id, rows)], batch_id, "run-new")


@pytest.fixture
def old(broker, tmp_path: Path, unique: Callable[[str], str]) -> Query:
    """A query over 20 records that has committed the first ten."""
    query = Query(broker, tmp_path / "old", unique)
    produce_values(broker.bootstrap_servers, query.input, values(range(20)))
    query.commit(0, values(range(10)))
    query.log(1, 20)
    return query


@pytest.fixture
def new_group(broker, tmp_path: Path, unique: Callable[[str], str]) -> Query:
    """A query over ten records that has committed no batch."""
    query = Query(broker, tmp_path / "old", unique)
    produce_values(broker.bootstrap_servers, query.input, values(range(10)))
    return query


def group_offset(query: Query) -> int:
    return committed_offsets(query.bootstrap, query.group, query.input, 1)[0]


def go_on(query: NewCheckpoint) -> None:
    """Two batches: the empty one that keeps the start, and the rest."""
    start = query.reader.initialOffset()
    first = query.plan(0, start)
    query.run(0, start, first)
    query.run(1, first, query.plan(1, first))


@pytest.mark.parametrize("old_commits", ["before latestOffset", "after latestOffset"])
def test_a_batch_that_the_old_driver_commits_after_the_start_was_read_is_not_written_again(
    old: Query, tmp_path: Path, old_commits: str
) -> None:
    staged = old.stage(1, values(range(10, 20)), "run-1")
    new = NewCheckpoint(old, tmp_path / "new")
    start = new.reader.initialOffset()
    if old_commits == "before latestOffset":
        commit_streaming(old.settings, [staged], 1, "run-1")
        first = new.plan(0, start)
    else:
        first = new.plan(0, start)
        commit_streaming(old.settings, [staged], 1, "run-1")
    for _restart in range(2):
        with pytest.raises(CommittedOffsetsMoved, match=f"{old.input}-0 from 10 to 20"):
            new.run(0, start, first)
    assert old.values("read_uncommitted") == values(range(20))
    assert group_offset(old) == 20
    produce_values(old.bootstrap, old.input, values(range(20, 25)))
    go_on(NewCheckpoint(old, tmp_path / "newer"))
    assert old.values() == values(range(25))


def test_of_an_old_driver_and_a_new_checkpoint_each_row_comes_from_one(
    old: Query, tmp_path: Path
) -> None:
    """The old driver's batch begins where the group is, as the new one's does."""
    staged = old.stage(1, values(range(10, 20)), "run-1")
    new = NewCheckpoint(old, tmp_path / "new")
    start = new.reader.initialOffset()
    first = new.plan(0, start)
    new.run(0, start, first)
    commit_streaming(old.settings, [staged], 1, "run-1")
    with pytest.raises(CommittedOffsetsMoved, match=f"{old.input}-0 from 10 to 20"):
        new.run(1, first, new.plan(1, first))
    assert old.values("read_uncommitted") == values(range(20))
    assert group_offset(old) == 20


def test_the_old_checkpoint_does_not_go_on_after_a_new_one_did(old: Query, tmp_path: Path) -> None:
    go_on(NewCheckpoint(old, tmp_path / "new"))
    for run in ("run-2", "run-3"):
        with pytest.raises(CommittedOffsetsMoved, match=f"{old.input}-0 from 10 to 20"):
            commit_streaming(old.settings, [old.stage(1, values(range(10, 20)))], 1, run)
    assert old.values("read_uncommitted") == values(range(20))
    assert group_offset(old) == 20


@pytest.mark.parametrize("group", ["another", None])
def test_a_writer_of_another_group_is_refused_before_it_writes(
    old: Query, tmp_path: Path, group: str | None
) -> None:
    new = NewCheckpoint(old, tmp_path / "new")
    options = {"kafka.bootstrap.servers": old.bootstrap, "checkpointLocation": str(new.checkpoint)}
    if group is not None:
        options["kafka.group.id"] = group
    new.settings = read_sink_settings(options, streaming=True)
    start = new.reader.initialOffset()
    with pytest.raises(OptionError, match=f"set it to '{old.group}' on the writer as well"):
        new.run(0, start, new.plan(0, start))
    assert old.values("read_uncommitted") == values(range(10))


def test_queries_and_batch_reads_in_spark_start_from_the_committed_offsets(pipe: Pipe) -> None:
    committed = {"startingOffsets": "committed", "maxOffsetsPerTrigger": 15}
    pipe.feed(range(20))
    pipe.copy({"startingOffsets": "committedOrEarliest"})
    assert all(map(is_noted, pipe.source_lines()))
    shutil.rmtree(pipe.checkpoint)
    line = pipe.copy_error(source=committed, sink={"kafka.group.id": None})
    assert "set it to" in line
    assert "the query reads with that group (it starts from its committed offsets)" in line
    assert (pipe.logged("offsets"), pipe.logged("commits")) == ([0], [])
    pipe.feed(range(20, 40))
    pipe.copy(committed)  # the first batch is replayed, and empty
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(40)))
    lines = pipe.source_lines()
    assert all(map(is_noted, lines))
    assert len(lines) > 2
    pipe.feed(range(40, 47))
    group = {"kafka.group.id": pipe.group, "startingOffsets": "committed"}
    assert pipe.read(**group).count() == 7


def is_noted(line: dict[str, Any]) -> bool:
    """Return True if a source's line has the start of its query."""
    return any(key.startswith(START_NOTE) for key in line)


def open_transaction(query: Query, *, ends_at: int) -> Producer:
    """A driver of the same transactional id that died with a batch open, offsets and all."""
    made = transactional(query.bootstrap, f"txnlog-{query.group}")
    made.begin_transaction()
    made.produce(query.output, b"never seen")
    member = consumer(query.bootstrap, query.group)
    offsets = [TopicPartition(query.input, 0, ends_at)]
    made.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 30)
    member.close()
    assert made.flush(30) == 0
    return made


@pytest.mark.parametrize("word", ["committed", "committedOrEarliest", "committedOrLatest"])
def test_a_lost_checkpoint_goes_on_though_the_dead_drivers_transaction_is_open(
    old: Query, tmp_path: Path, word: str
) -> None:
    dead = open_transaction(old, ends_at=20)
    go_on(NewCheckpoint(old, tmp_path / "new", word))
    assert old.values() == values(range(20))
    assert group_offset(old) == 20
    with pytest.raises(KafkaException):
        dead.commit_transaction(30)


def test_a_first_start_beside_a_driver_that_commits_first_is_refused(
    new_group: Query, tmp_path: Path
) -> None:
    query = new_group
    other = open_transaction(query, ends_at=10)
    new = NewCheckpoint(query, tmp_path / "new", "committedOrEarliest")
    start = new.reader.initialOffset()
    assert from_json_value(start) == {(query.input, 0): 0}
    first = new.plan(0, start)
    other.commit_transaction(30)
    with pytest.raises(CommittedOffsetsMoved, match=f"{query.input}-0 from 0 to 10"):
        new.run(0, start, first)
    assert query.values("read_uncommitted") == ["never seen"]


@pytest.mark.parametrize(("word", "first"), [("committedOrEarliest", 0), ("committedOrLatest", 10)])
def test_a_first_start_and_a_later_one_with_the_same_word(
    new_group: Query, tmp_path: Path, word: str, first: int
) -> None:
    query = new_group
    new = NewCheckpoint(query, tmp_path / "new", word)
    start = new.reader.initialOffset()
    begun = new.plan(0, start)
    new.run(0, start, begun)
    produce_values(query.bootstrap, query.input, values(range(10, 20)))
    new.run(1, begun, new.plan(1, begun))
    produce_values(query.bootstrap, query.input, values(range(20, 30)))
    go_on(NewCheckpoint(query, tmp_path / "newer", word))
    assert query.values("read_uncommitted") == values(range(first, 30))


def test_a_group_that_has_no_committed_offset_is_refused_in_streams_and_batches(
    new_group: Query, tmp_path: Path
) -> None:
    query = new_group
    with pytest.raises(NoCommittedOffsets) as caught:
        NewCheckpoint(query, tmp_path / "new").reader.initialOffset()
    for part in (query.group, query.input, "committedOrEarliest"):
        assert part in str(caught.value)

    def rows(word: str) -> int:
        options = {"kafka.bootstrap.servers": query.bootstrap, "subscribe": query.input}
        options |= {"kafka.group.id": query.group, "startingOffsets": word}
        reader = TxnLogBatchReader(read_source_settings(options, streaming=False))
        return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))

    with pytest.raises(NoCommittedOffsets):
        rows("committed")
    assert (rows("committedOrEarliest"), rows("committedOrLatest")) == (10, 0)
