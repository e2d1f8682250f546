"""Arrow types of a write's rows: large ones are written as the others are, any other is refused."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType
from support.query.staged_messages import message_of, never
from support.spark import arrow_cases
from support.spark.arrow_cases import FIELDS, HEADER, large

from txnlog_kafka.wire.records import decode_records, iter_batches
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.arrow_types import narrow_rows
from txnlog_spark.formats.types import arrow_type
from txnlog_spark.sink.columns import check_columns
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.sink.task import TaskEncoder, lookup_counts
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.writer import StagingWriter

Written = list[tuple[Any, ...]]


def written(rows: pa.RecordBatch, schema: StructType, options: dict[str, str]) -> Written:
    """Partition, key, value and headers of each record that a task makes of the rows."""
    given = {"kafka.bootstrap.servers": "x:1", "checkpointLocation": "/cp", "topic": "out"}
    settings = read_sink_settings(given | options, streaming=True)
    staging = StagingWriter(never, inline_bytes_max=1 << 20)
    counts = lookup_counts({}, lambda _: 3)
    encoder = TaskEncoder(settings, check_columns(schema, settings), counts, staging, 0)
    encoder.encode_all(iter([rows]))
    message = message_of(TaskAttempt("q", 0, "r", "0-0"), staging, encoder.partition_counts)
    reader = StagedReader(settings.staging, None)
    return [
        (chunk.partition, record.key, record.value, record.headers)
        for chunk in reader.plan([message])
        for data in [chunk.read()]
        for header, at in iter_batches(data)
        for record in decode_records(data, at, header)
    ]


def batch(schema: StructType, rows: list[tuple[Any, ...]], *, is_large: bool) -> pa.RecordBatch:
    """Return a slice from the middle of the repeated rows, so that no column begins at offset 0."""
    arrays = []
    for at, field in enumerate(schema):
        values = pa.array([row[at] for row in rows * 3], arrow_type(field.dataType))
        arrays.append(values.cast(large(values.type)) if is_large else values)
    made = pa.RecordBatch.from_arrays(arrays, schema.names)
    return made.slice(len(rows) - 1, len(rows) + 1)


def format_options(name: str, folder: Path) -> dict[str, str]:
    schema = {"avro": arrow_cases.avro_schema(), "protobuf": ""}.get(name)
    options = {"value.format": name, "value.columns": "*"}
    if name == "protobuf":
        schema = arrow_cases.write_descriptors(folder)
        options |= {"value.message.name": "Row"}
    return options | ({} if schema is None else {"value.schema": schema})


@pytest.mark.parametrize("name", ["json", "avro", "protobuf"])
def test_fields_of_large_types_are_written_as_all_others(name: str, tmp_path: Path) -> None:
    options = format_options(name, tmp_path)
    usual, of_large = (
        written(batch(FIELDS, arrow_cases.rows(), is_large=each), FIELDS, options)
        for each in (False, True)
    )
    assert len(of_large) == len(arrow_cases.BINARIES) + 1
    assert of_large == usual


@pytest.mark.parametrize("type_", [StringType(), BinaryType()], ids=["string", "binary"])
@pytest.mark.parametrize("is_text", [False, True], ids=["plain", "text"])
def test_keys_values_and_headers_of_large_types_are_written_as_all_others(
    type_: Any, is_text: bool
) -> None:
    schema = StructType().add("key", type_).add("value", type_)
    schema = schema.add("headers", arrow_cases.HEADERS)
    values: list[Any] = ["", "ab", "abc", "5feceb66ffc8", None]
    if isinstance(type_, BinaryType):
        values = [each and each.encode() for each in values]
    rows = [(each, each, [("a", b"xy"), ("b", None)] if each else None) for each in values]
    is_formatted = is_text and isinstance(type_, StringType)
    options = {"value.format": "string", "key.format": "string"} if is_formatted else {}
    usual, of_large = (
        written(batch(schema, rows, is_large=each), schema, options) for each in (False, True)
    )
    assert len(of_large) == len(rows) + 1
    assert of_large == usual


def views(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary_view())


REFUSED = {
    "string_view": (pa.array(["abcd"], pa.string_view()), StringType()),
    "binary_view": (views(b"abcd"), BinaryType()),
    "dictionary": (pa.array([b"abcd"]).dictionary_encode(), BinaryType()),
    "run_end_encoded": (
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([b"abcd"])),
        BinaryType(),
    ),
    "fixed_size_binary": (pa.array([b"abcd"], pa.binary(4)), BinaryType()),
    "list_view": (pa.array([[b"abcd"]], pa.list_view(pa.binary())), FIELDS["bs"].dataType),
    "large_list_view": (
        pa.array([[b"abcd"]], pa.large_list_view(pa.binary())),
        FIELDS["bs"].dataType,
    ),
    "fixed_size_list": (pa.array([[b"abcd"]], pa.list_(pa.binary(), 1)), FIELDS["bs"].dataType),
    "list": (pa.array([["abcd"]], pa.list_(pa.string_view())), FIELDS["ss"].dataType),
    "struct": (
        pa.StructArray.from_arrays([views(b"abcd"), pa.array(["x"])], ["b", "s"]),
        FIELDS["st"].dataType,
    ),
    "map": (
        pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary_view())),
        FIELDS["m"].dataType,
    ),
}


@pytest.mark.parametrize("name", ["json", "avro", "protobuf"])
@pytest.mark.parametrize("type_", REFUSED)
def test_a_field_of_another_arrow_type_is_refused_by_its_name(
    name: str, type_: str, tmp_path: Path
) -> None:
    array, spark_type = REFUSED[type_]
    (field,) = [each for each in FIELDS if each.dataType == spark_type]
    schema = StructType([field])
    options = format_options(name, tmp_path)
    if name == "avro":
        options["value.schema"] = arrow_cases.avro_schema(schema)
    rows = pa.RecordBatch.from_arrays([array], [field.name])
    with pytest.raises(OptionError) as caught:
        written(rows, schema, options)
    assert f"option column {field.name}='{array.type}'" in caught.value.text
    assert "spark.sql.execution.arrow" in caught.value.text


@pytest.mark.parametrize("type_", ["string_view", "binary_view", "dictionary", "run_end_encoded"])
@pytest.mark.parametrize("column", ["key", "value", "headers"])
def test_keys_values_and_headers_of_another_arrow_type_are_refused(type_: str, column: str) -> None:
    array, spark_type = REFUSED[type_]
    schema = StructType().add("key", spark_type).add("value", spark_type)
    schema = schema.add("headers", arrow_cases.HEADERS)
    small = pa.array(["abcd"]).cast(arrow_type(spark_type))
    entry = array if spark_type == BinaryType() else small.cast(pa.binary())
    names = array if spark_type == StringType() else pa.array(["h"])
    items = pa.StructArray.from_arrays([names, entry], [*HEADER.names])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), items)
    no_headers = pa.array([None], arrow_type(arrow_cases.HEADERS))
    arrays = {"key": small, "value": small, "headers": no_headers}
    arrays[column] = headers if column == "headers" else array
    rows = pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))
    with pytest.raises(OptionError, match=f"option column {column}="):
        written(rows, schema, {})


def test_a_slice_that_begins_beyond_2_gib_of_a_batch_is_read() -> None:
    """The setting is for batches of that size; no memory stands behind the zeros here."""
    beyond = 2**31 + 10
    data = mmap.mmap(-1, beyond + 3)
    data[beyond:] = b"abc"
    buffers = [None, pa.py_buffer(np.array([0, beyond, beyond + 3])), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.large_binary(), 2, buffers)
    rows = pa.RecordBatch.from_arrays([array], ["value"])
    assert narrow_rows(rows.slice(1)).column("value") == pa.array([b"abc"])
