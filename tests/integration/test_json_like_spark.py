"""JSON values as Spark itself reads and writes them: `from_json` and `to_json`, value for value.

A text may be refused that Spark takes (docs/formats.md has the list). No value is another.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types
from support.spark.json_cases import SCHEMAS, Texts, plain, texts

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.json.alone import one_by_one
from txnlog_spark.formats.json.decode import json_decoder
from txnlog_spark.formats.json.encode import json_encoder
from txnlog_spark.formats.json.times import session_zone

pytestmark = [pytest.mark.slow, pytest.mark.weekly]

ZONE = "America/New_York"
STRUCT_TEXTS = 3000
OTHER_TEXTS = 150
"""Spark says of each of these by itself whether it is malformed, which takes its time."""
CORRUPT = "_corrupt_record"


@pytest.fixture(scope="module")
def session(connector_spark) -> Iterator[Any]:
    before = connector_spark.conf.get("spark.sql.session.timeZone")
    connector_spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield connector_spark
    connector_spark.conf.set("spark.sql.session.timeZone", before)


def parsed_type(ddl: str) -> Any:
    return spark_types._parse_datatype_string(ddl)


def theirs(session: Any, values: list[bytes], type_: Any) -> list[Any]:
    """Return the rows that `from_json` makes of the values; "malformed" for a refused value."""
    frame = session.createDataFrame([(value,) for value in values], "value binary")
    text = sf.col("value").cast("string")
    if not isinstance(type_, spark_types.StructType):
        made = frame.select(sf.from_json(text, type_).alias("made")).toArrow()
        right = list(map(accepts(session, type_), values))
        found = plain(made["made"].combine_chunks())
    else:
        with_corrupt = spark_types.StructType([*type_.fields]).add(CORRUPT, "string")
        made = frame.select(sf.from_json(text, with_corrupt).alias("made")).toArrow()
        column = made["made"].combine_chunks()
        corrupt = column.field(CORRUPT).is_valid().to_pylist()
        right = [
            not (is_valid and is_corrupt)
            for is_valid, is_corrupt in zip(column.is_valid().to_pylist(), corrupt, strict=True)
        ]
        fields = [column.field(at) for at in range(column.type.num_fields - 1)]
        names, mask = list(column.type)[:-1], column.is_null()
        found = plain(pa.StructArray.from_arrays(fields, fields=names, mask=mask))
    return [
        value if is_right else "malformed" for value, is_right in zip(found, right, strict=True)
    ]


def accepts(session: Any, type_: Any) -> Callable[[bytes], bool]:
    """Return a function: True if `from_json` accepts a value in mode FAILFAST."""
    jvm = session._jvm
    evaluator = jvm.org.apache.spark.sql.catalyst.expressions.json.JsonToStructsEvaluator(
        jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({"mode": "FAILFAST"}),
        jvm.org.apache.spark.sql.types.DataType.fromJson(type_.json()),
        CORRUPT,
        jvm.scala.Some(ZONE),
        False,
    )
    from_bytes = jvm.org.apache.spark.unsafe.types.UTF8String.fromBytes

    def is_accepted(value: bytes) -> bool:
        try:
            evaluator.evaluate(from_bytes(value))
        except (PySparkException, Py4JJavaError):
            return False
        return True

    return is_accepted


JAVA_DOUBLE = re.compile(r"(?<![\w.])-?\d\.\d+(?:E-?\d+)?(?![\w.])|(?<![\w.])-?\d+\.\d+(?![\w.])")


def shortest(value: Any, number: type = float) -> Any:
    """Java before 19 writes more digits than it takes for some numbers: each as Python has it."""
    if isinstance(value, str):
        return JAVA_DOUBLE.sub(lambda found: repr(float(number(found[0]))), value)
    if isinstance(value, (list, tuple)):
        return [shortest(each) for each in value]
    return value


def ours(decoded: Any) -> list[Any]:
    decoded.values.validate(full=True)
    found = plain(decoded.values)
    if decoded.problems is not None:
        for row in np.flatnonzero(decoded.problems.is_valid().to_numpy(zero_copy_only=False)):
            assert found[row] is None
            found[row] = "malformed"
    return found


REFUSALS = re.compile(
    r"it is not JSON: |it is not UTF-8: |it is nested too deeply|the value is not a JSON array"
    r'|.* is "(?:[+-]INF|\+Infinity)", which is not a value of (?:float|double)'
    r"|.* is .*, which is not a value of (?:date|timestamp|timestamp_ntz|binary|tinyint|decimal.*)",
    re.DOTALL,
)
"""Reasons for which a text is malformed here and a value for Spark."""


def differences(values: list[bytes], expected: list[Any], decoded: Any) -> list[Any]:
    """Texts with another value than Spark's, and those refused without one of `REFUSALS`."""
    found = ours(decoded)
    problems = decoded.problems.to_pylist() if decoded.problems is not None else [None] * len(found)
    return [
        row
        for row in zip(values, expected, found, problems, strict=True)
        if row[1] != row[2]
        and shortest(row[1]) != shortest(row[2])
        and not (row[3] is not None and REFUSALS.match(row[3]))
    ]


@pytest.mark.parametrize("ddl", SCHEMAS)
def test_each_text_has_the_value_that_from_json_gives_it(session, ddl, record_property):
    type_ = parsed_type(ddl)
    is_struct = isinstance(type_, spark_types.StructType)
    values = texts(type_, STRUCT_TEXTS if is_struct else OTHER_TEXTS, seed=11)
    expected = theirs(session, values, type_)
    array = pa.array(values, pa.binary())
    together = json_decoder(type_, ZONE)
    single = one_by_one(type_, session_zone(ZONE))
    assert not differences(values, expected, together(array))[:5]
    assert not differences(values, expected, single(array))[:5]
    # Whatever is beside it, a value is read as it is by itself.
    found = ours(together(array))
    right = [row for row, value in enumerate(found) if value not in ("malformed", None)]
    assert together(array.take(pa.array(right))).problems is None
    # One object for an array of structs is refused here.
    is_array = isinstance(type_, spark_types.ArrayType)
    taken = [
        value
        for text, value in zip(values, expected, strict=True)
        if value not in ("malformed", None) and not (is_array and text.lstrip()[:1] == b"{")
    ]
    assert len(right) > 0.8 * len(taken)
    record_property("said", f"{len(values)} texts, Spark reads {len(taken)}, we {len(right)}")


@pytest.mark.parametrize("ddl", SCHEMAS)
def test_no_usual_text_is_refused(session, ddl):
    """Objects, numbers, strings with escapes, times in ISO 8601: Spark and we read them all."""
    type_ = parsed_type(ddl)
    made = Texts(random.Random(13), odd=0.0, damaged=0.0)
    usual = [made.text(type_) for _ in range(OTHER_TEXTS)]
    values = [text for text in usual if is_usual(text.decode())]
    assert len(values) > 0.5 * len(usual)
    expected = theirs(session, values, type_)
    found = ours(json_decoder(type_, ZONE)(pa.array(values, pa.binary())))
    refused = [row for row in zip(values, expected, found, strict=True) if row[2] == "malformed"]
    assert not [row for row in refused if row[1] != "malformed"][:5]


def is_usual(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("ddl", SCHEMAS)
def test_values_are_written_as_to_json_writes_them(session, ddl):
    type_ = parsed_type(ddl)
    values = texts(type_, 1500, seed=12)
    frame = session.createDataFrame([(value,) for value in values], "value binary")
    made = sf.from_json(sf.col("value").cast("string"), type_)
    frame = frame.select(made.alias("made"))
    table = frame.select("made", sf.to_json("made").cast("binary").alias("text")).toArrow()
    table = table.filter(table["made"].is_valid())
    column, expected = table["made"].combine_chunks(), table["text"].combine_chunks()
    # Years beyond four digits are refused by the column's name; others are in no such text.
    beyond = pc.match_substring_regex(expected.cast("string"), r'"[+-][0-9]{4,}-')
    usual = pc.invert(beyond)
    check_texts(type_, column.filter(usual), expected.filter(usual))
    for row in np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist():
        with contextlib.suppress(OptionError):
            check_texts(type_, column.slice(row, 1), expected.slice(row, 1))


def check_texts(type_: Any, column: Any, expected: Any) -> None:
    found = json_encoder(type_, ZONE)(column)
    found.validate(full=True)
    number = np.float32 if "float" in type_.simpleString() else float
    pairs = zip(expected.to_pylist(), found.to_pylist(), strict=True)
    wrong = [
        pair
        for pair in pairs
        if pair[0] != pair[1]
        and shortest(pair[0].decode("utf-8"), number) != shortest(pair[1].decode("utf-8"), number)
    ]
    assert not wrong[:5]


def odd_columns(rows: int, seed: int) -> dict[str, Any]:
    """Values from all over the ranges of their types, a third of them null."""
    rng = np.random.default_rng(seed)
    mask = {name: rng.random(rows) < 0.3 for name in "acdeghkl"}
    bits = rng.integers(0, 2**64, rows, np.uint64, endpoint=False)
    powers = 10.0 ** rng.integers(-12, 18, rows)
    near = np.round(rng.random(rows) * 1000, 2) * powers
    python = random.Random(seed)
    letters = ['"', "\\", "\n", "\x01", "é", "😀", "/", "\x7f", "\u2028", "plain text", ""]
    micros = rng.integers(-62_000_000_000, 253_000_000_000, rows) * 1_000_000
    micros += rng.integers(0, 1_000_000, rows)
    places = np.where(rng.random(rows) < 0.5, bits.view(np.float64), near)
    days = rng.integers(-719_528, 2_932_896, rows).astype(np.int32)
    units = [python.randint(-(10**20), 10**20) >> python.randint(0, 64) for _ in range(rows)]
    return {
        "a": pa.array(places, mask=mask["a"]),
        "c": pa.array(days, mask=mask["c"]).view(pa.date32()),
        "d": pa.array(micros, mask=mask["d"]).view(pa.timestamp("us", "UTC")),
        "e": pa.array(micros, mask=mask["e"]).view(pa.timestamp("us")),
        "f": pa.array([python.randbytes(python.randint(0, 7)) for _ in range(rows)]),
        "g": pa.array(["".join(python.choices(letters, k=3)) for _ in range(rows)], mask=mask["g"]),
        "h": pa.array(rng.random(rows) < 0.5, mask=mask["h"]),
        "i": pa.array([decimal_of(each, 9) for each in units], pa.decimal128(38, 9)),
        "j": pa.array([decimal_of(each, 18) for each in units], pa.decimal128(38, 18)),
        "k": pa.array(bits.view(np.int64), mask=mask["k"]),
        "l": pa.array((bits & np.uint64(255)).astype(np.uint8).view(np.int8), mask=mask["l"]),
        "m": pa.array([python.choices([1, None, -3], k=python.randint(0, 3)) for _ in range(rows)]),
    }


def test_floats_are_written_as_to_json_writes_them(session):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 3000, np.uint32, endpoint=False).view(np.float32)
    near = (np.round(rng.random(3000) * 1000, 2) * 10.0 ** rng.integers(-12, 18, 3000)).astype("f4")
    frame = session.createDataFrame(pa.table({"a": bits, "b": near}))
    made = frame.select(sf.struct("a", "b").alias("made"))
    table = made.select("made", sf.to_json("made").cast("binary").alias("text")).toArrow()
    type_ = parsed_type("struct<a:float,b:float>")
    check_texts(type_, table["made"].combine_chunks(), table["text"].combine_chunks())


def decimal_of(unscaled: int, scale: int) -> Any:
    return Decimal(unscaled).scaleb(-scale)


def test_values_from_all_over_their_types_are_written_as_to_json_writes_them(session):
    frame = session.createDataFrame(pa.table(odd_columns(2000, 5)))
    below = sf.struct("a", "c", "m").alias("s")
    keys = sf.create_map(sf.coalesce("g", sf.lit("none")), "d").alias("n")
    numbers = sf.create_map(sf.coalesce("k", sf.lit(0)), sf.array("i", "j")).alias("o")
    wide = frame.select("*", below).select("*", keys, numbers)
    made = wide.select(sf.struct(*wide.columns).alias("made"))
    type_ = made.schema["made"].dataType
    table = made.select("made", sf.to_json("made").cast("binary").alias("text")).toArrow()
    check_texts(type_, table["made"].combine_chunks(), table["text"].combine_chunks())
