"""The notes beside the offsets in a checkpoint: which cluster they are positions in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import create_topic
from support.spark.connector import Pipe, error_of, finish

from txnlog_spark.offsets import SourceNote, source_note_of


def cluster_id(bootstrap: str) -> str:
    return AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).cluster_id


def topic_id(bootstrap: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return str(found.topic_id).translate(str.maketrans("+/", "-_"))  # as Kafka shows it


@pytest.mark.parametrize("word", ["earliest", "latest"])
def test_every_logged_offset_names_the_cluster_and_the_topic_and_an_idle_restart_plans_no_batch(
    both_pipe: Pipe, word: str
) -> None:
    pipe = both_pipe
    pipe.feed(range(30))
    source = {"startingOffsets": word, "maxOffsetsPerTrigger": 20}
    pipe.copy(source)
    lines = pipe.source_lines()
    topic_ids = ((pipe.input, topic_id(pipe.bootstrap, pipe.input)),)
    expected = SourceNote(cluster_id(pipe.bootstrap), pipe.group, topic_ids)
    notes = {source_note_of(line) for line in lines}
    (note,) = [each for each in notes if each is not None]
    assert note._replace(source_id="") == expected
    assert note.source_id
    pipe.copy(source)
    assert pipe.source_lines() == lines


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Iterator[str]:
    """Another cluster."""
    with SimBroker(tmp_path_factory.mktemp("other")) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("topic_is_there_too", [True, False])
def test_a_checkpoint_of_another_cluster_is_refused_and_nothing_is_written(
    pipe: Pipe, other: str, topic_is_there_too: bool
) -> None:
    pipe.feed(range(10))
    pipe.copy()
    ours, pipe.bootstrap = cluster_id(pipe.bootstrap), other
    create_topic(other, pipe.output, 3)
    if topic_is_there_too:
        create_topic(other, pipe.input, 3)
        pipe.feed(range(100))
        line = pipe.copy_error()
    else:
        # A trigger that freezes the end of the query first asks for the topics.
        rows = pipe.stream().select("key", "value")
        line = error_of(lambda: finish(pipe.write(rows).start()))
    assert "TXNLOG_WRONG_CLUSTER" in line
    assert f"cluster {ours!r}" in line
    assert repr(cluster_id(other)) in line
    assert pipe.output_values("read_uncommitted") == []
