"""Avro columns: any schema, any values, any damage; fastavro says what the bytes mean."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from support.spark.avro_cases import NODE, RECORD, encoded, orders

from txnlog_spark.formats.avro.decode import avro_decoder
from txnlog_spark.formats.avro.encode import avro_encoder
from txnlog_spark.formats.avro.raw import RawDecoder
from txnlog_spark.formats.avro.scan import ROWS_MIN, scanner
from txnlog_spark.formats.avro.schema import parse_avro
from txnlog_spark.formats.avro.types import TypeOptions, spark_type
from txnlog_spark.formats.columns import varints
from txnlog_spark.formats.decoded import Misfit
from txnlog_spark.formats.types import all_nullable

LEAVES = ("boolean", "int", "long", "float", "double", "bytes", "string")
_NUMBERS = {"int": 31, "long": 63}


SIMPLE = (
    *LEAVES,
    {"type": "enum", "symbols": ["A", "B", "C"]},
    {"type": "int", "logicalType": "date"},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
)


def schemas() -> st.SearchStrategy[Any]:
    """Any schema that Spark has a type for."""
    return unnamed(3).map(lambda made: named(made, count()))


@st.composite
def unnamed(draw: st.DrawFn, depth: int) -> Any:
    """The same without the names that some types need."""
    nested = ["array", "map", "record", "optional", "union"] if depth else []
    kind = draw(st.sampled_from(["simple", "fixed", *nested]))
    if kind == "simple":
        return draw(st.sampled_from(SIMPLE))
    if kind == "fixed":
        return {"type": "fixed", "size": draw(st.integers(1, 20))}
    if kind in ("array", "map"):
        return {"type": kind, {"array": "items", "map": "values"}[kind]: draw(unnamed(depth - 1))}
    if kind == "optional":
        return draw(st.permutations(["null", draw(unnamed(0))]))
    types = draw(st.lists(unnamed(depth - 1), min_size=1, max_size=4))
    fields = [{"name": f"f{at}", "type": type_} for at, type_ in enumerate(types)]
    made = {"type": "record", "fields": fields}
    return made if kind == "record" else draw(st.permutations(["null", "string", "long", made]))


def named(schema: Any, numbers: Iterator[int]) -> Any:
    """A copy in which each type has a name of its own."""
    if isinstance(schema, list):
        return [named(each, numbers) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: named(value, numbers) for key, value in schema.items() if key != "symbols"}
    made |= {"symbols": schema["symbols"]} if "symbols" in schema else {}
    if schema.get("type") in ("record", "enum", "fixed"):
        made["name"] = f"n{next(numbers)}"
    return made


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return schema["type"] if isinstance(schema, dict) else schema


def value_of(schema: Any, chosen: random.Random) -> Any:
    """A value as `RawDecoder` gives it, but for unions of several: those have (branch, value)."""
    kind = _kind(schema)
    if kind == "union":
        branch = chosen.choice(schema)
        return (branch, value_of(branch, chosen)) if branch != "null" else None
    if kind in _NUMBERS:
        bits = chosen.randrange(_NUMBERS[kind] + 1)
        return chosen.choice((1, -1)) * chosen.getrandbits(bits) if bits else 0
    if kind == "array":
        return [value_of(schema["items"], chosen) for _ in range(chosen.randrange(4))]
    if kind == "map":
        return {f"k{n}": value_of(schema["values"], chosen) for n in range(chosen.randrange(3))}
    if kind == "record":
        return {each["name"]: value_of(each["type"], chosen) for each in schema["fields"]}
    simple = {
        "boolean": lambda: chosen.random() < 0.5,
        "float": lambda: np.float32(chosen.uniform(-9, 9)).item(),
        "double": lambda: chosen.uniform(-1e9, 1e9),
        "string": lambda: "aß€" * chosen.randrange(9),
        "bytes": lambda: chosen.randbytes(chosen.randrange(1, 15)),
        "fixed": lambda: chosen.randbytes(schema["size"]),
        "enum": lambda: chosen.choice(schema["symbols"]),
    }
    return simple[kind]()


def written(value: Any, schema: Any) -> bytes:
    """A dumb second encoder: Avro's binary encoding, one value at a time."""
    kind = _kind(schema)
    if kind == "union":
        branch = "null" if value is None else value[0]
        inner = b"" if value is None else written(value[1], branch)
        return _varint(schema.index(branch)) + inner
    if kind in _NUMBERS:
        return _varint(value)
    if kind == "array":
        items = b"".join(written(each, schema["items"]) for each in value)
        return _varint(len(value)) + items + b"\0" if value else b"\0"
    if kind == "map":
        pairs = [written(k, "string") + written(v, schema["values"]) for k, v in value.items()]
        return _varint(len(value)) + b"".join(pairs) + b"\0" if value else b"\0"
    if kind == "record":
        return b"".join(written(value[each["name"]], each["type"]) for each in schema["fields"])
    if kind in ("string", "bytes"):
        data = value.encode() if kind == "string" else value
        return _varint(len(data)) + data
    if kind == "enum":
        return _varint(schema["symbols"].index(value))
    if kind == "fixed":
        return value
    if kind == "boolean":
        return bytes([value])
    return np.array([value], "<f4" if kind == "float" else "<f8").tobytes()


def _varint(value: int) -> bytes:
    zigzag, made = (value << 1) ^ (value >> 63), bytearray()
    while zigzag > 0x7F:
        made.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*made, zigzag])


def values_of(schema: Any, seed: int, rows: int = ROWS_MIN + 8) -> list[bytes]:
    """Encoded values; decimals of up to 14 bytes fit 38 digits."""
    chosen = random.Random(seed)
    return [written(value_of(schema, chosen), schema) for _ in range(rows)]


@given(schemas(), st.integers(0, 2**32))
def test_what_is_decoded_is_encoded_as_it_was(schema: Any, seed: int) -> None:
    values, node = values_of(schema, seed), parse_avro(json.dumps(schema))
    type_ = to_arrow_type(spark_type(node, TypeOptions()), timezone="UTC")
    array = avro_decoder(node, node, type_, 1)(pa.array(values, pa.binary())).values
    array.validate(full=True)
    assert array.type == type_
    again = avro_encoder(node, type_)(array.drop_null()).to_pylist()
    if "decimal" not in json.dumps(schema):  # the shortest two's complement is what we write
        kept = [v for v, valid in zip(values, array.is_valid().to_pylist(), strict=True) if valid]
        assert again == kept
    twice = avro_decoder(node, node, type_, 1)(pa.array(again, pa.binary())).values
    assert twice.equals(array.drop_null())


@given(schemas(), st.integers(0, 2**32))
def test_the_scan_reads_what_fastavro_reads(schema: Any, seed: int) -> None:
    values, node = values_of(schema, seed), parse_avro(json.dumps(schema))
    scanned = scanner(node)(pa.array(values, pa.binary()))
    scanned.validate(full=True)
    assert scanned.equals(RawDecoder(node, 1).decode(values))


@given(schemas(), st.integers(0, 2**32))
def test_a_damaged_value_is_none_for_the_scan_or_what_fastavro_reads(
    schema: Any, seed: int
) -> None:
    values, node, chosen = (
        values_of(schema, seed),
        parse_avro(json.dumps(schema)),
        random.Random(seed),
    )
    for row in range(0, len(values), 5):
        damaged = bytearray(values[row] or b"\0")
        damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        values[row] = bytes(damaged[: chosen.randrange(len(damaged) + 1)])
    type_ = to_arrow_type(all_nullable(spark_type(node, TypeOptions())), timezone="UTC")
    decoder, column = avro_decoder(node, node, type_, 1), pa.array(values, pa.binary())
    found, encode = decoder(column), avro_encoder(node, type_)
    made = found.values
    made.validate()  # not that text is UTF-8: like Spark's, ours is what the bytes are
    for row in range(len(values)):
        alone = decoder(column.slice(row, 1))
        if alone.first_problem is not None:
            assert not made[row].is_valid
            assert found.problems[row].is_valid
        else:
            assert found.problems is None or not found.problems[row].is_valid
            # As bytes, which not-a-number compares by as well.
            assert encode(made.slice(row, 1)).equals(encode(alone.values))


@pytest.mark.parametrize("block", [1, 2, 5])
def test_lists_in_several_blocks_with_and_without_their_size(block: int) -> None:
    node = parse_avro('{"type":"map","values":{"type":"array","items":"int"}}')
    items = b"".join(_varint(n * 100) for n in range(3))
    pair = b"\x02k" + _varint(-3) + _varint(len(items)) + items + _varint(1) + b"\x0e" + b"\0"
    value = b"".join(_varint(block) + pair * block for _ in range(3)) + b"\0"
    values = [value, b"\0"] * ROWS_MIN
    scanned = scanner(node)(pa.array(values, pa.binary()))
    assert scanned.equals(RawDecoder(node, 1).decode(values))
    assert len(scanned[0]) == 3 * block
    assert [n.as_py() for n in scanned[0][0]["value"]] == [0, 100, 200, 7]


def test_the_scan_is_not_for_every_schema_and_every_value() -> None:
    assert scanner(parse_avro(json.dumps(NODE))) is None
    assert scanner(parse_avro('{"type":"array","items":"null"}')) is None
    strings = parse_avro('{"type":"array","items":"string"}')
    long = _varint(1000) + b"\x02x" * 1000 + b"\0"
    with pytest.raises(Misfit) as misfit:
        scanner(strings)(pa.array([long] + [b"\0"] * ROWS_MIN, pa.binary()))
    assert misfit.value.rows is None


def test_a_column_with_malformed_values_takes_a_few_scans_and_not_one_a_value() -> None:
    node = parse_avro(json.dumps(RECORD))
    type_ = to_arrow_type(spark_type(node, TypeOptions()), timezone="UTC")
    values = encoded(orders(100), RECORD) * 20
    values[::100] = [value[:30] for value in values[::100]]
    decoder = avro_decoder(node, node, type_, 1)
    checked = []
    inner = decoder.__self__
    check = inner._find_problem
    inner._find_problem = lambda column, row, found: (
        checked.append(row) or check(column, row, found)
    )
    made = decoder(pa.array(values, pa.binary()))
    assert made.values.null_count == 20
    assert "30 bytes are not a datum" in made.first_problem[1]
    assert sorted(checked) == list(range(0, 2000, 100))


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers(values: list[int]) -> None:
    assert varints(np.array(values, np.int64)).to_pylist() == [_varint(each) for each in values]
