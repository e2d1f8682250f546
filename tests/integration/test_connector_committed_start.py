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
from support.spark.connector import Pipe, error_of

from txnlog_spark.errors import CommittedOffsetsMoved, OptionError
from txnlog_spark.offsets import START_NOTE, from_json_value
from txnlog_spark.sink.committer import commit_streaming
from txnlog_spark.sink.settings import read_sink_settings
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


def source_lines(pipe: Pipe) -> list[dict[str, Any]]:
    """The source's line of every batch in the offset log."""
    files = [pipe.checkpoint / "offsets" / str(n) for n in pipe.logged("offsets")]
    return [json.loads(file.read_text().splitlines()[2]) for file in files]


def test_available_now_from_the_committed_offsets_copies_every_row_once(pipe: Pipe) -> None:
    committed = {"startingOffsets": "committedOrEarliest", "maxOffsetsPerTrigger": 15}
    pipe.feed(range(40))
    pipe.copy(committed)
    for first in (40, 60):
        shutil.rmtree(pipe.checkpoint)
        pipe.feed(range(first, first + 20))
        pipe.copy(committed)
        assert pipe.output_values("read_committed") == sorted(map(str, range(first + 20)))
        lines = source_lines(pipe)
        noted = [any(key.startswith(START_NOTE) for key in line) for line in lines]
        assert all(noted)
        assert len(noted) > 2


def test_a_first_batch_from_the_committed_offsets_is_replayed_empty(pipe: Pipe) -> None:
    committed = {"startingOffsets": "committed"}
    pipe.feed(range(30))
    pipe.copy()
    shutil.rmtree(pipe.checkpoint)
    line = pipe.copy_error(source=committed, sink={"kafka.group.id": None})
    assert "set it to" in line
    assert "the query reads with that group (it starts from its committed offsets)" in line
    assert (pipe.logged("offsets"), pipe.logged("commits")) == ([0], [])
    pipe.feed(range(30, 50))
    pipe.copy(committed)
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(50)))


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
    broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    query = Query(broker, tmp_path / "old", unique)
    produce_values(broker.bootstrap_servers, query.input, values(range(10)))
    other = open_transaction(query, ends_at=10)
    new = NewCheckpoint(query, tmp_path / "new", "committedOrEarliest")
    start = new.reader.initialOffset()
    assert from_json_value(start) == {(query.input, 0): 0}
    first = new.plan(0, start)
    other.commit_transaction(30)
    with pytest.raises(CommittedOffsetsMoved, match=f"{query.input}-0 from 0 to 10"):
        new.run(0, start, first)
    assert query.values("read_uncommitted") == ["never seen"]


@pytest.mark.parametrize("word", ["committedOrEarliest", "committedOrLatest"])
def test_a_first_start_and_a_later_one_with_the_same_word(both_pipe: Pipe, word: str) -> None:
    pipe = both_pipe
    start = {"startingOffsets": word}
    pipe.feed(range(10))
    pipe.copy(start)
    pipe.feed(range(10, 20))
    pipe.copy(start)
    shutil.rmtree(pipe.checkpoint)
    pipe.feed(range(20, 30))
    pipe.copy(start)
    first = 0 if word == "committedOrEarliest" else 10
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(first, 30)))


def test_a_group_that_has_no_committed_offset_is_refused_in_streams_and_batches(
    both_pipe: Pipe,
) -> None:
    pipe = both_pipe
    pipe.feed(range(10))
    pipe.copy()
    shutil.rmtree(pipe.checkpoint)
    misspelt = {"kafka.group.id": f"{pipe.group}x", "startingOffsets": "committed"}
    line = pipe.copy_error(source=misspelt, sink={"kafka.group.id": f"{pipe.group}x"})
    for part in ("NO_COMMITTED_OFFSETS", f"{pipe.group}x", pipe.input, "committedOrEarliest"):
        assert part in line
    assert "NO_COMMITTED_OFFSETS" in error_of(lambda: pipe.read(**misspelt).count())
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(10)))
    assert pipe.read(**misspelt | {"startingOffsets": "committedOrEarliest"}).count() == 10
    assert pipe.read(**misspelt | {"startingOffsets": "committedOrLatest"}).count() == 0


def test_a_batch_read_starts_from_the_committed_offsets(pipe: Pipe) -> None:
    pipe.feed(range(10))
    pipe.copy()
    pipe.feed(range(10, 17))
    committed = {"kafka.group.id": pipe.group, "startingOffsets": "committed"}
    assert pipe.read(**committed).count() == 7
