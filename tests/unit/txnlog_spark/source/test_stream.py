"""The stream reader against a cluster that is a dictionary: what it answers Spark, call by call."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.query.source_cluster import ALL, P0, P1, Cluster, at, noted, reader, taken

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, NoCommittedOffsets, UnknownTopic
from txnlog_spark.offsets import from_json_value, plain_offset, positions_digest, source_note_of
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader


def test_a_batch_ends_where_the_log_ends(cluster: Cluster) -> None:
    source = reader()
    assert (source.initialOffset(), source.reportLatestOffset()) == (at(0, 0), None)
    assert source.latestOffset(at(0, 0), ALL) == at(100, 50)
    assert source.reportLatestOffset() == at(100, 50)
    assert source.latestOffset(at(100, 50), ALL) == at(100, 50)


def test_a_run_with_available_now_tells_when_all_of_it_is_done(cluster: Cluster, caplog) -> None:
    """Spark asks once more when the last batch is committed, and then ends the query."""
    source = reader(maxOffsetsPerTrigger="90")
    with caplog.at_level(logging.INFO, logger="txnlog_spark.console"):
        source.prepareForTriggerAvailableNow()
        cluster.end = {P0: 500, P1: 500}
        begin = at(0, 0)
        while (end := source.latestOffset(begin, ReadMaxRows(90))) != begin:
            assert caplog.messages == ["t: 150 offsets to read, the first batch starts"]
            begin = end
    assert begin == at(100, 50)
    (_, line) = caplog.messages
    assert "150 offsets in " in line


def test_a_limit_is_kept_and_the_report_shows_what_is_waiting(cluster: Cluster) -> None:
    source = reader(maxOffsetsPerTrigger="30")
    assert source.getDefaultReadLimit() == ReadMaxRows(30)
    assert source.latestOffset(at(0, 0), ReadMaxRows(30)) == at(20, 10)
    assert source.reportLatestOffset() == at(100, 50)


def test_a_batch_waits_for_its_minimum_and_not_longer_than_it_may(cluster: Cluster) -> None:
    now = 1000.0
    cluster.clock = lambda: now
    source = reader(minOffsetsPerTrigger="20", maxOffsetsPerTrigger="30", maxTriggerDelay="10s")
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert source.latestOffset(at(90, 50), limit) == at(100, 50), "the first of a run"
    cluster.end = {P0: 110, P1: 59}
    start = at(100, 50)
    assert source.latestOffset(start, limit) is start, "19 are waiting"
    assert source.reportLatestOffset() == at(110, 59)
    cluster.end = {P0: 110, P1: 60}
    assert source.latestOffset(start, limit) == at(110, 60)
    cluster.end = {P0: 111, P1: 60}
    now += 9.9
    assert source.latestOffset(at(110, 60), limit) == at(110, 60)
    now += 0.1
    assert source.latestOffset(at(110, 60), limit) == at(111, 60)
    assert source.latestOffset(at(110, 59), ALL) == at(111, 60), "a trigger that asks once"


def test_a_minimum_alone_limits_nothing_and_a_new_partition_counts(cluster: Cluster) -> None:
    source = reader(minOffsetsPerTrigger="20", maxTriggerDelay="1h")
    limit = source.getDefaultReadLimit()
    assert not isinstance(limit, ReadAllAvailable)
    assert source.latestOffset(at(0, 0), limit) == at(100, 50)
    cluster.end[TopicPartition("t", 2)] = 20
    cluster.earliest[TopicPartition("t", 2)] = 0
    end = {"t": {"0": 100, "1": 50, "2": 20}}
    assert source.latestOffset(at(100, 50), limit) == end


def test_available_now_reads_all_that_is_there_whatever_the_minimum(cluster: Cluster) -> None:
    source = reader(minOffsetsPerTrigger="60", maxOffsetsPerTrigger="60", maxTriggerDelay="1h")
    source.prepareForTriggerAvailableNow()
    begin, steps = at(0, 0), 0
    while (end := source.latestOffset(begin, source.getDefaultReadLimit())) != begin:
        begin, steps = end, steps + 1
    assert (begin, steps) == (at(100, 50), 3)


def test_available_now_does_not_go_past_what_was_there(cluster: Cluster) -> None:
    source = reader()
    source.prepareForTriggerAvailableNow()
    cluster.end = {P0: 900, P1: 900, TopicPartition("t", 2): 9}
    assert source.latestOffset(at(0, 0), ALL) == at(100, 50)
    assert source.latestOffset(at(100, 50), ALL) == at(100, 50)


def test_the_initial_offset_of_a_run_is_always_the_same(cluster: Cluster) -> None:
    source = reader(startingOffsets="latest")
    assert source.initialOffset() == at(100, 50)
    cluster.end = {P0: 200, P1: 200}
    assert source.initialOffset() == at(100, 50)


def test_a_moving_start_is_logged_as_the_end_of_an_empty_first_batch(cluster: Cluster) -> None:
    source = reader(startingOffsets="latest")
    start = source.initialOffset()
    cluster.end = {P0: 130, P1: 50}
    assert source.latestOffset(start, ALL) == start
    assert source.partitions(start, start) == []
    assert source.latestOffset(start, ALL) == at(130, 50)


def test_a_replayed_first_batch_of_a_moving_start_is_empty_again(cluster: Cluster) -> None:
    source = reader(startingOffsets="latest")
    later_start = source.initialOffset()
    assert source.partitions(later_start, noted(at(60, 40), "A")) == []


def test_a_first_batch_from_the_earliest_is_replayed_whole(cluster: Cluster) -> None:
    source = reader()
    assert taken(source, source.initialOffset(), at(60, 40)) == {P0: (0, 60), P1: (0, 40)}


def test_the_first_batch_of_a_run_ends_where_the_group_was_committed(cluster: Cluster) -> None:
    cluster.committed = {P0: 70, P1: 20}
    source = reader(**{"kafka.group.id": "g"})
    assert source.latestOffset(at(60, 20), ALL) == at(70, 20)
    assert source.latestOffset(at(70, 20), ALL) == at(100, 50)


def test_a_lost_batch_is_planned_whole_though_the_limit_was_lowered(cluster: Cluster) -> None:
    cluster.committed = {P0: 70, P1: 20}
    source = reader(**{"kafka.group.id": "g", "maxOffsetsPerTrigger": "3"})
    assert source.latestOffset(at(60, 20), ReadMaxRows(3)) == at(70, 20)
    assert source.latestOffset(at(70, 20), ReadMaxRows(3)) == at(72, 21)


OTHER = TopicPartition("other", 0)
NO_LIMIT = reader(**{"kafka.group.id": "g"}).getDefaultReadLimit()


def test_a_source_that_stands_where_the_group_is_goes_on_at_once_beside_another_source(
    cluster: Cluster,
) -> None:
    cluster.committed = {P0: 60, P1: 20, TopicPartition("other", 0): 3}
    source = reader(**{"kafka.group.id": "g"})
    assert source.latestOffset(at(60, 20), NO_LIMIT) == at(100, 50)


def test_a_source_that_is_ahead_goes_to_the_group_beside_another_source(cluster: Cluster) -> None:
    cluster.committed = {P0: 70, P1: 20, OTHER: 9}
    source = reader(**{"kafka.group.id": "g"})
    assert source.latestOffset(at(60, 20), NO_LIMIT) == at(70, 20)


def test_without_a_limit_all_is_read_also_of_new_partitions(cluster: Cluster) -> None:
    assert reader().getDefaultReadLimit() == ALL
    assert NO_LIMIT != ALL
    assert reader(**{"kafka.group.id": "g"}).latestOffset(at(60), NO_LIMIT) == at(100, 50)


def from_committed(**options: str) -> TxnLogStreamReader:
    return reader(**{"kafka.group.id": "g", "startingOffsets": "committed"} | options)


def as_spark_logs(offset: dict) -> dict:
    return json.loads(json.dumps(offset))


def starts_at(offset: dict) -> str:
    """The digest of the group's offsets that the query started from."""
    note = source_note_of(offset)
    assert note is not None
    return note.group_start


def test_a_start_from_the_group_is_an_empty_batch_that_says_what_was_committed(
    cluster: Cluster,
) -> None:
    cluster.cluster_id = "A"
    cluster.committed = {P0: 70, TopicPartition("other", 0): 3}
    cluster.earliest[P1] = 4
    source = from_committed()
    start = source.initialOffset()
    assert plain_offset(start) == at(70, 4)
    cluster.committed = {P0: 90, P1: 9}
    first = as_spark_logs(source.latestOffset(start, ALL))
    assert from_json_value(first) == {P0: 70, P1: 4}
    assert starts_at(first) == positions_digest({P0: 70})
    assert source.partitions(start, first) == []


@pytest.mark.parametrize("available_now", [False, True])
def test_after_a_start_from_the_group_offsets_are_plain_and_not_held_at_the_group(
    cluster: Cluster, available_now: bool
) -> None:
    cluster.committed = {P0: 70, P1: 20}
    source = from_committed()
    if available_now:
        source.prepareForTriggerAvailableNow()
    first = as_spark_logs(source.latestOffset(source.initialOffset(), ALL))
    cluster.committed = {P0: 80, P1: 20}
    second = source.latestOffset(first, ALL)
    assert second == at(100, 50)
    assert taken(source, first, second) == {P0: (70, 100), P1: (20, 50)}


def test_a_replayed_start_from_the_group_stays_empty_and_is_gone_on_from(cluster: Cluster) -> None:
    cluster.cluster_id, cluster.committed = "A", {P0: 70, P1: 20}
    source = from_committed()
    first = as_spark_logs(source.latestOffset(source.initialOffset(), ALL))
    for committed in ({P0: 70, P1: 20}, {P0: 10, P1: 20}):
        cluster.committed = committed
        replay = from_committed()
        assert replay.partitions(replay.initialOffset(), first) == []
        assert plain_offset(replay.latestOffset(first, ALL)) == at(100, 50)


def test_a_committed_batch_after_a_start_from_the_group_is_found_again(cluster: Cluster) -> None:
    cluster.committed = {P0: 70, P1: 20}
    source = from_committed()
    first = as_spark_logs(source.latestOffset(source.initialOffset(), ALL))
    cluster.committed = {P0: 85, P1: 20}
    assert from_committed().latestOffset(first, ALL) == at(85, 20)


def test_a_committed_position_behind_the_stable_offset_is_kept_and_waits(cluster: Cluster) -> None:
    cluster.committed, cluster.high = {P0: 110, P1: 20}, {P0: 120}
    for lossy in ("true", "false"):
        source = from_committed(failOnDataLoss=lossy)
        start = source.initialOffset()
        assert start == at(110, 20)
        first = source.latestOffset(start, ALL)
        assert source.latestOffset(first, ALL) == at(110, 50)


def test_a_start_from_the_group_looks_for_what_the_group_knows_and_a_broker_does_not_list(
    cluster: Cluster,
) -> None:
    # Found later it would be a new topic, and read again from its start.
    late = TopicPartition("u", 0)
    cluster.end[late], cluster.earliest[late] = 30, 0
    cluster.unlisted = frozenset({"u"})
    cluster.committed = {P0: 70, P1: 20, late: 25, TopicPartition("other", 0): 3}
    assert from_committed(subscribe="t,u").initialOffset() == at(70, 20) | {"u": {"0": 25}}
    cluster.committed = {P0: 70, P1: 20, late: 25}
    del cluster.end[late]
    assert from_committed(subscribe="t,u").initialOffset() == at(70, 20)


@pytest.mark.parametrize(
    ("word", "expected"), [("committedOrEarliest", at(0, 4)), ("committedOrLatest", at(100, 50))]
)
def test_a_first_start_of_a_group_is_recorded_as_one_without_committed_offsets(
    cluster: Cluster, word: str, expected: dict
) -> None:
    cluster.cluster_id, cluster.earliest[P1] = "A", 4
    source = from_committed(startingOffsets=word)
    start = source.initialOffset()
    assert plain_offset(start) == expected
    cluster.committed, cluster.end = {P0: 60}, {P0: 120, P1: 50}
    first = as_spark_logs(source.latestOffset(start, ALL))
    assert (plain_offset(first), starts_at(first)) == (plain_offset(start), positions_digest({}))
    assert plain_offset(source.latestOffset(first, ALL)) == at(120, 50)


def test_a_start_from_a_group_that_has_no_position_is_refused(cluster: Cluster) -> None:
    cluster.committed = {TopicPartition("other", 0): 3}
    source = from_committed()
    for _ in range(2):
        with pytest.raises(NoCommittedOffsets, match="group 'g' has no committed offset"):
            source.initialOffset()


def test_new_partitions_are_read_from_their_start(cluster: Cluster) -> None:
    cluster.end = {P0: 100, P1: 50}
    source = reader()
    assert source.latestOffset(at(100), ALL) == at(100, 50)
    assert taken(source, at(100), at(100, 50)) == {P1: (0, 50)}


def test_a_new_partition_that_lost_its_first_records_is_loss(cluster: Cluster) -> None:
    cluster.earliest[P1] = 7
    with pytest.raises(DataLoss, match="t-1: a new partition starts at offset 7"):
        reader().latestOffset(at(100), ALL)


@pytest.mark.parametrize("available_now", [False, True])
def test_a_log_that_ends_before_the_position_is_loss(cluster: Cluster, available_now: bool) -> None:
    source, lenient = reader(), reader(failOnDataLoss="false")
    for each in (source, lenient):
        if available_now:
            each.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        source.latestOffset(at(101, 50), ALL)
    assert lenient.latestOffset(at(101, 50), ALL) == at(100, 50)
    assert lenient.partitions(at(101, 50), at(100, 50)) == []


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_log_that_ends_before_the_position_at_a_former_leader_is_no_loss(
    cluster: Cluster, lenient: str
) -> None:
    cluster.confirmed = {P0: 130}
    source = reader(failOnDataLoss=lenient)
    assert source.latestOffset(at(120, 50), ALL) == at(120, 50)


def test_a_position_between_the_stable_offset_and_the_high_watermark_waits(
    cluster: Cluster,
) -> None:
    cluster.high = {P0: 120}
    assert reader().latestOffset(at(110, 50), ALL) == at(110, 50)


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_is_not_listed_for_a_while_is_neither_loss_nor_new(
    cluster: Cluster, available_now: bool
) -> None:
    cluster.unlisted = frozenset({"t"})
    for lossy in ("true", "false"):
        source = reader(failOnDataLoss=lossy)
        if available_now:
            source.prepareForTriggerAvailableNow()
        assert source.latestOffset(at(60, 20), ALL) == at(100, 50)


def test_new_partitions_are_found_though_another_topic_was_deleted(cluster: Cluster) -> None:
    cluster.deleted = ("old",)
    source = reader(subscribe="old,t", failOnDataLoss="false")
    start = at(100) | {"old": {"0": 7}}
    assert source.latestOffset(start, ALL) == at(100, 50)


def test_a_replayed_batch_says_that_a_partition_it_discovered_lost_its_first_records(
    cluster: Cluster,
) -> None:
    cluster.earliest[P1] = 7
    with pytest.raises(DataLoss, match="t-1: a new partition starts at offset 7"):
        reader().partitions(at(100), at(100, 50))
    assert taken(reader(failOnDataLoss="false"), at(100), at(100, 50)) == {P1: (7, 50)}


def test_a_replayed_batch_whose_new_topic_was_deleted_is_loss_or_does_without_it(
    cluster: Cluster,
) -> None:
    cluster.deleted = ("new",)
    end = at(110, 50) | {"new": {"0": 5}}
    with pytest.raises(DataLoss, match="new-0: its topic was deleted"):
        reader().partitions(at(100, 50), end)
    assert taken(reader(failOnDataLoss="false"), at(100, 50), end) == {P0: (100, 110)}


def test_a_topic_that_never_was_is_unknown_and_not_lost(cluster: Cluster) -> None:
    cluster.deleted = ("other",)
    with pytest.raises(UnknownTopic):
        reader(failOnDataLoss="false").latestOffset(at(1, 1), ALL)


def test_a_reader_is_pickled_to_the_tasks_at_any_time(cluster: Cluster) -> None:
    source = reader()
    source.latestOffset(source.initialOffset(), ALL)
    assert pickle.loads(pickle.dumps(source)).reportLatestOffset() == at(100, 50)


@pytest.mark.parametrize(("max_age_ms", "again"), [(3_600_000, frozenset({"t"})), (0, None)])
def test_all_topics_are_listed_no_more_often_than_the_option_says(
    cluster: Cluster, max_age_ms: int, again: frozenset[str] | None
) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "t"}
    settings = read_source_settings(options, streaming=True)
    assert settings.metadata_max_age_ms == 300_000
    source = TxnLogStreamReader(replace(settings, metadata_max_age_ms=max_age_ms))
    for _ in range(3):
        source.latestOffset(at(60, 20), ALL)
    assert cluster.matching == [None, again, again]


def test_the_start_of_a_run_lists_all_topics_once(cluster: Cluster) -> None:
    source = reader()
    source.latestOffset(source.initialOffset(), ALL)
    assert cluster.matching == [None, frozenset({"t"})]


@pytest.mark.parametrize("what", ["subscribe", "subscribePattern", "assign"])
def test_partitions_are_taken_as_they_are_for_as_long_as_the_option_says(
    cluster: Cluster, what: str
) -> None:
    now = 1_000.0
    cluster.clock = lambda: now
    options = {"subscribe": "t", what: '{"t":[0,1]}' if what == "assign" else "t"}
    if what != "subscribe":
        del options["subscribe"]
    settings = read_source_settings(
        {"kafka.bootstrap.servers": "h:1", "partition.metadata.cache.ttl.ms": "30000", **options},
        streaming=True,
    )
    source = TxnLogStreamReader(settings)
    assert source.latestOffset(at(60, 20), ALL) == at(100, 50)
    third = TopicPartition("t", 2)
    cluster.end[third], cluster.earliest[third] = 7, 0
    cluster.end[P0] = 200
    now += 29.9
    assert source.latestOffset(at(60, 20), ALL) == at(200, 50)
    assert len(cluster.matching) == 1
    now += 0.1
    assert source.latestOffset(at(60, 20), ALL) == at(200, 50) | {"t": {"0": 200, "1": 50, "2": 7}}
    assert cluster.matching == [None, None], "a pattern is compared with all topics again"
