"""Values of one logical type that are read as another: the writer's says what the bytes mean."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from support.spark.avro_cases import encoded

from txnlog_spark.formats.avro.decode import avro_decoder
from txnlog_spark.formats.avro.scan import ROWS_MIN
from txnlog_spark.formats.avro.schema import parse_avro
from txnlog_spark.formats.avro.types import TypeOptions, spark_type
from txnlog_spark.formats.decoded import Decoded
from txnlog_spark.formats.errors import AvroSchemaError


def long(logical: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": logical}


def whole(logical: str) -> dict[str, Any]:
    return {"type": "int", "logicalType": logical}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def fixed(precision: int, scale: int) -> dict[str, Any]:
    return decimal(precision, scale) | {"type": "fixed", "name": "F", "size": 6}


def order(type_: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "O", "fields": [{"name": "x", "type": type_} | more]}


def decode(writer: Any, reader: Any, values: list[bytes]) -> Decoded:
    node = parse_avro(json.dumps(reader))
    type_ = to_arrow_type(spark_type(node, TypeOptions()), timezone="UTC")
    decoder = avro_decoder(parse_avro(json.dumps(writer)), node, type_, -1)
    found = decoder(pa.array(values, pa.binary()))
    assert found.values.type == type_
    return found


def read_as(writer: Any, reader: Any, value: Any) -> Any:
    """The value alone, which fastavro reads, and the same among as many as are scanned."""
    written = encoded([value], writer)
    found = decode(writer, reader, written)
    assert found.first_problem is None, found.first_problem
    alone = found.values.to_pylist()
    assert decode(writer, reader, written * ROWS_MIN).values.to_pylist() == alone * ROWS_MIN
    return alone[0]


AT = datetime(2024, 2, 29, 12, 30, 0, 123000, UTC)
LOCAL = AT.replace(tzinfo=None)
TIME = time(12, 30, 0, 123000)
MILLIS = int(AT.timestamp() * 1000)
DAY = 12 * 3_600_000 + 30 * 60_000 + 123


@pytest.mark.parametrize(
    ("writer", "reader", "value", "read"),
    [
        (long("timestamp-millis"), long("timestamp-micros"), AT, AT),
        (long("timestamp-micros"), long("timestamp-millis"), AT, AT),
        (long("local-timestamp-millis"), long("local-timestamp-micros"), LOCAL, LOCAL),
        (long("local-timestamp-micros"), long("local-timestamp-millis"), LOCAL, LOCAL),
        (whole("time-millis"), long("time-micros"), TIME, TIME),
        (decimal(9, 2), decimal(11, 4), Decimal("12.34"), Decimal("12.3400")),
        (decimal(9, 2), decimal(38, 31), Decimal("-1234567.89"), Decimal("-1234567.89")),
        (fixed(9, 2), fixed(11, 4), Decimal("-12.34"), Decimal("-12.3400")),
        # An annotation that was added is believed, one that was taken away is not looked for.
        ("long", long("timestamp-millis"), MILLIS, AT),
        ("long", long("local-timestamp-micros"), MILLIS * 1000, LOCAL),
        ("long", long("time-micros"), DAY * 1000, TIME),
        ("int", long("time-micros"), 1, time(0, 0, 0, 1)),
        ("int", whole("date"), 1, date(1970, 1, 2)),
        ("int", long("timestamp-millis"), 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("bytes", decimal(9, 2), b"\x01\x00", Decimal("2.56")),
        (
            {"type": "fixed", "name": "F", "size": 6}, fixed(9, 2),
            bytes(5) + b"\x07", Decimal("0.07"),
        ),
        (long("timestamp-millis"), "long", AT, MILLIS),
        (long("timestamp-nanos"), "long", 5, 5),
        (whole("date"), "long", date(1970, 1, 2), 1),
        (whole("time-millis"), "int", TIME, DAY),
        (decimal(9, 2), "bytes", Decimal("2.56"), b"\x01\x00"),
        (long("timestamp-millis"), "double", AT, float(MILLIS)),
        # In a union, a list and a map.
        (["null", long("timestamp-millis")], long("timestamp-micros"), AT, AT),
        (long("timestamp-millis"), ["null", long("timestamp-micros")], AT, AT),
        (
            ["null", decimal(9, 2), "int"], ["int", decimal(11, 4), "null"],
            Decimal("12.34"), {"member0": None, "member1": Decimal("12.3400")},
        ),
        (
            {"type": "array", "items": long("timestamp-millis")},
            {"type": "array", "items": long("timestamp-micros")},
            [AT], [AT],
        ),
        (
            {"type": "map", "values": decimal(3, 1)}, {"type": "map", "values": decimal(4, 2)},
            {"k": Decimal("1.5")}, [("k", Decimal("1.50"))],
        ),
        (order(long("timestamp-millis")), order(long("timestamp-micros")), {"x": AT}, {"x": AT}),
        (["int", long("timestamp-millis")], "long", 5, 5),
        (long("timestamp-millis"), ["int", long("timestamp-millis")], AT, MILLIS),
    ],
    ids=str,
)  # fmt: skip
def test_the_writers_logical_type_says_what_the_bytes_mean(
    writer: Any, reader: Any, value: Any, read: Any
) -> None:
    assert read_as(writer, reader, value) == read


def test_a_default_has_the_readers_logical_type() -> None:
    reader = order("int")
    reader["fields"] += [
        {"name": "at", "type": long("timestamp-millis"), "default": MILLIS},
        {"name": "d", "type": decimal(4, 2), "default": "\u0001\u0000"},
    ]
    assert read_as(order("int"), reader, {"x": 1}) == {"x": 1, "at": AT, "d": Decimal("2.56")}


@pytest.mark.parametrize(
    ("writer", "reader", "written_as", "read_as_"),
    [
        (decimal(9, 2), decimal(9, 1), "bytes (decimal(9,2))", "bytes (decimal(9,1))"),
        (decimal(9, 2), decimal(10, 4), "bytes (decimal(9,2))", "bytes (decimal(10,4))"),
        (decimal(9, 2), decimal(8, 2), "bytes (decimal(9,2))", "bytes (decimal(8,2))"),
        (decimal(40, 2), decimal(38, 2), "bytes (decimal(40,2))", "bytes (decimal(38,2))"),
        (
            long("timestamp-millis"), long("local-timestamp-micros"),
            "long (timestamp-millis)", "long (local-timestamp-micros)",
        ),
        (
            long("local-timestamp-micros"), long("timestamp-micros"),
            "long (local-timestamp-micros)", "long (timestamp-micros)",
        ),
        (
            long("timestamp-nanos"), long("timestamp-micros"),
            "long (timestamp-nanos)", "long (timestamp-micros)",
        ),
        (whole("date"), long("timestamp-micros"), "int (date)", "long (timestamp-micros)"),
        (whole("time-millis"), whole("date"), "int (time-millis)", "int (date)"),
        (whole("date"), whole("time-millis"), "int (date)", "int (time-millis)"),
        (
            long("time-micros"), long("timestamp-micros"),
            "long (time-micros)", "long (timestamp-micros)",
        ),
        (
            ["int", long("timestamp-millis")], long("timestamp-micros"),
            "long (int or timestamp-millis)", "long (timestamp-micros)",
        ),
        ("string", "int", "string", "int"),
    ],
)  # fmt: skip
def test_a_logical_type_that_does_not_hold_the_writers_is_refused_before_any_value(
    writer: Any, reader: Any, written_as: str, read_as_: str
) -> None:
    with pytest.raises(AvroSchemaError) as caught:
        decode(order(writer), order(reader), [])
    said = f"the field x: what is written as {written_as} cannot be read as {read_as_}"
    assert said in caught.value.text


def test_the_error_names_the_field_wherever_it_is() -> None:
    writer, reader = long("timestamp-millis"), long("local-timestamp-millis")
    for around in (
        lambda type_: ["null", type_],
        lambda type_: {"type": "array", "items": type_},
        lambda type_: {"type": "map", "values": ["null", type_]},
    ):
        theirs, ours = (
            order(order(around(type_)) | {"name": "P"}, name="y") for type_ in (writer, reader)
        )
        with pytest.raises(AvroSchemaError, match=r"the field y\.x: what is written as"):
            decode(theirs, ours, [])


@pytest.mark.parametrize(
    ("writer", "reader", "value", "said"),
    [
        (long("timestamp-millis"), long("timestamp-micros"), 2**62, "overflow"),
        (decimal(2, 0), decimal(4, 2), b"\x64", "precision"),
    ],
)
def test_a_value_that_its_writers_type_does_not_hold_is_malformed(
    writer: Any, reader: Any, value: Any, said: str
) -> None:
    written = encoded([value], writer["type"])
    found = decode(writer, reader, written)
    assert found.first_problem is not None
    assert said in found.first_problem[1]
