"""Units and scales that change between a writer's schema and a reader's, as fastavro reads them.

fastavro takes the meaning of the bytes from the writer's schema. It differs where the writer's type
is plain, which we read as the reader's logical type says, and where the reader's is.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from support.spark.avro_cases import encoded

from txnlog_spark.formats.avro.decode import avro_decoder
from txnlog_spark.formats.avro.scan import ROWS_MIN
from txnlog_spark.formats.avro.schema import parse_avro
from txnlog_spark.formats.avro.types import TypeOptions, spark_type
from txnlog_spark.formats.errors import AvroSchemaError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_MAX = 10**16


def _long(logical: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": logical}


def _decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@st.composite
def _instants(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    """Timestamps of two units, instants or local ones."""
    local = draw(st.sampled_from(["", "local-"]))
    units = st.sampled_from([f"{local}timestamp-millis", f"{local}timestamp-micros"])
    writer, reader = draw(units), draw(units)
    step = 1000 if writer.endswith("millis") else 1
    micros = draw(st.lists(st.integers(-_MICROS_MAX, _MICROS_MAX).map(lambda n: n // step * step)))
    start = _EPOCH.replace(tzinfo=None) if local else _EPOCH
    return _long(writer), _long(reader), [start + timedelta(microseconds=n) for n in micros]


@st.composite
def _times(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    millis = draw(st.lists(st.integers(0, 86_399_999)))
    values = [(_EPOCH + timedelta(milliseconds=n)).time() for n in millis]
    return {"type": "int", "logicalType": "time-millis"}, _long("time-micros"), values


@st.composite
def _decimals(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    """Draw two decimal types, the writer's and a wider one of the reader, and values to write."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    more_scale = draw(st.integers(0, 38 - precision))
    more_digits = draw(st.integers(0, 38 - precision - more_scale))
    reader = _decimal(precision + more_scale + more_digits, scale + more_scale)
    unscaled = draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1)))
    values = [Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)) for n in unscaled]
    return _decimal(precision, scale), reader, values


def _as_nullable(schema: Any) -> Any:
    return ["null", schema]


def _as_is(schema: Any) -> Any:
    return schema


@given(
    st.one_of(_instants(), _times(), _decimals()),
    st.sampled_from([_as_is, _as_nullable]),
    st.sampled_from([_as_is, _as_nullable]),
)
def test_what_changes_its_unit_or_scale_is_what_fastavro_reads(
    pair: tuple[Any, Any, list[Any]], of_writer: Any, of_reader: Any
) -> None:
    writer, reader = of_writer(pair[0]), of_reader(pair[1])
    written = encoded(pair[2], writer)
    schemas = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    theirs = [fastavro.schemaless_reader(io.BytesIO(each), *schemas) for each in written]
    node = parse_avro(json.dumps(reader))
    type_ = to_arrow_type(spark_type(node, TypeOptions()), timezone="UTC")
    decoder = avro_decoder(parse_avro(json.dumps(writer)), node, type_, -1)
    for times in (1, ROWS_MIN):  # one by one where they are few, and all together
        found = decoder(pa.array(written * times, pa.binary()))
        assert found.first_problem is None
        assert found.values.to_pylist() == theirs * times == pair[2] * times


@given(*[st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))] * 2)
def test_decimals_are_refused_unless_the_readers_holds_every_value(
    writer: tuple[int, int], reader: tuple[int, int]
) -> None:
    node = parse_avro(json.dumps(_decimal(*reader)))
    theirs = parse_avro(json.dumps(_decimal(*writer)))
    nines = Decimal((0, (9,) * writer[0], -writer[1]))
    scaled = Fraction(10 ** writer[0] - 1, 10 ** writer[1]) * 10 ** reader[1]
    holds = reader[1] >= writer[1] and scaled < 10 ** reader[0]
    type_ = pa.decimal128(*reader)
    if not holds:
        with pytest.raises(AvroSchemaError, match="cannot be read as"):
            avro_decoder(theirs, node, type_, -1)
        return
    value = encoded([nines], _decimal(*writer))
    found = avro_decoder(theirs, node, type_, -1)(pa.array(value, pa.binary()))
    assert found.values.to_pylist() == [nines]
