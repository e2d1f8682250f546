"""Topics deleted under a query, against real brokers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import wait_until
from support.clients.librdkafka import create_topic, read_topic
from support.query.checkpoint_query import Query
from support.query.staged_messages import stage
from support.raw.raw import Connection
from support.raw.raw_admin import ZERO_ID, delete_topics, wait_until_gone

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.client_cache import client_for
from txnlog_spark.errors import ProgressMissing
from txnlog_spark.staging.frames import TaskAttempt

pytestmark = pytest.mark.live


class Fan(Query):
    """A query whose rows name their topics: `keep` is in every batch, `drop` in batch 1 alone."""

    def __init__(self, broker, folder: Path, names: Callable[[str], str]) -> None:
        super().__init__(broker, folder, names)
        self.keep = create_topic(self.bootstrap, names("z"), 1)
        self.drop = create_topic(self.bootstrap, names("d"), 1)
        self.rows = [[(self.keep, "v0")], [(self.drop, "x1"), (self.keep, "v1")]]

    def commit_rows(self, batch_id: int, run: str) -> None:
        """Log, stage and commit one of `rows`."""
        self.log(batch_id, 10 * (batch_id + 1))
        rows = self.rows[batch_id]
        encoded = [
            (topic, 0, encode_batch([Record(None, value.encode())])) for topic, value in rows
        ]
        attempt = TaskAttempt(self.settings.write_name(self.query_id), batch_id, run, f"{run}-0-0")
        counts = {topic: 1 for topic, _ in rows}
        message = stage(attempt, encoded, counts=counts, query_id=self.query_id)
        self.commit_staged(batch_id, [message], run)

    def delete(self, topic: str) -> None:
        """Delete a topic between two runs, as an operator does; Kafka forgets its offsets a bit
        later."""
        client = client_for(self.settings.connection)
        recorded = self.begun()
        delete(self, topic)

        def forgotten() -> bool:
            committed = client.committed_offsets(recorded.progress_group_id)
            return (topic, 0) not in committed

        wait_until(forgotten, f"the group's offsets of the deleted topic {topic} are gone")

    def kept(self) -> list[bytes | None]:
        """Return the values in the topic `keep`."""
        return [record.value for record in read_topic(self.bootstrap, self.keep)]


def delete(query: Query, topic: str) -> None:
    """Delete a topic on which nothing is under way; return when the broker has heard of it."""
    wait_until_marked(query.bootstrap)
    with Connection(int(query.bootstrap.rpartition(":")[2])) as connection:
        delete_topics(connection, (topic, ZERO_ID))
        wait_until_gone(connection, topic)
    # The driver's client is this one: it knows the topics of its last metadata until it asks again.
    client_for(query.settings.connection).topic_partitions(None)


@pytest.fixture
def fan(broker, tmp_path: Path, unique: Callable[[str], str]) -> Fan:
    query = Fan(broker, tmp_path / "checkpoint", unique)
    query.commit_rows(0, "run-1")
    query.commit_rows(1, "run-1")  # and Spark dies before it logs that batch 1 is done
    return query


def test_deleting_one_output_topic_does_not_double_the_others(fan: Fan) -> None:
    fan.delete(fan.drop)
    fan.commit_rows(1, "run-2")
    assert fan.kept() == [b"v0", b"v1"]


def test_deleting_the_topic_that_progress_lies_on_stops_the_query_and_says_so(fan: Fan) -> None:
    recorded = fan.begun()
    assert recorded.progress_partition == (fan.input, 0), "which the query may read anyway"
    assert recorded.batch_id == 1
    fan.delete(fan.input)
    with pytest.raises(ProgressMissing, match=f"topic '{fan.input}' was deleted"):
        fan.commit_rows(1, "run-2")
    assert [r.value for r in read_topic(fan.bootstrap, fan.drop)] == [b"x1"]


def test_a_topic_that_was_deleted_and_created_again_has_no_progress_to_redo_from(fan: Fan) -> None:
    fan.delete(fan.input)
    create_topic(fan.bootstrap, fan.input, 1)
    with pytest.raises(ProgressMissing, match="or were deleted"):
        fan.commit_rows(1, "run-2")
    assert fan.kept() == [b"v0", b"v1"]


def test_a_batch_that_was_never_begun_goes_on_when_progress_went_with_its_topic(fan: Fan) -> None:
    fan.delete(fan.input)
    fan.rows.append([(fan.keep, "v2")])
    fan.commit_rows(2, "run-2")
    assert fan.kept() == [b"v0", b"v1", b"v2"]
    recorded = fan.begun()
    assert recorded.progress_partition == (fan.keep, 0)


def test_a_batch_that_read_a_since_deleted_topic_is_committed_with_a_warning(
    broker, tmp_path: Path, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(broker, tmp_path / "checkpoint", unique)
    gone = create_topic(query.bootstrap, unique("gone"), 1)
    query.commit(0, ["a"])
    client = client_for(query.settings.connection)
    note = f"txnlog/cluster.id/{client.session.cluster.cluster_id}"
    source = json.dumps({query.input: {"0": 20}, gone: {"0": 5}, note: {}})
    (query.checkpoint / "offsets" / "1").write_text(f"v1\n{{}}\n{source}")
    delete(query, gone)
    with caplog.at_level(logging.WARNING):
        query.commit_staged(1, [query.stage(1, ["b"])])
    assert f"{gone}-0" in caplog.text
    assert query.values() == ["a", "b"]
    assert client.committed_offsets(query.group) == {(query.input, 0): 20}
