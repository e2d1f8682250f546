"""Columns of Avro values to columns of Spark values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from txnlog_spark.avro.errors import MalformedAvro
from txnlog_spark.avro.raw import RawDecoder
from txnlog_spark.avro.resolve import Unresolvable, resolver
from txnlog_spark.avro.scan import Whole, scanner
from txnlog_spark.avro.schema import Avro
from txnlog_spark.codec.decoded import Decoded, Misfit, spread

_REFUSALS = (MalformedAvro, Unresolvable, pa.ArrowException, OverflowError)
"""What a value leads to that is not one of its schema: pyarrow's where it is out of range."""

_ROUNDS_MAX = 100
"""So often is a column scanned again without the values that the scan before stopped at. It stops
at the first field that some of them lack, so there may be a round for each field."""


class Decoder:
    """Decodes values that were written with one schema, as another, the reader's, has them.

    `type_` is Arrow's type of the Spark type of the reader's schema. AvroSchemaError where the
    reader's schema cannot read the writer's at all.
    """

    def __init__(self, writer: Avro, reader: Avro, type_: pa.DataType, depth_max: int) -> None:
        self._raw = RawDecoder(writer, depth_max)
        self._scan = scanner(writer)
        self._resolve = resolver(writer, reader, type_)

    def decode(self, values: pa.Array) -> Decoded:
        """The values, none null; a malformed one is null and has a problem."""
        try:
            return Decoded(self._decode(values))
        except _REFUSALS:
            problems = self._misfits(values)
        kept = _others(problems, len(values))
        try:
            made = self._decode(values.take(pa.array(kept)))
        except _REFUSALS:
            for row in kept.tolist():
                self._look_at(values, row, problems)
            kept = _others(problems, len(values))
            made = self._decode(values.take(pa.array(kept)))
        valid = np.zeros(len(values), bool)
        valid[kept] = True
        texts = [problems.get(row) for row in range(len(values))]
        return Decoded(spread(made, pa.array(valid)), pa.array(texts, pa.string()))

    def _misfits(self, values: pa.Array) -> dict[int, str]:
        """The rows that the scan stops at and that are malformed, taken out step by step."""
        problems: dict[int, str] = {}
        if self._scan is None:
            return problems
        for _ in range(_ROUNDS_MAX):
            kept = _others(problems, len(values))
            try:
                self._scan(values.take(pa.array(kept)))
                break
            except Misfit as misfit:
                doubted = [] if misfit.rows is None else kept[misfit.rows].tolist()
            malformed = [row for row in doubted if self._look_at(values, row, problems)]
            if not malformed or len(malformed) < len(doubted):
                break
        return problems

    def _decode(self, values: pa.Array) -> pa.Array:
        try:
            raw = self._scan(values) if self._scan else self._raw.decode(values.to_pylist())
        except Misfit:
            raw = self._raw.decode(values.to_pylist())
        return self._resolve(raw)

    def _look_at(self, values: pa.Array, row: int, problems: dict[int, str]) -> bool:
        """Whether this value is malformed; if so, what is wrong with it is put into `problems`."""
        try:
            self._decode(values.slice(row, 1))
        except MalformedAvro as error:
            problems[row] = error.problem
        except _REFUSALS as error:
            problems[row] = str(error)
        return row in problems


def _others(problems: dict[int, str], count: int) -> Whole:
    return np.setdiff1d(np.arange(count), list(problems))


def null_fields(array: pa.Array, absent: pa.Array) -> pa.Array:
    """Null only where `absent`; elsewhere a struct that is null becomes one of null fields.

    So does Spark's `from_avro` with what is malformed in mode PERMISSIVE. Any other type stays.
    """
    if not pa.types.is_struct(array.type) or array.null_count == absent.true_count:
        return array
    return pa.StructArray.from_arrays(array.flatten(), fields=list(array.type), mask=absent)
