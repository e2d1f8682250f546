"""Options that Spark itself adds to a source or a sink are accepted."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from txnlog_spark.datasource import TxnLogDataSource
from txnlog_spark.errors import OptionError
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
SPARK_ADDS = {
    "DataStreamWriter.queryName": ("queryName", Use.WRITE_STREAM),
    "DataStreamWriter.start": ("path", Use.WRITE_STREAM),
    "DataStreamWriter.option": ("checkpointLocation", Use.WRITE_STREAM),
    "DataStreamReader.load": ("path", Use.READ_STREAM),
    "DataFrameReader.load": ("path", Use.READ_BATCH),
    "DataFrameWriter.save": ("path", Use.WRITE_BATCH),
}
"""Options that Spark 4.2 and 4.3 add, by the method; Spark Connect and pipelines add the same."""


@pytest.mark.parametrize(("name", "use"), SPARK_ADDS.values(), ids=SPARK_ADDS)
def test_what_spark_adds_to_the_options_is_understood(name: str, use: Use) -> None:
    for value in ("orders", "ü/'\"$#:\\"):
        assert parse_options(CaseInsensitiveDict({name: value}), use)[name] == value


def test_the_name_of_a_query_may_be_blank_as_spark_has_it() -> None:
    assert parse_options({"queryName": " "}, Use.WRITE_STREAM)["queryName"] == " "


def test_create_table_without_columns_is_told_what_works() -> None:
    """Spark's V2SessionCatalog asks for the schema with the table's properties."""
    table = {"provider": "txnlog", "owner": "me", "subscribe": "in", "option.subscribe": "in"}
    with pytest.raises(OptionError) as caught:
        TxnLogDataSource(CaseInsensitiveDict({**SERVERS, **table})).schema()
    text = str(caught.value)
    assert "CREATE TABLE" in text
    assert "CREATE TEMPORARY VIEW" in text
    assert "WITH" in text
