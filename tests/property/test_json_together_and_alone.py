"""JSON texts that are read together have the values that they have one by one."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark
from support.spark.json_cases import WHOLE, Texts, plain

from txnlog_spark.formats.decoded import Decoded
from txnlog_spark.formats.json.alone import one_by_one
from txnlog_spark.formats.json.decode import json_decoder
from txnlog_spark.formats.json.encode import json_encoder
from txnlog_spark.formats.json.times import session_zone

ZONE = "Europe/Berlin"
LEAVES = (
    spark.BooleanType(), spark.ByteType(), spark.ShortType(), spark.IntegerType(), spark.LongType(),
    spark.FloatType(), spark.DoubleType(), spark.StringType(), spark.BinaryType(), spark.DateType(),
    spark.TimestampType(), spark.TimestampNTZType(), spark.DecimalType(9, 2),
    spark.DecimalType(38, 10), spark.DecimalType(20, 0),
)  # fmt: skip


def structs_of(types: list[spark.DataType]) -> spark.DataType:
    fields = [spark.StructField(name, type_) for name, type_ in zip("abcde", types, strict=False)]
    return spark.StructType(fields)


below = st.recursive(
    st.sampled_from(LEAVES),
    lambda types: st.one_of(
        types.map(spark.ArrayType), st.lists(types, min_size=1, max_size=3).map(structs_of)
    ),
    max_leaves=4,
)
types = st.one_of(
    st.lists(below, min_size=1, max_size=4).map(structs_of), below.map(spark.ArrayType)
)


def problems(made: Decoded) -> Any:
    return made.problems and made.problems.to_pylist()


@settings(max_examples=300)
@given(types, st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.3]), st.integers(1, 60))
def test_texts_have_the_same_values_together_and_alone(type_, seed, often, count):
    rng = random.Random(seed)
    made = Texts(rng, odd=often, damaged=often)
    values = [
        rng.choice(WHOLE) if rng.random() < often / 3 else made.text(type_) for _ in range(count)
    ]
    array = pa.array([b"", *values], pa.binary()).slice(1)
    together = json_decoder(type_, ZONE)(array)
    alone = one_by_one(type_, session_zone(ZONE))(array)
    together.values.validate(full=True)
    assert problems(together) == problems(alone)
    assert together.values.type == alone.values.type
    assert plain(together.values) == plain(alone.values)


@settings(max_examples=200)
@given(types, st.integers(0, 2**32), st.integers(1, 30))
def test_what_is_written_is_read_as_the_same_value(type_, seed, count):
    """But for the microseconds, which a text of Spark leaves out."""
    made = Texts(random.Random(seed), odd=0.0, damaged=0.0)
    array = pa.array([made.text(type_) for _ in range(count)], pa.binary())
    values = json_decoder(type_, ZONE)(array)
    present = values.values.drop_null()
    written = json_encoder(type_, ZONE)(present)
    again = json_decoder(type_, ZONE)(written)
    assert again.problems is None
    assert json_encoder(type_, ZONE)(again.values).equals(written)


@pytest.mark.parametrize("seed", range(3))
def test_many_texts_are_read_together_whatever_damage_is_among_them(seed):
    type_ = structs_of([spark.LongType(), spark.StringType(), spark.TimestampType()])
    rng = random.Random(seed)
    right, wrong = Texts(rng, odd=0.0, damaged=0.0), Texts(rng, odd=0.5, damaged=1.0)
    values = [right.text(type_) for _ in range(2000)]
    for _ in range(20):
        values[rng.randrange(len(values))] = wrong.text(type_)
    array = pa.array(values, pa.binary())
    together, alone = json_decoder(type_, ZONE)(array), one_by_one(type_, session_zone(ZONE))(array)
    assert together.values.equals(alone.values)
    assert problems(together) == problems(alone)
