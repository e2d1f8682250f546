"""The public methods of Spark's readers and writers, as calls that any Kafka connector is given.

Each call is made with `kafka`, Spark's own connector, and with `txnlog`. `Outcome` is what must
come of the two; a call that only `kafka` takes names the row of docs/migration.md that says so.
"""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import (
    DataFrame,
    DataFrameReader,
    DataFrameWriter,
    DataFrameWriterV2,
    SparkSession,
)
from pyspark.sql import functions as sf
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery
from support.clients.librdkafka import read_topic, values_of
from support.spark.connector import finish

SERVERS = "kafka.bootstrap.servers"
NAME = 'it\'s "ü" / $\\ 名'
COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)


class Side:
    """Connector of one side, with a topic to read and a topic to write."""

    def __init__(
        self, spark: SparkSession, name: str, servers: str, topics: tuple[str, str], folder: Path
    ) -> None:
        self.spark = spark
        self.name = name
        self.input, self.output = topics
        self.servers = {SERVERS: servers}
        self._folder = folder
        self._numbers = itertools.count()
        self._seen: Counter[str] = Counter()

    @property
    def fresh(self) -> str:
        """A name that was not used before: of a table or a checkpoint."""
        return f"{self.name}_{next(self._numbers)}"

    def written(self) -> Counter[str]:
        """Return the values that were written to the output since the last call."""
        values = Counter(values_of(read_topic(self.servers[SERVERS], self.output)))
        new, self._seen = values - self._seen, values
        return new

    @property
    def read_options(self) -> dict[str, str]:
        return self.servers | {"subscribe": self.input, "startingOffsets": "earliest"}

    @property
    def write_options(self) -> dict[str, str]:
        return self.servers | {"topic": self.output}

    @property
    def checkpoint(self) -> dict[str, str]:
        return {"checkpointLocation": str(self._folder / self.fresh)}

    @property
    def reader(self) -> Any:
        return self.spark.read.format(self.name).options(**self.read_options)

    @property
    def stream_reader(self) -> Any:
        return self.spark.readStream.format(self.name).options(**self.read_options)

    @property
    def rows(self) -> DataFrame:
        return self.spark.createDataFrame([("a",), ("b",)], "value string")

    @property
    def writer(self) -> Any:
        """`write`, with all that is needed but a mode."""
        return self.rows.write.format(self.name).options(**self.write_options)

    @property
    def stream_writer(self) -> Any:
        """`writeStream` of the input to the output, with all that is needed."""
        return self.writer_of(self.stream_reader.load().select("value"))

    def writer_of(self, rows: DataFrame) -> Any:
        writer = rows.writeStream.format(self.name).options(**self.write_options, **self.checkpoint)
        return writer.trigger(availableNow=True)

    @property
    def counts(self) -> DataFrame:
        return self.stream_reader.load().groupBy("value").count().select("value")

    def table(self) -> str:
        name = self.fresh
        self.spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING {self.name}")
        return name

    def v2(self) -> Any:
        """`writeTo` a table that is not there, with all that is needed."""
        return self.rows.writeTo(self.fresh).using(self.name).options(**self.write_options)


def finished(query: StreamingQuery, name: str | None = None) -> None:
    """The query ends, and has read something."""
    finish(query)
    assert query.name == name
    assert sum(p.numInputRows for p in query.recentProgress) > 0


def one_batch(query: StreamingQuery) -> None:
    """A query that does not end by itself has a batch."""
    try:
        query.processAllAvailable()
    finally:
        query.stop()


class Outcome(enum.Enum):
    """Connectors with which a call works."""

    BOTH = "both"
    NEITHER = "neither"
    KAFKA = "kafka only"
    TXNLOG = "txnlog only"


@dataclass(frozen=True)
class Call:
    """Call of a method, with its expected outcome; `told` stands in docs/migration.md."""

    make: Callable[[Side], Any]
    outcome: Outcome = Outcome.BOTH
    told: str = ""


works = Call
refused = partial(Call, outcome=Outcome.NEITHER)
txnlog_only = partial(Call, outcome=Outcome.TXNLOG)


def kafka_only(told: str, make: Callable[[Side], Any]) -> Call:
    """Call that only `kafka` allows; `told` is what a job that changes over has to know."""
    return Call(make, Outcome.KAFKA, told)


def stream(change: Callable[[Any], Any], name: str | None = None) -> Callable[[Side], None]:
    return lambda side: finished(change(side.stream_writer).start(), name)


def stream_of(reader: Callable[[Side], DataFrame]) -> Callable[[Side], None]:
    """A query that reads so."""
    return lambda side: finished(side.writer_of(reader(side).select("value")).start())


def aggregation(mode: str) -> Callable[[Side], None]:
    return lambda side: finished(side.writer_of(side.counts).outputMode(mode).start())


def foreach_batch_writes(side: Side) -> None:
    def write(batch: DataFrame, _: int) -> None:
        writer = batch.select("value").write.format(side.name).options(**side.write_options)
        writer.mode("append").save()

    writer = side.stream_reader.load().writeStream.foreachBatch(write).options(**side.checkpoint)
    finished(writer.trigger(availableNow=True).start())


def foreach_writes_nothing(side: Side) -> None:
    writer = side.stream_reader.load().writeStream.foreach(len).options(**side.checkpoint)
    finished(writer.trigger(availableNow=True).start())


def named_source(side: Side) -> None:
    """Spark's offset log has the source by this name then."""
    side.spark.conf.set(SOURCE_NAMES, "true")
    try:
        reader = side.stream_reader.name("orders")
        finished(side.writer_of(reader.load().select("value")).start())
    finally:
        side.spark.conf.unset(SOURCE_NAMES)


def copied(side: Side) -> Any:
    """`writeTo` a table of the connector, of the rows of a read."""
    return side.reader.load().writeTo(side.table()).options(**side.write_options)


SOURCE_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
PATH = "| a path in `load`, `start`, `save` |"
MODE = "| batch write |"
LAYOUT = "| `write.partitionBy`, `write.clusterBy` |"
UPDATE = "| output mode `update` |"
TRIGGERS = "| continuous and real-time trigger, Kerberos |"

STREAM_WRITER = {
    "format": works(stream(lambda w: w)),
    "option": works(stream(lambda w: w.option("Kafka.Client.Id", NAME))),
    "options": works(stream(lambda w: w.options(**{"kafka.client.id": NAME}))),
    "queryName": works(stream(lambda w: w.queryName("orders"), "orders")),
    "queryName: any characters": works(stream(lambda w: w.queryName(NAME), NAME)),
    "queryName: blank": refused(stream(lambda w: w.queryName(" "))),
    "start": works(
        lambda s: finished(s.stream_writer.start(None, s.name, "append", "value", "named"), "named")
    ),
    "start: path": kafka_only(PATH, lambda s: finished(s.stream_writer.start("/nowhere"))),
    "outputMode: append": works(stream(lambda w: w.outputMode("append"))),
    "outputMode: complete": works(aggregation("complete")),
    "outputMode: complete without an aggregation": refused(
        stream(lambda w: w.outputMode("complete"))
    ),
    "outputMode: update": kafka_only(UPDATE, aggregation("update")),
    "outputMode: append of an aggregation": refused(aggregation("append")),
    "partitionBy": works(stream(lambda w: w.partitionBy("value"))),
    "clusterBy": works(stream(lambda w: w.clusterBy("value"))),
    "trigger: processingTime": works(
        lambda s: one_batch(s.stream_writer.trigger(processingTime="0 seconds").start())
    ),
    "trigger: availableNow": works(stream(lambda w: w.trigger(availableNow=True))),
    "trigger: once": works(stream(lambda w: w.trigger(once=True))),
    "trigger: continuous": kafka_only(
        TRIGGERS, lambda s: s.stream_writer.trigger(continuous="1 second").start().stop()
    ),
    "trigger: realTime": kafka_only(
        TRIGGERS,
        lambda s: s.stream_writer.outputMode("update").trigger(realTime="5 seconds").start().stop(),
    ),
    "foreach": works(foreach_writes_nothing),
    "foreachBatch": works(foreach_batch_writes),
    "toTable": txnlog_only(lambda s: finished(s.stream_writer.toTable(s.fresh))),
    "toTable: one that is there": txnlog_only(
        lambda s: finished(s.writer_of(s.stream_reader.load()).toTable(s.table()))
    ),
}
STREAM_READER = {
    "format": works(stream_of(lambda s: s.stream_reader.load())),
    "option": works(stream_of(lambda s: s.stream_reader.option("INCLUDEHEADERS", True).load())),
    "options": works(stream_of(lambda s: s.stream_reader.options(includeHeaders=True).load())),
    "load": works(stream_of(lambda s: s.spark.readStream.load(format=s.name, **s.read_options))),
    "load: path": kafka_only(PATH, stream_of(lambda s: s.stream_reader.load("/nowhere"))),
    "schema": txnlog_only(stream_of(lambda s: s.stream_reader.schema(COLUMNS).load())),
    "schema: another": refused(stream_of(lambda s: s.stream_reader.schema("value INT").load())),
    "table": txnlog_only(
        stream_of(lambda s: s.spark.readStream.options(**s.read_options).table(s.table()))
    ),
    "name": works(named_source),
    "changes": refused(lambda s: s.stream_reader.changes(s.table())),
}
WRITER = {
    "format": works(lambda s: s.writer.mode("append").save()),
    "option": works(lambda s: s.writer.mode("append").option("kafka.client.id", NAME).save()),
    "options": works(lambda s: s.writer.mode("append").options(INCLUDEheaders=True).save()),
    "mode: append": works(lambda s: s.writer.mode("append").save()),
    "mode: none": kafka_only(MODE, lambda s: s.writer.save()),
    "mode: error": kafka_only(MODE, lambda s: s.writer.mode("error").save()),
    "mode: overwrite": refused(lambda s: s.writer.mode("overwrite").save()),
    "mode: ignore": refused(lambda s: s.writer.mode("ignore").save()),
    "save": works(lambda s: s.rows.write.save(None, s.name, "append", **s.write_options)),
    "save: path": kafka_only(PATH, lambda s: s.writer.mode("append").save("/nowhere")),
    "partitionBy": kafka_only(
        LAYOUT, lambda s: s.writer.mode("append").partitionBy("value").save()
    ),
    "clusterBy": kafka_only(LAYOUT, lambda s: s.writer.mode("append").clusterBy("value").save()),
    "bucketBy": refused(lambda s: s.writer.mode("append").bucketBy(2, "value").save()),
    "sortBy": refused(
        lambda s: s.writer.mode("append").bucketBy(2, "value").sortBy("value").save()
    ),
    "saveAsTable": txnlog_only(lambda s: s.writer.saveAsTable(s.fresh)),
    "insertInto": refused(
        lambda s: s.reader.load().write.options(**s.write_options).insertInto(s.table())
    ),
}
WRITER_V2 = {
    "using": txnlog_only(lambda s: s.v2().create()),
    "option": txnlog_only(lambda s: s.v2().option("kafka.client.id", NAME).create()),
    "options": txnlog_only(lambda s: s.v2().options(includeHeaders=True).create()),
    "tableProperty": txnlog_only(lambda s: s.v2().tableProperty("a", "b").create()),
    "partitionedBy": txnlog_only(lambda s: s.v2().partitionedBy(sf.col("value")).create()),
    "clusterBy": txnlog_only(lambda s: s.v2().clusterBy("value").create()),
    "create": txnlog_only(lambda s: s.v2().create()),
    "append": txnlog_only(lambda s: copied(s).append()),
    "append: a table that is not there": refused(lambda s: s.v2().append()),
    "replace": refused(lambda s: s.rows.writeTo(s.table()).using(s.name).replace()),
    "createOrReplace": refused(lambda s: s.v2().createOrReplace()),
    "overwrite": refused(lambda s: copied(s).overwrite(sf.lit(True))),
    "overwritePartitions": refused(lambda s: copied(s).overwritePartitions()),
}
READER = {
    "format": works(lambda s: s.reader.load().collect()),
    "option": works(lambda s: s.reader.option("MinPartitions", 2).load().collect()),
    "options": works(lambda s: s.reader.options(minPartitions=2).load().collect()),
    "load": works(lambda s: s.spark.read.load(format=s.name, **s.read_options).collect()),
    "load: path": kafka_only(PATH, lambda s: s.reader.load("/nowhere").collect()),
    "load: paths": kafka_only(PATH, lambda s: s.reader.load(["/nowhere", "/there"]).collect()),
    "schema": works(lambda s: s.reader.schema(COLUMNS).load().collect()),
    "schema: another": refused(lambda s: s.reader.schema("value INT").load().collect()),
    "table": txnlog_only(
        lambda s: s.spark.read.options(**s.read_options).table(s.table()).collect()
    ),
    "changes": refused(lambda s: s.reader.changes(s.table())),
}
CALLS: dict[type, dict[str, Call]] = {
    DataStreamWriter: STREAM_WRITER,
    DataStreamReader: STREAM_READER,
    DataFrameWriter: WRITER,
    DataFrameWriterV2: WRITER_V2,
    DataFrameReader: READER,
}
"""The method, and after a colon what of it."""
OTHER_FORMATS = {"csv", "jdbc", "json", "orc", "parquet", "text", "xml"}
"""Methods that are `format` and `load` or `save` of a format that is not Kafka's."""
