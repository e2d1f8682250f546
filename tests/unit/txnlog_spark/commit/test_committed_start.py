"""A batch that starts from a group's committed offsets is committed only while they still hold."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker
from support.query.commit_plans import build_plan, commit, nothing_is_written

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import SourceEnd
from txnlog_spark.errors import CommittedOffsetsMoved
from txnlog_spark.group_note import note_of
from txnlog_spark.offsets import SourceNote, positions_digest

A, B = ("in", 0), ("in", 1)


def cluster_with(committed: dict[tuple[str, int], int], version: int = 2) -> CoreBroker:
    cluster = CoreBroker(version)
    cluster.create_topics(other=1)
    cluster.commit_offsets("g", {p: (offset, "") for p, offset in committed.items()})
    return cluster


def commit_from(cluster: CoreBroker, expected: dict[tuple[str, int], int | None]):
    committed = {TopicPartition(*p): at for p, at in expected.items() if at is not None}
    ends = {TopicPartition(*A): 5, TopicPartition(*B): 0}
    note = SourceNote("c", "g", group_start=positions_digest(committed))
    source = SourceEnd("", ends, note)
    return commit(cluster, build_plan(source_offsets={A: 5, B: 0}, sources=(source,)))


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_that_still_hold_are_gone_on_from(version: int) -> None:
    cluster = cluster_with({A: 5, ("other", 0): 9}, version)
    assert not commit_from(cluster, {A: 5, B: None}).skipped
    assert cluster.offsets("g")[B] == (0, "")
    assert note_of(cluster.offsets("g")[A][1]) is not None


@pytest.mark.parametrize(
    ("committed", "told"),
    [
        ({A: 8}, "in-0 from 5 to 8"),
        ({A: 4}, "in-0 from 5 to 4"),
        ({}, "offsets of group 'g'"),
        ({A: 5, B: 0}, "offsets of group 'g'"),
    ],
)
def test_offsets_that_moved_stop_the_query_before_any_write(committed, told: str) -> None:
    cluster = cluster_with(committed)
    with pytest.raises(CommittedOffsetsMoved, match=told) as caught:
        commit_from(cluster, {A: 5, B: None})
    assert "new, empty checkpoint" in str(caught.value)
    assert nothing_is_written(cluster)


def test_a_committed_start_that_comes_again_is_skipped_though_the_group_is_where_it_put_it() -> (
    None
):
    cluster = cluster_with({A: 5})
    commit_from(cluster, {A: 5, B: None})
    assert commit_from(cluster, {A: 5, B: None}).skipped
