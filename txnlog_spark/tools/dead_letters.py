"""`dead-letters show` and `replay`: show a topic of dead letters, or write them back to their
topics.

Both are batch reads. `show` reads in this process; `replay` starts its own Spark session. A replay
writes the original key, value and headers, and commits its read offsets in the same transaction. So
each dead letter is written back once, however often the command runs, until the offsets expire.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txnlog_kafka.host.client import Client
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.deadletters import HEADER_PREFIX
from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_spark.offsets import EARLIEST_OFFSET, LATEST_OFFSET, SourceOffset, format_offsets
from txnlog_spark.spark_version import require_pyspark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

_SHOWN = ("topic", "partition", "offset", "stage", "exception.message")


@contextmanager
def session_for_tools() -> Iterator[SparkSession]:
    """Start a session on this machine, or connect to SPARK_REMOTE.

    Raises TxnLogError for Spark's errors, and ImportError if PySpark is missing or too old.
    """
    require_pyspark()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    sys.stderr.write("txnlog_spark: starting a Spark session, which takes a while\n")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("txnlog-dead-letters")
    if "SPARK_REMOTE" not in os.environ:
        builder = builder.master("local[*]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", "1")
    session = builder.getOrCreate()
    try:
        yield session
    except PySparkException as error:
        lines = str(error).splitlines()
        raise TxnLogError(next((line for line in lines if "[TXNLOG_" in line), lines[0])) from error
    finally:
        session.stop()


def _header(name: str) -> Column:
    """Return the last header of Kafka Connect with this name: a record may be dead again."""
    from pyspark.sql import functions as f

    wanted = f.filter("headers", lambda each: each["key"] == HEADER_PREFIX + name)
    texts = f.transform(wanted, lambda each: each["value"].cast("string"))
    return f.try_element_at(texts, f.lit(-1))


def show(where: Mapping[str, str], topic: str, rows_max: int) -> dict[str, Any]:
    """Return the number of dead letters in the topic, and the first of them, without Spark's JVM.

    `where` has the brokers and the security as options. Raises ImportError if PySpark is missing or
    too old.
    """
    require_pyspark()
    from txnlog_spark.source.batch import TxnLogBatchReader
    from txnlog_spark.source.settings import read_source_settings

    options = {**where, "subscribe": topic, "includeHeaders": "true"}
    reader = TxnLogBatchReader(read_source_settings(options, streaming=False))
    count, first = 0, list[tuple[int, int, str]]()
    for task in reader.partitions():
        for rows in reader.read(task):
            count += rows.num_rows
            shown = (_shown(row) for row in rows.slice(length=rows_max).to_pylist())
            first = sorted([*first, *shown])[:rows_max]
    return {
        "topic": topic,
        "dead_letters": count,
        "first": {f"{topic}-{partition} at {offset}": said for partition, offset, said in first},
    }


def _shown(row: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return a record's partition and offset, and a text from its last header of each name."""
    given = {each["key"]: each["value"] for each in row["headers"] or ()}
    values = (given.get(HEADER_PREFIX + name) for name in _SHOWN)
    texts = (None if value is None else value.decode("utf-8", "replace") for value in values)
    topic, partition, offset, stage, message = texts
    said = f"{topic}-{partition} at {offset}, {stage}: {message}"
    if topic is None:
        said = f"no dead letter: it has no header {HEADER_PREFIX}topic"
    return row["partition"], row["offset"], said


def replay(
    session: SparkSession,
    client: Client,
    where: Mapping[str, str],
    topic: str,
    to: str | None,
    *,
    execute: bool,
) -> dict[str, Any]:
    """Write back the dead letters that were not written back before; without `execute` count them.

    Raises OptionError for a record without the header that names its topic, unless `to` is set.
    """
    # The group of the topic remembers how far earlier replays have come.
    group_id = f"txnlog-dead-letters-{topic}"
    starts, ends = _left(client, group_id, topic)
    found: dict[str, Any] = {"topic": topic, "group_id": group_id, "executed": execute}
    wanted = {"subscribe": topic, "includeHeaders": "true"}
    wanted |= {"startingOffsets": format_offsets(starts), "endingOffsets": format_offsets(ends)}
    rows = session.read.format("txnlog").options(**where, **wanted).load()
    records = _records(rows, to)
    counts = {row["topic"]: row["count"] for row in records.groupBy("topic").count().collect()}
    # A record without a topic would be lost: refuse all before anything is written.
    lost = counts.get(None)
    if lost:
        raise OptionError(
            "--to",
            None,
            f"set it to a topic: {lost} records of {topic} have no header {HEADER_PREFIX}topic, "
            "which would say where they belong",
        )
    found["dead_letters"] = sum(counts.values())
    found["to"] = counts
    # One transaction has the records and the offsets; txnVersion skips a second run of the same.
    if execute and counts:
        writer = records.write.format("txnlog").options(**where).mode("append")
        writer.options(
            txnAppId=group_id,
            txnVersion=str(sum(ends.values())),
            sourceOffsets=format_offsets(ends),
            **{"kafka.group.id": group_id},
        ).save()
    return found


def _left(client: Client, group_id: str, topic: str) -> tuple[SourceOffset, SourceOffset]:
    """Return the start and the end offsets of the part that has not been written back."""
    wanted = [TopicPartition(topic, number) for number in client.topic_partitions([topic])[topic]]
    first, last = (
        client.list_offsets(dict.fromkeys(wanted, spec), read_committed=True)
        for spec in (EARLIEST_OFFSET, LATEST_OFFSET)
    )
    committed = client.committed_offsets(group_id, partitions=wanted)
    starts = {each: max(committed.get(each, 0), first[each].offset) for each in wanted}
    return starts, {each: last[each].offset for each in wanted}


def _records(rows: DataFrame, to: str | None) -> DataFrame:
    """Return the original records, for the topic `to`, else for their former topics.

    The headers that describe the error are removed.
    """
    from pyspark.sql import functions as f

    own = f.filter("headers", lambda each: ~each["key"].startswith(HEADER_PREFIX))
    topic = _header("topic") if to is None else f.lit(to)
    return rows.select("key", "value", topic.alias("topic"), own.alias("headers"))
