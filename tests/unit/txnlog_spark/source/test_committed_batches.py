"""Tasks of a committed batch: no tasks if the rows are not needed again."""

from __future__ import annotations

import json

import pytest
from support.query.source_cluster import ALL, P0, P1, Cluster, reader, taken

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import NoCommittedOffsets
from txnlog_spark.group_note import GroupNote, format_note, note_of
from txnlog_spark.offsets import plain_offset, positions_digest, source_note_of

OPTIONS = {"kafka.group.id": "g"}


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.cluster_id = "A"
    return cluster


def planned(cluster: Cluster, first: int, second: int) -> tuple[dict, dict]:
    """Return the offsets of a new query's batch, from these offsets to the ends of the cluster."""
    source = reader(**OPTIONS)
    ends, cluster.end = cluster.end, {P0: first, P1: second}
    start = json.loads(json.dumps(source.latestOffset(source.initialOffset(), ALL)))
    cluster.end = ends
    end = source.latestOffset(start, ALL)
    return start, end


def commit(cluster: Cluster, end: dict, *, rows_are_needed: bool = False, **at: int) -> None:
    """Commit the ends of the batch, with the note beside them, as its transaction does."""
    cluster.committed = {P0: at.get("first", 100), P1: at.get("second", 50)}
    name = source_note_of(end)
    assert name is not None
    assert name.source_id
    source_id = "" if rows_are_needed else name.source_id
    note = GroupNote("q", 1, positions_digest(cluster.committed), source_id)
    cluster.group_notes = [note]


def test_a_note_is_read_as_it_was_written_and_texts_of_others_are_none() -> None:
    note = GroupNote("q", 7, "p", "s")
    assert note_of(format_note(note)) == note
    for text in ("", "x", "[]", "7", '{"v":1}', format_note(note).replace('"v":1', '"v":2')):
        assert note_of(text) is None


def test_a_replayed_batch_that_is_committed_has_no_tasks_though_its_input_is_gone(
    cluster: Cluster,
) -> None:
    """Killed between the brokers' commit and Spark's: `commits/N` is missing."""
    start, end = planned(cluster, 60, 20)
    assert taken(reader(**OPTIONS), start, end) == {P0: (60, 100), P1: (20, 50)}
    commit(cluster, end)
    cluster.earliest = {P0: 100, P1: 50}
    assert reader(**OPTIONS).partitions(start, end) == []


def test_a_lost_batch_is_planned_with_its_ends_and_without_tasks_whatever_the_limit(
    cluster: Cluster,
) -> None:
    start, end = planned(cluster, 60, 20)
    commit(cluster, end)
    cluster.end = {P0: 130, P1: 70}
    source = reader(**OPTIONS, maxOffsetsPerTrigger="10")
    found = source.latestOffset(start, source.getDefaultReadLimit())
    assert plain_offset(found) == plain_offset(end)
    note = source_note_of(found)
    assert note is not None
    assert note.group_start == positions_digest(cluster.committed)
    assert source.partitions(start, found) == []
    following = source.latestOffset(found, source.getDefaultReadLimit())
    tasks = source.partitions(found, following)
    assert sum(r.end_offset - r.start_offset for task in tasks for r in task.ranges) == 10


@pytest.mark.parametrize(
    "case", ["state", "no note", "another source", "moved since", "not committed", "in part"]
)
def test_rows_are_read_where_they_are_needed_or_their_commit_is_not_certain(
    cluster: Cluster, case: str
) -> None:
    start, end = planned(cluster, 60, 20)
    commit(cluster, end, rows_are_needed=case == "state")
    if case == "no note":
        cluster.group_notes = []
    elif case == "another source":
        cluster.group_notes = [cluster.group_notes[0]._replace(source_id="other")]
    elif case == "moved since":
        cluster.committed[P1] = 51
    elif case == "not committed":
        commit(cluster, end, first=60, second=20)
    elif case == "in part":
        commit(cluster, end, first=100, second=20)
    assert taken(reader(**OPTIONS), start, end) == {P0: (60, 100), P1: (20, 50)}


def test_the_second_batch_of_a_run_is_not_asked_for(cluster: Cluster) -> None:
    """The second batch reads rows that are newer than all committed offsets."""
    start, end = planned(cluster, 60, 20)
    source = reader(**OPTIONS)
    source.latestOffset(start, ALL)
    commit(cluster, end)
    assert taken(source, start, end) == {P0: (60, 100), P1: (20, 50)}


def test_a_start_that_names_offsets_is_kept_in_an_empty_batch_if_there_is_a_group(
    cluster: Cluster,
) -> None:
    """The empty batch shows the sink that the query starts at the group's offsets."""
    named = '{"t":{"0":60,"1":20}}'
    source = reader(**OPTIONS, startingOffsets=named)
    start = source.initialOffset()
    first = source.latestOffset(start, ALL)
    assert first == start
    assert source.partitions(start, first) == []
    second = source.latestOffset(first, ALL)
    assert taken(source, first, second) == {P0: (60, 100), P1: (20, 50)}
    alone = reader(startingOffsets=named)
    start = alone.initialOffset()
    assert taken(alone, start, alone.latestOffset(start, ALL)) == {P0: (60, 100), P1: (20, 50)}


@pytest.mark.parametrize("word", ["committed", "committedOrEarliest", "committedOrLatest"])
def test_a_start_from_a_group_that_lost_the_offset_of_an_idle_partition_is_refused(
    cluster: Cluster, word: str
) -> None:
    """The broker expires each offset by its own age; the query wrote the partition's rows."""
    cluster.group_notes = [GroupNote("q", 7, positions_digest({P0: 100, P1: 50}), "")]
    cluster.committed = {P0: 100}
    with pytest.raises(NoCommittedOffsets, match=rf"in 1 of the 2 partitions .*\({P1}\)") as caught:
        reader(**OPTIONS, startingOffsets=word).initialOffset()
    advised = json.loads(caught.value.text.rpartition(": ")[2])
    assert advised == {P0.topic: {"0": 100, "1": -2}}
    named = reader(**OPTIONS, startingOffsets=json.dumps(advised)).initialOffset()
    assert plain_offset(named) == {P0.topic: {"0": 100, "1": 0}}


@pytest.mark.parametrize("case", ["new partition", "another topic is gone", "foreign group"])
def test_a_start_from_a_group_reads_a_partition_that_is_new_from_its_beginning(
    cluster: Cluster, case: str
) -> None:
    known = {P0: 100}
    if case == "another topic is gone":
        known[TopicPartition("former", 0)] = 7
    cluster.committed = dict(known)
    cluster.group_notes = [GroupNote("q", 7, positions_digest(known), "")]
    if case == "foreign group":
        cluster.group_notes = []
    found = reader(**OPTIONS, startingOffsets="committed").initialOffset()
    assert plain_offset(found) == {P0.topic: {"0": 100, "1": 0}}
