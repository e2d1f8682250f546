"""Tasks that read many partitions: all records, in order, with few requests."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.clients.librdkafka import TIMEOUT_S, create_topic, plain_producer, produce_values
from support.clients.librdkafka_client import LibrdkafkaAdmin
from support.spark.connector import Pipe

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.errors import OffsetOutOfRange
from txnlog_spark.source import partition
from txnlog_spark.source.partition import RangePartition, read_ranges
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.settings import SourceSettings, read_source_settings

pytestmark = pytest.mark.live

PARTITIONS = 40


def new_topics(broker, unique: Callable[[str], str]) -> list[str]:
    """Two topics; partition n of the first holds n % 4 records, of the second one."""
    names = [create_topic(broker.bootstrap_servers, unique(n), PARTITIONS) for n in ("a", "b")]
    made = plain_producer(broker.bootstrap_servers)
    for number in range(PARTITIONS):
        for topic, count in zip(names, (number % 4, 1), strict=True):
            for i in range(count):
                made.produce(topic, f"{topic}-{number}-{i}".encode(), partition=number)
    assert made.flush(TIMEOUT_S) == 0
    return names


@pytest.fixture(scope="module")
def topics_of(unique_names: Callable[[str], str]) -> Callable[[Any], list[str]]:
    """The two topics of a broker, made once."""
    return functools.cache(lambda broker: new_topics(broker, unique_names))


@pytest.fixture
def topics(broker, topics_of: Callable[[Any], list[str]]) -> list[str]:
    """The two topics; no test changes them."""
    return topics_of(broker)


def settings(broker, **options: str) -> SourceSettings:
    base = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
    return read_source_settings(base | options, streaming=False)


def share_of(broker, topics: list[str]) -> RangePartition:
    counts = {
        TopicPartition(topic, n): count
        for n in range(PARTITIONS)
        for topic, count in zip(topics, (n % 4, 1), strict=True)
    }
    ranges = [OffsetRange(p, 0, count) for p, count in sorted(counts.items()) if count]
    return RangePartition(tuple(ranges), broker.bootstrap_servers)


def expected(share: RangePartition) -> list[str]:
    return [
        f"{r.topic_partition.topic}-{r.topic_partition.partition}-{offset}"
        for r in share.ranges
        for offset in range(r.start_offset, r.end_offset)
    ]


def read(options: SourceSettings, share: RangePartition) -> list[str]:
    batches = list(read_ranges(options, share))
    return [value.decode() for b in batches for value in b["value"].to_pylist()]


def test_one_request_brings_all_the_small_ranges_of_a_task(
    broker, unique: Callable[[str], str], requests: Counter[str]
) -> None:
    options = settings(broker)
    client_for(options.connection, broker.bootstrap_servers)
    share = share_of(broker, new_topics(broker, unique))
    requests.clear()
    assert read(options, share) == expected(share)
    assert requests == {"METADATA": 1, "FETCH": 1}


def test_a_process_freezes_what_it_has_loaded_once_before_its_first_task_reads(
    broker, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = []

    class CountedFrozen:
        """Instead of the one that does it."""

        def __init__(self) -> None:
            frozen.append(self)

    monkeypatch.setattr(partition, "Frozen", CountedFrozen)
    batches = read_ranges(settings(broker), share_of(broker, topics))
    assert frozen == []
    next(batches)
    assert len(frozen) == 1
    assert not list(batches)
    read(settings(broker), share_of(broker, topics))
    assert len(frozen) == 1


@pytest.mark.parametrize("limit", ["1", "400", "70000"])
def test_an_answer_that_holds_some_of_the_ranges_only_is_gone_on_from(
    broker, topics: list[str], limit: str
) -> None:
    options = settings(broker, **{"kafka.max.partition.fetch.bytes": limit})
    share = share_of(broker, topics)
    assert read(options, share) == expected(share)


def test_ranges_that_are_longer_than_a_first_answer_are_read_to_their_end(
    broker, unique: Callable[[str], str], requests: Counter[str]
) -> None:
    topic = create_topic(broker.bootstrap_servers, unique("long"), 3)
    for number, count in enumerate((900, 1, 700)):
        values = [f"{topic}-{number}-{i}" for i in range(count)]
        produce_values(broker.bootstrap_servers, topic, values, partition=number, batch_size=900)
    names = [TopicPartition(topic, n) for n in range(3)]
    ranges = tuple(OffsetRange(p, 0, n) for p, n in zip(names, (900, 1, 700), strict=True))
    share = RangePartition(ranges, broker.bootstrap_servers)
    options = settings(broker, **{"kafka.max.partition.fetch.bytes": "8000"})
    requests.clear()
    assert read(options, share) == expected(share)
    assert requests["FETCH"] > 3


def test_one_range_that_is_gone_is_loss_or_is_left_out_and_the_others_are_read(
    broker, unique: Callable[[str], str]
) -> None:
    topics = new_topics(broker, unique)
    LibrdkafkaAdmin(broker.bootstrap_servers).delete_records((topics[0], 3), 2)
    share = share_of(broker, topics)
    with pytest.raises(OffsetOutOfRange, match=f"{topics[0]}-3"):
        read(settings(broker), share)
    gone = {f"{topics[0]}-3-0", f"{topics[0]}-3-1"}
    left = [v for v in expected(share) if v not in gone]
    assert read(settings(broker, failOnDataLoss="false"), share) == left


def test_a_topic_that_is_gone_among_others_is_left_out_when_it_may_be(
    broker, topics: list[str]
) -> None:
    ranges = [
        OffsetRange(TopicPartition(topic, n), 0, 1)
        for topic in (topics[0], f"{topics[0]}-gone", topics[1])
        for n in (5, 9)
    ]
    share = RangePartition(tuple(ranges), broker.bootstrap_servers)
    left = [v for v in expected(share) if "-gone-" not in v]
    assert read(settings(broker, failOnDataLoss="false"), share) == left


def test_a_batch_read_of_many_partitions_is_one_task_and_min_partitions_asks_for_more(
    both_pipe: Pipe, topics: list[str]
) -> None:
    wanted = [(f"{topics[1]}-{n}-0", n) for n in range(PARTITIONS)]
    for tasks, options in ((1, {}), (8, {"minPartitions": 8}), (4, {"maxRecordsPerPartition": 10})):
        rows = both_pipe.read(topics[1], **options).selectExpr("cast(value as string)", "partition")
        assert rows.rdd.getNumPartitions() == tasks
        assert sorted(map(tuple, rows.collect())) == sorted(wanted)
