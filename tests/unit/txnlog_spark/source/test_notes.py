"""The notes beside the offsets that the stream reader gives to Spark."""

from __future__ import annotations

import json

import pytest
from support.query.source_cluster import ALL, P0, P1, Cluster, at, noted, reader, stand_in

from txnlog_spark.errors import WrongCluster
from txnlog_spark.offsets import SourceNote, plain_offset, source_note_of


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return stand_in(monkeypatch)


def text(offset: object) -> str:
    """What Spark compares."""
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
    assert {source_note_of(offset) for offset in polls} == {SourceNote("A", "g")}
    assert text(polls[-1]) == text(polls[-2]) == text(source.reportLatestOffset())
    assert list(polls[1])[-2:] == ["txnlog/cluster.id/A", "txnlog/group.id/g"]
    assert polls[1]["txnlog/cluster.id/A"] == {}, "no partition, for Spark's own Kafka source"
    assert plain_offset(polls[-1]) == at(100, 50)
    if word == "latest":
        assert text(polls[1]) == text(start)


def test_without_a_group_the_offsets_name_the_cluster_alone(cluster: Cluster) -> None:
    cluster.cluster_id = "A"
    source = reader()
    assert source_note_of(source.latestOffset(source.initialOffset(), ALL)) == ("A", None)


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


def test_a_cluster_that_tells_no_id_is_believed(cluster: Cluster) -> None:
    start = noted(at(60, 20), "A")
    assert reader().latestOffset(start, ALL) == at(100, 50)
