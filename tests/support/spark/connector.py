"""A connector's query in the tests' own Spark session: fed, run, and looked at from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.brokers.prepared import wait_until_marked
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of
from support.spark.spark_copy import OUR_ERROR, SMALL, java_options

QUERY_SECONDS_MAX = 600
PARTITIONS = 3


def start_session(master: str, **config: str) -> SparkSession:
    """A session that is small and quiet."""
    builder = SparkSession.builder.master(master).appName("connector-tests")
    settings = {
        **SMALL,
        **java_options(),
        "spark.driver.memory": "700m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **config,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def shown_error(error: BaseException) -> str:
    """Return the line in which Spark shows our error to the user; fail unless there is exactly
    one."""
    ours = {found[0].strip() for found in OUR_ERROR.finditer(str(error))}
    if len(ours) != 1:
        raise AssertionError(f"{len(ours)} lines of ours in:\n{error}")
    return ours.pop()


class Pipe:
    """An input topic, an output topic, a checkpoint, and the options that tie them together."""

    def __init__(
        self, spark: SparkSession, broker: Any, folder: Path, unique: Callable[[str], str]
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.bootstrap = broker.bootstrap_servers
        self.checkpoint = folder / "checkpoint"
        self.group = unique("group")
        self.input = create_topic(self.bootstrap, unique("in"), PARTITIONS)
        self.output = create_topic(self.bootstrap, unique("out"), PARTITIONS)

    def feed(self, values: Iterable[object], topic: str | None = None, **settings) -> None:
        """Produce values; the key is the value."""
        texts = [str(value) for value in values]
        produce_values(self.bootstrap, topic or self.input, texts, **settings)

    def output_values(self, isolation: str = "read_committed") -> list[str]:
        """The output's values, sorted, as librdkafka reads them."""
        return values_of(read_topic(self.bootstrap, self.output, isolation=isolation))

    def stream(self, name: str | None = None, **options: object) -> DataFrame:
        """A read of the input; `name` is that of the source in Spark's offset log."""
        defaults = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.input,
            "startingOffsets": "earliest",
            "kafka.group.id": self.group,
        }
        reader = self.spark.readStream.format("txnlog")
        reader = reader if name is None else reader.name(name)
        return reader.options(**_given(defaults | options)).load()

    def write(self, rows: DataFrame, **options: object) -> Any:
        defaults = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.output,
            "checkpointLocation": str(self.checkpoint),
            "kafka.group.id": self.group,
        }
        return rows.writeStream.format("txnlog").options(**_given(defaults | options))

    def copy(
        self,
        source: dict[str, object] | None = None,
        sink: dict[str, object] | None = None,
        transform: Callable[[DataFrame], DataFrame] | None = None,
    ) -> StreamingQuery:
        """Run the copy query to the input's present end; raises what it failed with."""
        rows = self.stream(**(source or {}))
        rows = transform(rows) if transform else rows.select("key", "value")
        return finish(self.write(rows, **(sink or {})).trigger(availableNow=True).start())

    def copy_error(self, **how: Any) -> str:
        """Run the copy query, which must fail, and return the one line that says why."""
        return error_of(lambda: self.copy(**how))

    def read(self, topic: str | None = None, **options: object) -> DataFrame:
        wait_until_marked(self.bootstrap)
        defaults = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic or self.input}
        return self.spark.read.format("txnlog").options(**_given(defaults | options)).load()

    def save(self, rows: DataFrame, **options: object) -> None:
        defaults = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.output}
        rows.write.format("txnlog").options(**_given(defaults | options)).mode("append").save()

    def rows(self, values: Iterable[object]) -> DataFrame:
        return self.spark.createDataFrame([(str(v),) for v in values], "value string")

    def logged(self, log: str) -> list[int]:
        """The batch ids in the checkpoint's log `offsets` or `commits`."""
        return sorted(int(p.name) for p in (self.checkpoint / log).glob("[0-9]*"))

    def source_lines(self) -> list[dict[str, Any]]:
        """The source's line of every batch in the offset log."""
        files = [self.checkpoint / "offsets" / str(n) for n in self.logged("offsets")]
        return [json.loads(file.read_text().splitlines()[2]) for file in files]

    def lose(self, log: str, batch_id: int) -> None:
        """Delete one file of a checkpoint log, with its checksum."""
        (self.checkpoint / log / str(batch_id)).unlink()
        (self.checkpoint / log / f".{batch_id}.crc").unlink(missing_ok=True)

    @property
    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])


def finish(query: StreamingQuery) -> StreamingQuery:
    """Wait for the query's end; raises what it failed with."""
    try:
        if not query.awaitTermination(QUERY_SECONDS_MAX):
            raise AssertionError(f"the query hangs: {query.status}")
    finally:
        query.stop()
    return query


def error_of(action: Callable[[], object]) -> str:
    """The one line of ours in the error that `action` must raise."""
    try:
        action()
    except PySparkException as error:
        return shown_error(error)
    raise AssertionError("no error was raised")


def _given(options: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}
