"""SQL: the views and tables that Spark can hand to a Python source, and what it says of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.harness.printed import code_blocks
from support.spark.api_calls import COLUMNS
from support.spark.connector import Pipe, error_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def fed(pipe: Pipe) -> Pipe:
    """The input has five records."""
    pipe.feed(range(5))
    return pipe


def options_of(pipe: Pipe, equals: str) -> str:
    return (
        f"'kafka.bootstrap.servers' {equals} '{pipe.bootstrap}', subscribe {equals} '{pipe.input}'"
    )


def test_the_temporary_view_of_the_documents_is_read_and_joined(fed: Pipe) -> None:
    (text,) = code_blocks("sql", (DOCS / "reading.md").read_text())
    text = text.replace("host:9092", fed.bootstrap).replace("'orders'", f"'{fed.input}'")
    create, query = text.split(";")
    fed.spark.sql(create)
    try:
        assert fed.spark.sql(query).first()[0] == 5
        both = fed.spark.sql("SELECT * FROM orders a JOIN orders b ON a.value = b.value")
        assert both.count() == 5
    finally:
        fed.spark.catalog.dropTempView("orders")


def test_a_table_with_columns_is_read_with_the_options_of_the_query(
    fed: Pipe, unique: Callable[[str], str]
) -> None:
    name = unique("orders").replace("-", "_")
    spark = fed.spark
    spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING txnlog OPTIONS ({options_of(fed, '')})")
    try:
        assert spark.sql(f"SELECT * FROM {name} WITH ({options_of(fed, '=')})").count() == 5
        reader = spark.read.option("kafka.bootstrap.servers", fed.bootstrap)
        assert reader.option("subscribe", fed.input).table(name).count() == 5
        error = error_of(lambda: spark.sql(f"SELECT * FROM {name}").count())
        assert "option kafka.bootstrap.servers: set it" in error
    finally:
        spark.sql(f"DROP TABLE {name}")


def test_a_table_without_columns_is_refused_with_what_works(
    fed: Pipe, unique: Callable[[str], str]
) -> None:
    name = unique("orders").replace("-", "_")
    create = f"CREATE TABLE {name} USING txnlog OPTIONS ({options_of(fed, '')})"
    error = error_of(lambda: fed.spark.sql(create))
    assert "CREATE TEMPORARY VIEW ... USING txnlog OPTIONS (...)" in error
    assert "SELECT ... WITH (...)" in error


def test_views_and_tables_have_columns_of_a_format_and_rows_are_inserted_into_them(
    fed: Pipe, unique: Callable[[str], str]
) -> None:
    spark, view, table = fed.spark, *(unique(name).replace("-", "_") for name in ("v", "t"))
    schema = "'value.format' {0} 'json', 'value.schema' {0} 'id BIGINT, item STRING'"
    rows = spark.createDataFrame([(1, "anvil"), (2, "rope")], "id BIGINT, item STRING")
    rows.createOrReplaceTempView(f"{view}_rows")
    target = f"'kafka.bootstrap.servers' '{fed.bootstrap}', topic '{fed.output}', "
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, item STRING) USING txnlog "
        f"OPTIONS ({target} 'value.format' 'json', 'value.columns' '*')"
    )
    options = options_of(fed, "").replace(fed.input, fed.output)
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING txnlog OPTIONS ({options}, {schema.format('')})")
    try:
        write = "'kafka.bootstrap.servers' = '{}', topic = '{}', 'value.format' = 'json', "
        write = write.format(fed.bootstrap, fed.output) + "'value.columns' = '*'"
        spark.sql(f"INSERT INTO {table} WITH ({write}) SELECT * FROM {view}_rows")
        found = spark.sql(f"SELECT value.item FROM {view} ORDER BY value.id").collect()
        assert [row.item for row in found] == ["anvil", "rope"]
    finally:
        spark.sql(f"DROP TABLE {table}")
        spark.catalog.dropTempView(view)


def test_what_spark_says_itself_is_in_the_documents(fed: Pipe) -> None:
    pages = ("reading.md", "migration.md")
    text = " ".join(word for name in pages for word in (DOCS / name).read_text().split())
    with pytest.raises(PySparkException) as direct:
        fed.spark.sql(f"SELECT * FROM txnlog.`{fed.input}`")
    told = "Unsupported data source type for direct query on files"
    assert told in str(direct.value)
    assert told in text
    counts = fed.stream().groupBy("value").count().select("value")
    query = fed.write(counts).outputMode("update").trigger(availableNow=True).start()
    with pytest.raises(PySparkException) as update:
        query.awaitTermination()
    told = "txnlog does not support Update mode"
    assert told in str(update.value)
    assert told in text
