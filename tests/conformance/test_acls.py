"""Exactly the documented ACLs are enough, and one that is missing is named with its resource.

The table below is what the documentation says. Drivers and tasks are played without Spark, but for
one run of a whole pipeline.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.brokers.secured_kafka import SECURED_BROKERS, Acl
from support.clients.librdkafka import produce_values
from support.harness.availability import started_when_asked
from support.query.checkpoint_query import Query
from support.spark.connector import Pipe

from txnlog_kafka.host.client import Client
from txnlog_spark.client_cache import ConnectionSettings
from txnlog_spark.errors import TxnLogError
from txnlog_spark.sink.committer import commit_batch_write
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.source.batch import TxnLogBatchReader
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader

INPUT_ROWS = 20
"""Rows of the input; the second of two batches ends after the last row."""

READ_INPUT = Acl("READ", "TOPIC", "{in}")
WRITE_OUTPUT = Acl("WRITE", "TOPIC", "{out}")

DOCUMENTED: dict[str, tuple[Acl, ...]] = {
    "stream with group.id": (
        Acl("WRITE", "TRANSACTIONAL_ID", "txnlog-{group}"),
        WRITE_OUTPUT,
        READ_INPUT,
        Acl("READ", "GROUP", "{group}"),
        Acl("READ", "GROUP", "{group}.progress.*"),
    ),
    "stream without group.id": (
        Acl("WRITE", "TRANSACTIONAL_ID", "txnlog-{query}"),
        WRITE_OUTPUT,
        READ_INPUT,
        Acl("READ", "GROUP", "txnlog-{query}.progress.*"),
    ),
    "source": (READ_INPUT,),
    "source from committed": (READ_INPUT, Acl("DESCRIBE", "GROUP", "{group}")),
    "batch read": (READ_INPUT,),
    "batch write": (
        Acl("WRITE", "TRANSACTIONAL_ID", "txnlog-write-*"),
        WRITE_OUTPUT,
        Acl("READ", "TOPIC", "{out}"),
        Acl("READ", "GROUP", "txnlog-write-*"),
        Acl("DELETE", "GROUP", "txnlog-write-*"),
    ),
    "batch write with txnAppId": (
        Acl("WRITE", "TRANSACTIONAL_ID", "txnlog-app-{app}.*"),
        WRITE_OUTPUT,
        Acl("READ", "TOPIC", "{out}"),
        Acl("READ", "GROUP", "{app}.progress.*"),
    ),
    "batch write with sourceOffsets": (
        Acl("WRITE", "TRANSACTIONAL_ID", "txnlog-write-*"),
        WRITE_OUTPUT,
        READ_INPUT,
        Acl("READ", "GROUP", "{group}"),
        Acl("READ", "GROUP", "{group}.progress.*"),
        Acl("DELETE", "GROUP", "{group}.progress.*"),
    ),
}
"""READ and WRITE include DESCRIBE."""


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[Callable[[str], Any]]:
    """Return a function that starts a broker of each kind when a test first asks for the kind."""
    with started_when_asked(SECURED_BROKERS, tmp_path_factory.mktemp) as broker_of:
        yield broker_of


@pytest.fixture
def kafka(broker_name: str, started: Callable[[str], Any]) -> Any:
    """Each of both brokers."""
    return started(broker_name)


@dataclass
class World:
    """Topics, a group and an application's name, and what each kind of work does with them."""

    query: Query
    app: str
    client_id: str

    @property
    def connection(self) -> ConnectionSettings:
        """A client of its own, which has not seen anything while everything was allowed."""
        named = {
            "kafka.bootstrap.servers": self.query.bootstrap,
            "kafka.client.id": self.client_id,
            "kafka.default.api.timeout.ms": 20_000,
        }
        return ConnectionSettings.of(named)

    def acls(self, kind: str) -> list[Acl]:
        """The documented ones, with this world's names."""
        names = {
            "in": self.query.input,
            "out": self.query.output,
            "group": self.query.group,
            "query": self.query.query_id,
            "app": self.app,
        }
        return [replace(acl, name=acl.name.format(**names)) for acl in DOCUMENTED[kind]]

    def prepare(self, kind: str) -> None:
        """Create the group's offsets, which the work of this kind needs before it starts."""
        if kind == "source from committed":
            start_group(self.query.bootstrap, self.query.group, self.query.input, 1)

    def work(self, kind: str) -> None:
        """Do what a driver and its tasks do. Raises what the brokers refuse."""
        {
            "stream with group.id": self._stream,
            "stream without group.id": self._stream_without_group,
            "source": lambda: self._source(startingOffsets="earliest"),
            "source from committed": lambda: self._source(
                **{"startingOffsets": "committed", "kafka.group.id": self.query.group}
            ),
            "batch read": self._batch_read,
            "batch write": self._batch_write,
            "batch write with txnAppId": lambda: self._batch_write(
                txnAppId=self.app, txnVersion="1"
            ),
            "batch write with sourceOffsets": lambda: self._batch_write(
                **{
                    "kafka.group.id": self.query.group,
                    "sourceOffsets": json.dumps({self.query.input: {"0": 10}}),
                }
            ),
        }[kind]()

    def _stream(self) -> None:
        self.query.settings = replace(self.query.settings, connection=self.connection)
        self.query.commit(0, ["a", "bb"])
        self.query.commit(1, ["c"])

    def _stream_without_group(self) -> None:
        self.query.settings = replace(self.query.settings, group_id=None)
        self._stream()

    def _source(self, **options: str) -> None:
        base = {"kafka.bootstrap.servers": self.query.bootstrap, "subscribe": self.query.input}
        settings = read_source_settings(base | options, streaming=True)
        reader = TxnLogStreamReader(replace(settings, connection=self.connection))
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        if end == start or not reader.partitions(start, end):
            start, end = end, reader.latestOffset(end, ReadAllAvailable())
        _read_all(reader, reader.partitions(start, end))

    def _batch_read(self) -> None:
        base = {"kafka.bootstrap.servers": self.query.bootstrap, "subscribe": self.query.input}
        settings = read_source_settings(base, streaming=False)
        reader = TxnLogBatchReader(replace(settings, connection=self.connection))
        _read_all(reader, reader.partitions())

    def _batch_write(self, **options: str) -> None:
        base = {"kafka.bootstrap.servers": self.query.bootstrap, "topic": self.query.output}
        settings = read_sink_settings(base | options, streaming=False)
        settings = replace(settings, connection=self.connection)
        write_id = f"write-{self.client_id}"
        outcome = commit_batch_write(settings, [self.query.stage(0, ["a", "bb"], "run")], write_id)
        assert outcome is not None


def start_group(bootstrap: str, group: str, topic: str, partitions: int) -> None:
    """The group's committed offsets are where the topic begins."""
    with Client(bootstrap) as client:
        begin = {(topic, number): 0 for number in range(partitions)}
        client.commit_offsets(group, begin)


def _read_all(reader: TxnLogStreamReader | TxnLogBatchReader, partitions) -> None:
    rows = sum(batch.num_rows for part in partitions for batch in reader.read(part))
    assert rows == INPUT_ROWS


@pytest.fixture
def world(kafka: Any, tmp_path: Path, unique: Callable[[str], str]) -> World:
    query = Query(kafka, tmp_path / "checkpoint", unique)
    produce_values(kafka.bootstrap_servers, query.input, map(str, range(INPUT_ROWS)))
    return World(query, unique("app"), unique("client"))


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_the_documented_acls_are_enough(
    kafka: Any, world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.prepare(kind)
    with kafka.security.only(world.acls(kind)), caplog.at_level(logging.WARNING):
        world.work(kind)
    assert "AUTHORIZATION_FAILED" not in caplog.text
    if "write" in kind:
        assert world.query.values() == ["a", "bb"]
    if "stream" in kind:
        assert world.query.values() == ["a", "bb", "c"]


EACH = [
    pytest.param(kind, number, id=f"{kind}: {acl}")
    for kind, acls in DOCUMENTED.items()
    for number, acl in enumerate(acls)
    if acl.operation != "DELETE"
]


@pytest.mark.parametrize("left", ["DESCRIBE", "nothing on the resource"])
@pytest.mark.parametrize(("kind", "number"), EACH)
def test_one_that_is_missing_is_named_with_its_resource(
    kafka: Any, world: World, kind: str, number: int, left: str
) -> None:
    """DESCRIBE is left of it, where it included that: the very first request needs it."""
    world.prepare(kind)
    acls = world.acls(kind)
    missing = acls.pop(number)
    named, operation = (missing.resource_type, missing.name), "grant "
    if left != "DESCRIBE":
        acls = [acl for acl in acls if (acl.resource_type, acl.name) != named]
    else:
        operation += f"{missing.operation} "
        if missing.operation != "DESCRIBE":
            acls.append(replace(missing, operation="DESCRIBE"))
    with kafka.security.only(acls), pytest.raises(TxnLogError) as caught:
        world.work(kind)
    text = str(caught.value)
    assert operation in text
    assert f" '{missing.name.rstrip('*')}" in text
    assert f"{missing.resource_type}_AUTHORIZATION_FAILED" in text
    assert world.query.values() == []


@pytest.mark.parametrize("kind", ["batch write", "batch write with sourceOffsets"])
def test_a_batch_write_that_may_not_delete_its_group_is_done_and_says_what_to_grant(
    kafka: Any, world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    acls = [acl for acl in world.acls(kind) if acl.operation != "DELETE"]
    with kafka.security.only(acls), caplog.at_level(logging.WARNING):
        world.work(kind)
    assert "the write is committed" in caplog.text
    assert "grant DELETE on group" in caplog.text
    assert world.query.values() == ["a", "bb"]


def test_an_output_that_is_not_there_yet_takes_create(
    kafka: Any, world: World, unique: Callable[[str], str]
) -> None:
    world.query.output = unique("auto-created")
    acls = world.acls("stream with group.id")
    with kafka.security.only(acls), pytest.raises(TxnLogError, match=world.query.output):
        world.work("stream with group.id")
    world.client_id = unique("client")
    with kafka.security.only([*acls, Acl("CREATE", "TOPIC", world.query.output)]):
        world.work("stream with group.id")
    assert world.query.values() == ["a", "bb", "c"]


@pytest.mark.live
@pytest.mark.slow
def test_a_whole_pipeline_in_spark_needs_no_more(
    connector_spark, kafka: Any, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    pipe = Pipe(connector_spark, kafka, tmp_path, unique)
    pipe.feed(range(9))
    start_group(pipe.bootstrap, pipe.group, pipe.input, 3)
    acls = [
        Acl("WRITE", "TRANSACTIONAL_ID", f"txnlog-{pipe.group}"),
        Acl("WRITE", "TOPIC", pipe.output),
        Acl("READ", "TOPIC", pipe.input),
        Acl("READ", "GROUP", pipe.group),
        Acl("READ", "GROUP", f"{pipe.group}.progress.*"),
    ]
    with kafka.security.only(acls):
        pipe.copy(source={"startingOffsets": "committed"})
        assert pipe.read().count() == 9
    assert pipe.output_values() == sorted(str(n) for n in range(9))
