"""First start of a query whose group has committed offsets, and the offsets a group accepts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import committed_offsets, create_topic, produce_values
from support.spark.connector import PARTITIONS, Pipe, finish


def texts(numbers: range) -> list[str]:
    return sorted(map(str, numbers))


def test_an_empty_checkpoint_does_not_double_what_the_group_has_been_given(
    both_pipe: Pipe,
) -> None:
    pipe = both_pipe
    pipe.feed(range(30))
    pipe.copy()
    pipe.feed(range(30, 33))
    for start in ("earliest", "latest"):
        shutil.rmtree(pipe.checkpoint)
        text = pipe.copy_error(source={"startingOffsets": start})
        assert text.startswith(
            "txnlog_spark.errors.GroupHasOffsets: \n[TXNLOG_PROGRESS.GROUP_HAS_OFFSETS]"
        )
        assert "startingOffsets=committed" in text
    assert pipe.output_values("read_uncommitted") == texts(range(30))
    shutil.rmtree(pipe.checkpoint)  # as the error says: a new, empty checkpoint and committed
    committed = {"startingOffsets": "committed"}
    pipe.copy(source=committed)
    pipe.copy(source=committed)
    assert pipe.output_values("read_uncommitted") == texts(range(33))


def test_a_topic_that_was_left_out_for_a_while_is_not_read_again_without_a_word(
    both_pipe: Pipe,
) -> None:
    pipe = both_pipe
    other = create_topic(pipe.bootstrap, f"{pipe.input}-b", 1)
    pipe.feed(range(5))
    pipe.feed(range(5, 10), topic=other)
    both = {"subscribe": f"{pipe.input},{other}", "startingOffsets": "committedOrEarliest"}
    one = both | {"subscribe": pipe.input}
    pipe.copy(source=both)
    shutil.rmtree(pipe.checkpoint)
    pipe.copy(source=one)
    pipe.feed(range(10, 13), topic=other)
    text = pipe.copy_error(source=both)
    assert "[TXNLOG_PROGRESS.GROUP_HAS_OFFSETS]" in text
    assert f"{other}-0 at 5" in text
    assert pipe.output_values("read_uncommitted") == texts(range(10))
    shutil.rmtree(pipe.checkpoint)  # as the error says
    pipe.copy(source=both | {"startingOffsets": "committed"})
    pipe.copy(source=both)
    assert pipe.output_values("read_uncommitted") == texts(range(13))


def test_a_group_that_is_to_be_moved_is_moved_when_that_is_said(pipe: Pipe) -> None:
    pipe.feed(range(10))
    pipe.copy()
    shutil.rmtree(pipe.checkpoint)
    pipe.copy(sink={"overwriteGroupOffsets": "true"})
    assert pipe.output_values("read_uncommitted") == sorted(texts(range(10)) * 2)


def test_a_group_that_nobody_has_moved_yet_is_no_obstacle(pipe: Pipe) -> None:
    other = create_topic(pipe.bootstrap, pipe.output + "-other", 1)
    pipe.feed(range(5))
    pipe.copy(sink={"topic": other, "kafka.group.id": None}, source={"kafka.group.id": None})
    shutil.rmtree(pipe.checkpoint)
    pipe.copy()
    assert pipe.output_values() == texts(range(5))


# ------------------------------------------------------------------ two clusters


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimBroker]:
    """A second cluster."""
    with SimBroker(tmp_path_factory.mktemp("far")) as broker:
        yield broker


def test_a_group_on_another_cluster_than_the_source_is_refused_and_the_advice_holds(
    both_pipe: Pipe, far: SimBroker
) -> None:
    pipe = both_pipe
    topic = create_topic(far.bootstrap_servers, pipe.input, 3)
    produce_values(far.bootstrap_servers, topic, texts(range(20)))
    source = {"kafka.bootstrap.servers": far.bootstrap_servers}
    text = pipe.copy_error(source=source)
    assert "[TXNLOG_WRONG_CLUSTER]" in text
    assert "works on one cluster only" in text
    assert pipe.output_values("read_uncommitted") == []
    alone = {"kafka.group.id": None}
    for _ in range(2):  # as the error says: without kafka.group.id on both sides
        pipe.copy(source=source | alone, sink=alone)
    pipe.lose("commits", max(pipe.logged("commits")))
    pipe.copy(source=source | alone, sink=alone)
    assert pipe.output_values("read_uncommitted") == texts(range(20))


def test_a_union_of_two_clusters_is_refused_with_a_group_and_exact_without(
    pipe: Pipe, far: SimBroker
) -> None:
    topic = create_topic(far.bootstrap_servers, pipe.input + "-far", 1)
    produce_values(far.bootstrap_servers, topic, texts(range(5)))
    pipe.feed(range(5, 9))

    def union(**options: object):
        there = {"kafka.bootstrap.servers": far.bootstrap_servers, "subscribe": topic}
        near = pipe.stream(**options).select("key", "value")
        return near.union(pipe.stream(**(there | options)).select("key", "value"))

    def run(sink: dict, **options: object) -> None:
        finish(pipe.write(union(**options), **sink).trigger(availableNow=True).start())

    with pytest.raises(Exception, match="TXNLOG_WRONG_CLUSTER"):
        run({})
    alone = {"kafka.group.id": None}
    run(alone, **alone)
    run(alone, **alone)
    assert pipe.output_values("read_uncommitted") == texts(range(9))


def test_two_readers_of_one_partition_are_refused_with_a_group_and_exact_without(
    pipe: Pipe,
) -> None:
    pipe.feed(range(6))

    def run(**options: object) -> None:
        one = pipe.stream(**options).select("key", "value")
        slower = pipe.stream(**options, maxOffsetsPerTrigger=2).select("key", "value")
        finish(pipe.write(one.union(slower), **options).trigger(availableNow=True).start())

    with pytest.raises(Exception, match=r"two sources of the query read .*-\d up to different"):
        run()
    run(**{"kafka.group.id": None})
    assert pipe.output_values("read_uncommitted") == sorted(texts(range(6)) * 2)


def test_rows_of_one_reader_used_twice_are_committed_for_the_group(pipe: Pipe) -> None:
    pipe.feed(range(6))
    rows = pipe.stream().select("key", "value")
    for _ in range(2):
        finish(pipe.write(rows.union(rows)).trigger(availableNow=True).start())
    assert pipe.output_values("read_uncommitted") == sorted(texts(range(6)) * 2)
    committed = committed_offsets(pipe.bootstrap, pipe.group, pipe.input, PARTITIONS)
    assert sum(committed.values()) == 6


# ------------------------------------------------------------------ sources of other kinds


def test_a_file_source_whose_batch_is_planned_anew_loses_no_row(
    both_pipe: Pipe, tmp_path: Path
) -> None:
    """`{"logOffset":1}` is whatever files are there: the batch is refused, not skipped."""
    pipe = both_pipe
    folder = tmp_path / "files"
    folder.mkdir()

    def run() -> None:
        rows = pipe.spark.readStream.format("text").load(str(folder))
        alone = {"kafka.group.id": None}
        finish(pipe.write(rows, **alone).trigger(availableNow=True).start())

    for name in ("a", "b"):
        (folder / name).write_text(f"{name}1\n{name}2")
        run()
    last = max(pipe.logged("commits"))
    kept = pipe.checkpoint.with_name("kept")
    shutil.copytree(pipe.checkpoint, kept)
    for log in ("offsets", "commits", "sources/0"):
        pipe.lose(log, last)
    (folder / "c").write_text("c1\nc2")
    with pytest.raises(Exception, match=r"TXNLOG_PROGRESS\.BATCH_REPLANNED"):
        run()
    written = ["a1", "a2", "b1", "b2"]
    assert pipe.output_values("read_uncommitted") == written
    shutil.rmtree(pipe.checkpoint / "offsets")  # as the error says: restore offsets and sources
    shutil.rmtree(pipe.checkpoint / "sources")
    for log in ("offsets", "sources"):
        shutil.copytree(kept / log, pipe.checkpoint / log)
    run()
    assert pipe.output_values("read_uncommitted") == [*written, "c1", "c2"]
