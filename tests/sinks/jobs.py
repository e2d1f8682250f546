"""Jobs that copy orders to one sink each, the way its own documentation has it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.spark.order_jobs import (
    as_records,
    each_batch,
    orders,
    orders_of,
    plain_write,
    started,
    to_files,
    to_topic,
)

from txnlog_spark import foreach_batch
from txnlog_testing import Files, Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "tested"))

import test_topic_and_table

ORDERS = orders_of(60)
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ICEBERG = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
}


@dataclass(frozen=True)
class Sink:
    """Row of the page: its job, where the output is, and the jars and settings that it needs."""

    name: str
    job: Callable[..., Any]
    output: Any = "out"
    jars: Sequence[str] = ()
    config: dict[str, str] = field(default_factory=dict)


def spark_kafka(spark, kafka, checkpoint):
    writer = as_records(orders(spark, kafka, "kafka")).writeStream.format("kafka")
    return started(writer.options(**kafka.options, topic="out"), checkpoint)


def spark_kafka_batch(spark, kafka, checkpoint):
    def write(batch, batch_id):
        writer = as_records(batch).write.format("kafka")
        writer.options(**kafka.options, topic="out").save()

    return each_batch(spark, kafka, checkpoint, write)


def txnlog(spark, kafka, checkpoint):
    writer = as_records(orders(spark, kafka)).writeStream.format("txnlog")
    return started(writer.options(**kafka.options, topic="out"), checkpoint)


def txnlog_foreach_batch(spark, kafka, checkpoint):
    sink = foreach_batch(as_records, **kafka.options, topic="out", checkpointLocation=checkpoint)
    return each_batch(spark, kafka, checkpoint, sink)


def txnlog_versions(spark, kafka, checkpoint):
    def write(batch, batch_id):
        plain_write(batch, kafka, txnAppId="copy", txnVersion=str(batch_id))

    return each_batch(spark, kafka, checkpoint, write)


def files(spark, kafka, checkpoint):
    writer = orders(spark, kafka).writeStream.format("parquet")
    return started(writer.option("path", kafka.path("out")), checkpoint)


def jdbc_append(spark, kafka, checkpoint):
    return each_batch(spark, kafka, checkpoint, _jdbc_writer(kafka, "CREATE TABLE IF NOT EXISTS "
                      "orders (id INTEGER, shop TEXT)"))  # fmt: skip


def jdbc_append_key(spark, kafka, checkpoint):
    return each_batch(spark, kafka, checkpoint, _jdbc_writer(kafka, "CREATE TABLE IF NOT EXISTS "
                      "orders (id INTEGER PRIMARY KEY, shop TEXT)"))  # fmt: skip


def _jdbc_writer(kafka, create):
    def write(batch, batch_id):
        with sqlite3.connect(kafka.path("out.db")) as connection:
            connection.execute(create)
        writer = batch.coalesce(1).write.format("jdbc").mode("append")
        url = f"jdbc:sqlite:{kafka.path('out.db')}"
        writer.options(url=url, dbtable="orders", driver="org.sqlite.JDBC").save()

    return write


def sql_upsert(spark, kafka, checkpoint):
    """Upsert by key, in one transaction of the database."""

    def write(batch, batch_id):
        rows = [tuple(row) for row in batch.select("id", "shop").collect()]
        with sqlite3.connect(kafka.path("out.db")) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, shop TEXT)"
            )
            text = "INSERT INTO orders VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET shop = shop"
            connection.executemany(text, rows)

    return each_batch(spark, kafka, checkpoint, write)


def database(spark, kafka):
    with sqlite3.connect(kafka.path("out.db")) as connection:
        rows = connection.execute("SELECT id, shop FROM orders").fetchall()
    return [{"id": one, "shop": shop} for one, shop in rows]


def delta(spark, kafka, checkpoint):
    return started(
        orders(spark, kafka).writeStream.format("delta").option("path", kafka.path("out")),
        checkpoint,
    )


def delta_plain(spark, kafka, checkpoint):
    def write(batch, batch_id):
        batch.write.format("delta").mode("append").save(kafka.path("out"))

    return each_batch(spark, kafka, checkpoint, write)


def delta_versions(spark, kafka, checkpoint):
    def write(batch, batch_id):
        writer = batch.write.format("delta").mode("append").option("txnAppId", "copy")
        writer.option("txnVersion", batch_id).save(kafka.path("out"))

    return each_batch(spark, kafka, checkpoint, write)


def iceberg(spark, kafka, checkpoint):
    table = _iceberg_table(spark, kafka)
    writer = orders(spark, kafka).writeStream.format("iceberg").outputMode("append")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    return writer.toTable(table)


def _iceberg_table(spark, kafka):
    spark.conf.set("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.ice.type", "hadoop")
    spark.conf.set("spark.sql.catalog.ice.warehouse", kafka.path("warehouse"))
    spark.sql("CREATE TABLE IF NOT EXISTS ice.db.orders (id INT, shop STRING) USING iceberg")
    return "ice.db.orders"


def iceberg_rows(spark, kafka):
    return spark.table(_iceberg_table(spark, kafka))


DELTA_JARS = ("io.delta:delta-spark_4.1_2.13:4.2.0", "io.delta:delta-storage:4.2.0")
ICEBERG_JARS = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
SQLITE_JARS = ("org.xerial:sqlite-jdbc:3.54.1.0",)
SPARK_KAFKA = ("spark-sql-kafka",)
ROWS = Table(database, key=["id"], name="out.db")
DELTA_FILES = Files("out", "delta", key=["id"])

SINKS = (
    Sink("`txnlog`, stream", txnlog),
    Sink("`txnlog`, `foreach_batch`", txnlog_foreach_batch),
    Sink("`txnlog`, batch with `txnAppId` in foreachBatch", txnlog_versions),
    Sink("`txnlog`, plain batch in foreachBatch", to_topic),
    Sink("Spark's `kafka`, stream", spark_kafka, jars=SPARK_KAFKA),
    Sink("Spark's `kafka`, batch in foreachBatch", spark_kafka_batch, jars=SPARK_KAFKA),
    Sink("files (`parquet`), stream", files, Files("out", key=["id"])),
    Sink("files (`parquet`), batch in foreachBatch", to_files, Files("out", key=["id"])),
    Sink("JDBC (SQLite), table without a key", jdbc_append, ROWS, SQLITE_JARS),
    Sink("JDBC (SQLite), table with a primary key", jdbc_append_key, ROWS, SQLITE_JARS),
    Sink("SQL upsert by key (SQLite) in foreachBatch", sql_upsert, ROWS),
    Sink("Delta Lake, stream", delta, DELTA_FILES, DELTA_JARS, DELTA),
    Sink("Delta Lake, plain batch in foreachBatch", delta_plain, DELTA_FILES, DELTA_JARS, DELTA),
    Sink(
        "Delta Lake, batch with `txnAppId` in foreachBatch",
        delta_versions, DELTA_FILES, DELTA_JARS, DELTA,
    ),
    Sink(
        "a topic (`foreach_batch`) and a table (SQL upsert)",
        test_topic_and_table.job, ["out", test_topic_and_table.table],
    ),
    Sink("Iceberg, stream", iceberg, Table(iceberg_rows, ["id"], "table"), ICEBERG_JARS, ICEBERG),
)  # fmt: skip
