"""`format("txnlog")`: the entry points that Spark calls for a reader or a writer.

    spark.readStream.format("txnlog").option("kafka.bootstrap.servers", ...)
         .option("subscribe", "orders").load()
    df.writeStream.format("txnlog").option("kafka.bootstrap.servers", ...)
      .option("topic", "out").option("checkpointLocation", ...).start()

Schema and options match Spark's Kafka connector (`options.OPTIONS`). Wrong options are refused
here, before anything is read or written; each message says what to do.

Spark loads this module in a new process for every lookup of a data source, including other sources,
and for every step of planning. So modules that only a reader or a writer needs are imported in the
methods.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from txnlog_spark.spark_version import require_pyspark

require_pyspark()  # an older PySpark lacks the next imports, and its error would not say why

# isort: split

from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType  # noqa: E402

from txnlog_spark.errors import OptionError, TxnLogError  # noqa: E402
from txnlog_spark.formats.read_formats import ReadFormats, read_formats  # noqa: E402
from txnlog_spark.options.declared import Use  # noqa: E402
from txnlog_spark.options.parse import check_cluster, parse_options  # noqa: E402
from txnlog_spark.process_local import Frozen, process_local  # noqa: E402
from txnlog_spark.source.schema import source_schema  # noqa: E402
from txnlog_spark.spark_errors import readable_errors  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txnlog_spark.source.settings import SourceSettings


class TxnLogDataSource(DataSource):
    """Data source for Kafka, and for brokers with its protocol, with end-to-end exactly-once."""

    def __init__(self, options: dict[str, str]) -> None:
        """Spark creates one instance for a query's commits when the query starts, and keeps it."""
        super().__init__(options)
        self._run_id = uuid.uuid4().hex
        self._formats: ReadFormats | None = None
        self._is_copy = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy. Spark asks a copy only for a writer that commits; it plans with a new
        instance.

        The modules that the process has loaded so far are frozen before more modules are loaded.
        """
        process_local(Frozen)
        vars(self).update(state, _is_copy=True)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "txnlog"

    def schema(self) -> StructType:
        """Return the schema of a read. `load()` calls this, so wrong options are refused there."""
        with readable_errors():
            _check_no_table(self.options)
            values = parse_options(self.options, Use.READ)
            check_cluster(values)
            self._formats = read_formats(values)  # pickled to the processes that read
            return source_schema(include_headers=values["includeHeaders"], formats=self._formats)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read: a bounded snapshot."""
        from txnlog_spark.source.batch import FilteringBatchReader, TxnLogBatchReader
        from txnlog_spark.source.settings import read_source_settings

        with readable_errors():
            settings = read_source_settings(self.options, streaming=False, formats=self._formats)
            _check_schema(schema, settings)
            kind = FilteringBatchReader if settings.filter_pushdown else TxnLogBatchReader
            return kind(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming source; an error in the options is raised by its first call."""
        from txnlog_spark.source.settings import read_source_settings
        from txnlog_spark.source.stream import TxnLogStreamReader

        try:
            settings = read_source_settings(self.options, streaming=True, formats=self._formats)
            _check_schema(schema, settings)
        except TxnLogError as error:
            return TxnLogStreamReader(error)
        return TxnLogStreamReader(settings)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write; append only."""
        from txnlog_spark.sink.columns import check_columns
        from txnlog_spark.sink.settings import read_sink_settings
        from txnlog_spark.sink.writers import TxnLogBatchWriter, look_at_topic

        with readable_errors():
            if overwrite:
                raise OptionError("mode", "overwrite", "append: a log cannot be overwritten")
            settings = read_sink_settings(self.options, streaming=False)
            columns = check_columns(schema, settings)
            view = look_at_topic(settings, is_function=settings.checkpoint is not None)
            return TxnLogBatchWriter(settings, columns, view)

    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002  Spark's signature
    ) -> DataSourceStreamWriter:
        """Return the exactly-once sink.

        A log cannot be truncated. So with the output mode complete, each batch appends the whole
        result, as with Spark's Kafka sink.
        """
        from txnlog_spark.sink.settings import read_sink_settings
        from txnlog_spark.sink.writers import TxnLogStreamWriter, look_at_topic

        with readable_errors():
            settings = read_sink_settings(self.options, streaming=True)
            columns = view = None
            if not self._is_copy:
                from txnlog_spark.sink.columns import check_columns

                columns = check_columns(schema, settings)
                view = look_at_topic(settings, is_function=False)
            process_local(Frozen)
            return TxnLogStreamWriter(settings, columns, view, self._run_id)


def _check_no_table(options: Mapping[str, str]) -> None:
    """Refuse CREATE TABLE without columns. Spark's V2SessionCatalog asks for the schema of a table,
    but passes the table's properties instead of its options."""
    if "provider" in options:
        raise OptionError(
            "provider",
            options["provider"],
            "CREATE TABLE without columns is refused, as Spark hands none of a table's OPTIONS to "
            "a Python source that reads it. Use CREATE TEMPORARY VIEW ... USING txnlog OPTIONS "
            "(...), or name the columns in CREATE TABLE and the options in SELECT ... WITH (...)",
        )


def _check_schema(schema: StructType, settings: SourceSettings) -> None:
    fixed = source_schema(include_headers=settings.include_headers, formats=settings.formats)
    if schema.simpleString() != fixed.simpleString():
        raise OptionError(
            "schema", schema.simpleString(), f"leave it out: a read has {fixed.simpleString()}"
        )
