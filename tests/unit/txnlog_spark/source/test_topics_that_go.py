"""Topics that are deleted while a stream that reads them is planned."""

from __future__ import annotations

import pytest
from support.query.source_cluster import ALL, Cluster, at, reader

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, UnknownTopic
from txnlog_spark.source import available
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader


def test_a_deleted_topic_is_loss_or_is_left_out(cluster: Cluster) -> None:
    source, lenient = reader(), reader(failOnDataLoss="false")
    cluster.deleted = ("t",)
    with pytest.raises(DataLoss, match="its topic was deleted"):
        source.latestOffset(at(1, 1), ALL)
    assert lenient.latestOffset(at(1, 1), ALL) == {}


def test_a_topic_deleted_right_after_it_was_discovered_is_loss_or_is_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available, "DISCOVERY_MS", 3_600_000)
    other = TopicPartition("old", 0)
    cluster.end[other] = cluster.earliest[other] = 7
    start = at(100, 50) | {"old": {"0": 7}}
    source, lenient = reader(subscribe="old,t"), reader(subscribe="old,t", failOnDataLoss="false")
    for each in (source, lenient):
        assert each.latestOffset(start, ALL) == start
    cluster.deleted = ("old",)
    del cluster.end[other]
    with pytest.raises(DataLoss, match="its topic was deleted"):
        source.latestOffset(start, ALL)
    assert lenient.latestOffset(start, ALL) == at(100, 50)


def test_topics_that_go_one_after_the_other_while_their_ends_are_asked_for_are_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones are no loss: nothing of them was to be read."""
    going = [f"old{n}" for n in range(12)]
    for topic in going:
        cluster.end[TopicPartition(topic, 0)] = cluster.earliest[TopicPartition(topic, 0)] = 7
    original = cluster.offsets_at

    def one_more_is_gone(specs, *, read_committed):
        if going:
            topic = going.pop()
            cluster.deleted = (*cluster.deleted, topic)
            del cluster.end[TopicPartition(topic, 0)]
        return original(specs, read_committed=read_committed)

    monkeypatch.setattr(cluster, "offsets_at", one_more_is_gone)
    source = reader(subscribe=",".join(["t", *going]))
    assert source.latestOffset(at(100, 50), ALL) == at(100, 50)
    assert not going


@pytest.mark.parametrize("selects", ["subscribe", "subscribePattern"])
def test_a_topic_that_goes_before_its_start_is_known_is_simply_gone_if_nobody_named_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, selects: str
) -> None:
    other = TopicPartition("old", 0)
    cluster.end[other] = cluster.earliest[other] = 7
    original = cluster.offsets_at

    def gone(specs, *, read_committed):
        cluster.end.pop(other, None)
        if other in specs:
            raise UnknownTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone", topics=("old",))
        return original(specs, read_committed=read_committed)

    monkeypatch.setattr(cluster, "offsets_at", gone)
    options = {"kafka.bootstrap.servers": "h:1", "startingOffsets": "earliest"}
    options[selects] = "t,old" if selects == "subscribe" else "t|old"
    source = TxnLogStreamReader(read_source_settings(options, streaming=True))
    if selects == "subscribe":
        with pytest.raises(UnknownTopic):
            source.initialOffset()
    else:
        assert source.initialOffset() == at(0, 0)


def test_a_deleted_topic_is_found_missing_though_partitions_are_taken_as_they_are(
    cluster: Cluster,
) -> None:
    source = reader(**{"partition.metadata.cache.ttl.ms": "3600000"})
    source.latestOffset(at(60, 20), ALL)
    cluster.deleted = ("t",)
    with pytest.raises(DataLoss, match="t-0: its topic was deleted"):
        source.latestOffset(at(60, 20), ALL)
