"""The notes beside the offsets that the stream reader gives to Spark."""

from __future__ import annotations

import json

import pytest
from support.query.source_cluster import ALL, P0, P1, Cluster, at, noted, reader, taken

from txnlog_spark.errors import DataLoss, OptionError, WrongCluster
from txnlog_spark.offsets import (
    SourceNote,
    noted_topic_ids,
    plain_offset,
    positions_digest,
    source_note_of,
)


def text(offset: object) -> str:
    """Return the text that Spark compares."""
    return json.dumps(offset)


@pytest.mark.parametrize("word", ["earliest", "latest", "committed"])
@pytest.mark.parametrize("available_now", [False, True])
def test_every_offset_names_the_cluster_and_the_group_and_equal_ones_are_equal_text(
    cluster: Cluster, word: str, available_now: bool
) -> None:
    cluster.cluster_id, cluster.committed = "A", {P0: 70, P1: 20}
    source = reader(**{"kafka.group.id": "g", "startingOffsets": word})
    if available_now:
        source.prepareForTriggerAvailableNow()
    start = source.initialOffset()
    polls = [start]
    for _ in range(4):
        polls.append(source.latestOffset(json.loads(text(polls[-1])), ALL))
    notes = [source_note_of(offset) for offset in polls]
    names = {(n.cluster_id, n.group_id, n.topic_ids, n.source_id) for n in notes if n is not None}
    source_id = notes[0].source_id if notes[0] is not None else ""
    assert names == {("A", "g", (), source_id)}
    assert source_id
    assert text(polls[-1]) == text(polls[-2]) == text(source.reportLatestOffset())
    kept = ["txnlog/cluster.id/A", "txnlog/group.id/g", f"txnlog/source.id/{source_id}"]
    starts = positions_digest(cluster.committed) if word == "committed" else ""
    kept += [f"txnlog/group.start/{starts}"] if starts else []
    assert list(polls[1])[-len(kept) :] == kept
    assert [n.group_start for n in notes[1:] if n is not None] == [starts] * 4
    assert polls[1]["txnlog/cluster.id/A"] == {}, "no partition, for Spark's own Kafka source"
    assert plain_offset(polls[-1]) == at(100, 50)
    if word == "latest":
        assert text(polls[1]) == text(start)


def test_without_a_group_the_offsets_name_the_cluster_alone(cluster: Cluster) -> None:
    cluster.cluster_id = "A"
    source = reader()
    assert source_note_of(source.latestOffset(source.initialOffset(), ALL)) == SourceNote("A", None)


def test_offsets_of_another_cluster_are_refused_before_anything_is_read(cluster: Cluster) -> None:
    cluster.cluster_id = "B"
    cluster.deleted = ("t",)
    asked = [
        lambda: reader().latestOffset(noted(at(1, 1), "A"), ALL),
        lambda: reader().partitions(noted(at(1, 1), "A"), noted(at(2, 2), "A")),
        lambda: reader().partitions(noted(at(0, 0), "B"), noted(at(2, 2), "A")),
    ]
    for ask in asked:
        with pytest.raises(WrongCluster, match=r"'A'.*'B'.*Nothing was read.*new checkpoint"):
            ask()


def test_offsets_without_a_note_are_gone_on_from_and_noted(cluster: Cluster) -> None:
    cluster.cluster_id = "A"
    source = reader()
    assert taken(source, at(60, 20), at(100, 50)) == {P0: (60, 100), P1: (20, 50)}
    end = source.latestOffset(at(100, 50), ALL)
    assert end == noted(at(100, 50), "A")
    assert text(source.latestOffset(end, ALL)) == text(end)


def test_a_cluster_that_tells_no_id_is_believed(cluster: Cluster) -> None:
    start = noted(at(60, 20), "A")
    assert reader().latestOffset(start, ALL) == at(100, 50)


LOSES = {"failOnDataLoss": "false"}
FIRST, SECOND = "first" + "A" * 17, "second" + "A" * 16


def test_every_offset_names_the_topics_by_their_ids_and_equal_ones_are_equal_text(
    cluster: Cluster,
) -> None:
    cluster.cluster_id, cluster.ids = "A", {"t": FIRST, "other": SECOND}
    source = reader()
    polls = [source.initialOffset()]
    for _ in range(3):
        polls.append(source.latestOffset(json.loads(text(polls[-1])), ALL))
    assert {source_note_of(offset) for offset in polls} == {SourceNote("A", None, (("t", FIRST),))}
    assert polls[-1][f"txnlog/topic.id/t/{FIRST}"] == {}
    assert text(polls[-1]) == text(polls[-2]) == text(source.reportLatestOffset())


def test_offsets_that_name_no_topic_ids_are_gone_on_from(cluster: Cluster) -> None:
    cluster.cluster_id, cluster.ids = "A", {"t": FIRST}
    source = reader()
    end = source.latestOffset(noted(at(60, 20), "A"), ALL)
    assert taken(source, noted(at(60, 20), "A"), end) == {P0: (60, 100), P1: (20, 50)}
    assert noted_topic_ids(end) == {"t": FIRST}


def of_topic(offset: dict, topic_id: str) -> dict:
    """The offset in the topic of this id."""
    return {**offset, f"txnlog/topic.id/t/{topic_id}": {}, "txnlog/cluster.id/A": {}}


def test_a_topic_that_is_recreated_under_available_now_is_read_to_an_end_of_its_own(
    cluster: Cluster,
) -> None:
    """A task that read to the former end would wait for later records, and skip them."""
    first, second = "AAAAAAAAAAAAAAAAAAAABw", "AAAAAAAAAAAAAAAAAAAACA"
    cluster.cluster_id, cluster.ids = "A", {"t": first}
    source = reader(failOnDataLoss="false")
    source.prepareForTriggerAvailableNow()
    begin = source.latestOffset(of_topic(at(60, 20), first), ALL)
    assert begin == of_topic(at(100, 50), first)
    cluster.ids, cluster.end = {"t": second}, {P0: 5, P1: 70}
    end = source.latestOffset(begin, ALL)
    assert end == of_topic(at(5, 50), second)
    assert taken(source, begin, end) == {P0: (0, 5), P1: (0, 50)}
    assert source.latestOffset(end, ALL) == end


def test_a_topic_that_was_recreated_is_loss_though_its_log_is_longer_than_what_was_read(
    cluster: Cluster,
) -> None:
    cluster.cluster_id, cluster.ids = "A", {"t": SECOND}
    with pytest.raises(DataLoss, match=r"t-0: its topic was deleted and created again.*second"):
        reader().latestOffset(of_topic(at(60, 20), FIRST), ALL)


def test_where_loss_is_allowed_a_recreated_topic_is_read_from_its_beginning_also_again(
    cluster: Cluster,
) -> None:
    cluster.cluster_id, cluster.ids = "A", {"t": SECOND}
    cluster.end = {P0: 40, P1: 50}
    start = of_topic(at(60, 20), FIRST)
    source = reader(**LOSES)
    end = source.latestOffset(start, ALL)
    assert end == of_topic(at(40, 50), SECOND)
    assert taken(source, start, end) == {P0: (0, 40), P1: (0, 50)}
    assert taken(reader(), start, end) == {P0: (0, 40), P1: (0, 50)}, "replayed by another run"
    assert text(source.latestOffset(end, ALL)) == text(end)


def test_a_limit_counts_the_records_of_a_recreated_topic_from_its_beginning(
    cluster: Cluster,
) -> None:
    cluster.cluster_id, cluster.ids = "A", {"t": SECOND}
    start = of_topic(at(90, 40), FIRST)
    source = reader(**LOSES, maxOffsetsPerTrigger="30")
    end = source.latestOffset(start, source.getDefaultReadLimit())
    assert plain_offset(end) == at(20, 10)
    assert taken(source, start, end) == {P0: (0, 20), P1: (0, 10)}


def test_a_batch_of_a_recreated_topic_does_not_wait_for_more_offsets(cluster: Cluster) -> None:
    cluster.cluster_id, cluster.ids = "A", {"t": FIRST}
    source = reader(**LOSES, minOffsetsPerTrigger="1000", maxTriggerDelay="1h")
    end = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    cluster.ids = {"t": SECOND}
    again = source.latestOffset(end, source.getDefaultReadLimit())
    assert noted_topic_ids(again) == {"t": SECOND}


def test_a_batch_of_a_topic_that_was_recreated_after_it_was_planned_reads_nothing_of_the_new_one(
    cluster: Cluster,
) -> None:
    cluster.cluster_id, cluster.ids = "A", {"t": SECOND}
    start, end = of_topic(at(60, 20), FIRST), of_topic(at(100, 50), FIRST)
    with pytest.raises(DataLoss, match="its topic was deleted and created again"):
        reader().partitions(start, end)
    assert reader(**LOSES).partitions(start, end) == []


def test_a_task_is_given_the_ids_of_the_topics_that_its_ranges_are_of(cluster: Cluster) -> None:
    topic_id = "AAAAAAAAAAAAAAAAAAAABw"
    cluster.cluster_id, cluster.ids = "A", {"t": topic_id}
    source = reader()
    (share,) = source.partitions(of_topic(at(0, 0), topic_id), of_topic(at(9, 9), topic_id))
    assert share.ranges and share.topic_ids == {"t": bytes(15) + b"\x07"}


@pytest.mark.parametrize("starting", ["latest", "committed", '{"t":{"0":-1,"1":20}}'])
def test_a_first_batch_that_another_source_planned_from_a_start_of_its_own_is_refused(
    cluster: Cluster, starting: str
) -> None:
    """Spark's kafka source keeps its start in sources/0/0. Planned from the latest of today, the
    batch would be empty, and its rows lost."""
    cluster.cluster_id, cluster.committed = "A", {P0: 70, P1: 20}
    source = reader(startingOffsets=starting, **{"kafka.group.id": "g"})
    start = source.initialOffset()
    with pytest.raises(OptionError, match=r"startingOffsets.*sources/0/0"):
        source.partitions(start, at(60, 40))
    named = reader(startingOffsets='{"t":{"0":50,"1":20}}')
    assert taken(named, named.initialOffset(), at(60, 40)) == {P0: (50, 60), P1: (20, 40)}
