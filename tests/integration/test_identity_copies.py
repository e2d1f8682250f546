"""A checkpoint that was copied, moved, restored, or is used for another topic, group or cluster.

Two queries must not take each other's progress for their own, and must not fence each other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQuery
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.spark.connector import Pipe, error_of
from support.spark.spark_copy import CopyQuery


@dataclass
class Job:
    """A query at one place of its checkpoint, with the options of its source and sink."""

    pipe: Pipe
    checkpoint: Path
    topic: str
    group: str | None
    sink: dict[str, Any] = field(default_factory=dict)

    def run(self, **source: Any) -> StreamingQuery:
        """Run the query to the end of its input."""
        return self.pipe.copy(
            {"kafka.group.id": self.group} | source,
            {
                "checkpointLocation": str(self.checkpoint),
                "topic": self.topic,
                "kafka.group.id": self.group,
            }
            | self.sink,
        )

    def error(self) -> str:
        """Return the error with which a run is refused."""
        return error_of(self.run)

    def written(self) -> list[str]:
        """Return the values in the output, aborted values included."""
        return values_of(read_topic(self.pipe.bootstrap, self.topic, isolation="read_uncommitted"))


class Copies:
    """The query of a team, which has written ten rows, and what is made of its checkpoint."""

    def __init__(self, pipe: Pipe, unique: Callable[[str], str]) -> None:
        self.pipe = pipe
        self.unique = unique
        self.prod = Job(pipe, pipe.checkpoint, pipe.output, pipe.group)
        self.fed = 0

    def feed(self, count: int = 5) -> None:
        """More rows of input."""
        self.pipe.feed([f"{number:03}" for number in range(self.fed, self.fed + count)])
        self.fed += count

    def at(self, name: str, **changes: Any) -> Job:
        """A job like the team's at another place."""
        of = self.prod
        given = {"topic": of.topic, "group": of.group, "sink": of.sink} | changes
        return Job(self.pipe, self.pipe.checkpoint.with_name(name), **given)

    def copied(self, **changes: Any) -> Job:
        """The same as `cp -r` makes it."""
        job = self.at("copy", **changes)
        shutil.copytree(self.prod.checkpoint, job.checkpoint)
        return job

    def moved(self, **changes: Any) -> Job:
        """The same as `mv` makes it."""
        job = self.at("moved", **changes)
        self.prod.checkpoint.rename(job.checkpoint)
        return job

    def another_topic(self) -> str:
        """A new output."""
        return create_topic(self.pipe.bootstrap, self.unique("other"), 1)

    def rows(self, first: int = 0) -> list[str]:
        """Return the rows of the input, from `first` on."""
        return [f"{number:03}" for number in range(first, self.fed)]


@pytest.fixture
def copies(both_pipe, unique: Callable[[str], str]) -> Copies:
    """Return the copies on both brokers, after several batches of the query."""
    made = Copies(both_pipe, unique)
    made.feed(10)
    made.prod.run(maxOffsetsPerTrigger=5)
    return made


@pytest.mark.parametrize("has_group", [True, False])
def test_a_copy_with_id_group_and_topic_of_its_own_takes_nothing_from_the_original(
    both_pipe, unique: Callable[[str], str], has_group: bool
) -> None:
    copies = Copies(both_pipe, unique)
    prod = copies.prod
    if not has_group:
        prod.group, prod.sink = None, {"kafka.transactional.id": unique("prod")}
    copies.feed(10)
    prod.run()
    group, sink = (
        (unique("blue"), {}) if has_group else (None, {"kafka.transactional.id": unique("b")})
    )
    blue = copies.copied(topic=copies.another_topic(), group=group, sink=sink)
    copies.feed()
    blue.run()
    prod.run()
    copies.feed()
    prod.run()
    blue.run()
    prod.run()
    assert prod.written() == copies.rows()
    assert blue.written() == copies.rows(10), "from where it was copied"


def arrived(live: StreamingQuery, copies: Copies) -> None:
    """Return when the running query has written all of the input, each row once."""
    live.processAllAvailable()
    assert copies.prod.written() == copies.rows()


def test_a_copy_in_another_application_does_not_fence_the_original(
    copies: Copies, tmp_path: Path
) -> None:
    copy = CopyQuery(tmp_path / "blue", copies.pipe.bootstrap, copies.unique("blue"))
    copy.source, before = copies.pipe.input, copies.fed
    shutil.copytree(copies.prod.checkpoint, copy.checkpoint)
    rows = copies.pipe.stream().select("key", "value")
    live = copies.pipe.write(rows).trigger(processingTime="100 milliseconds").start()
    try:
        copies.feed()
        arrived(live, copies)
        ended = copy.run()
        assert ended.code == 0, ended.stderr[-3000:]
        copies.feed()
        arrived(live, copies)
    finally:
        live.stop()
    found = copy.output("read_uncommitted")
    assert set(found.values()) == {1}
    assert len(found) == copies.fed - 5 - before


def forget_planned(copy: Job, text: str) -> None:
    """Delete the planned batch of the copy, as the refusal advises."""
    planned = max((copy.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    digest = planned.with_name(f".{planned.name}.crc")
    assert f"delete {planned} and {digest.name} beside it" in text
    planned.unlink()
    digest.unlink()


def test_a_copy_that_nothing_tells_from_the_original_goes_on_with_a_group_and_a_topic_of_its_own(
    copies: Copies,
) -> None:
    copies.feed()
    copy = copies.copied()
    assert "Nothing was written, and no driver was fenced" in copy.error()
    copies.prod.run()
    text = copy.error()
    assert "CheckpointCopied" in text
    assert copies.prod.written() == copies.rows()
    assert "give the copy its own kafka.group.id" in text
    assert "and its own topic" in text
    forget_planned(copy, text)
    copy.group, copy.topic = copies.unique("own"), copies.another_topic()
    for job in (copy, copies.prod):
        job.run()
        copies.feed()
    copy.run()
    copies.prod.run()
    assert copies.prod.written() == copies.rows()
    assert copy.written() == copies.rows(10)


@pytest.mark.live
def test_a_moved_checkpoint_goes_on(copies: Copies) -> None:
    copies.pipe.lose("commits", max(copies.pipe.logged("commits")))
    copies.feed()
    moved = copies.moved()
    moved.run()
    copies.feed()
    moved.run()
    assert moved.written() == copies.rows()


def test_a_moved_checkpoint_with_another_topic_is_refused_and_both_ways_on_hold(
    copies: Copies,
) -> None:
    """Nothing tells it from a copy whose original is on another machine."""
    first, other = copies.prod.topic, copies.another_topic()
    moved = copies.moved(topic=other)
    copies.feed()
    text = moved.error()
    assert "CheckpointCopied" in text
    assert "; you may change the topic after the next batch" in text
    assert f"If you copied it, delete {moved.checkpoint}/txnlog" in text
    moved.topic = first
    moved.run()
    assert moved.written() == copies.rows()
    moved.topic = other
    copies.feed()
    moved.run()
    assert moved.written() == copies.rows(15)


def test_a_backup_restored_at_the_same_place_doubles_nothing(copies: Copies) -> None:
    prod = copies.prod
    backup = copies.at("backup").checkpoint
    shutil.copytree(prod.checkpoint, backup)
    copies.feed()
    prod.run()
    shutil.rmtree(prod.checkpoint)
    backup.rename(prod.checkpoint)
    copies.feed()
    prod.run()
    assert prod.written() == copies.rows()


def test_a_batch_that_is_in_the_topic_of_before_is_not_skipped_for_another(copies: Copies) -> None:
    prod, first = copies.prod, copies.prod.topic
    copies.pipe.lose("commits", max(copies.pipe.logged("commits")))
    prod.topic = other = copies.another_topic()
    assert "Start the query with topic" in prod.error()
    assert prod.written() == []
    prod.topic = first
    prod.run()
    assert prod.written() == copies.rows()
    prod.topic = other
    copies.feed()
    prod.run()
    assert prod.written() == copies.rows(10)


@pytest.mark.kafka
def test_another_cluster_is_refused_also_for_a_copy_and_the_query_goes_on_when_it_is_set_back(
    copies: Copies, shared_brokers: Callable[[str], Any]
) -> None:
    kinds = [shared_brokers(name).bootstrap_servers for name in ("broker_sim", "apache_kafka")]
    (elsewhere,) = {*kinds} - {copies.pipe.bootstrap}
    copies.feed()
    copy = copies.copied(topic=copies.another_topic(), group=None)
    copy.sink = {"kafka.transactional.id": copies.unique("own")}
    copies.prod.group = None
    for job in (copies.prod, copy):
        there = {"kafka.bootstrap.servers": elsewhere}
        create_topic(elsewhere, job.topic, 1)
        at = Job(job.pipe, job.checkpoint, job.topic, job.group, job.sink | there)
        text = at.error()
        assert "WrongCluster" in text
        assert "Set kafka.bootstrap.servers back" in text
        assert values_of(read_topic(elsewhere, job.topic, isolation="read_uncommitted")) == []
    copies.prod.group = copies.pipe.group
    for job in (copy, copies.prod):
        job.run()
    assert copies.prod.written() == copies.rows()
    assert copy.written() == copies.rows(10)
