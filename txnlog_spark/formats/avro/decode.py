"""Columns of Avro values to columns of Spark values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from txnlog_spark.formats.avro.raw import RawDecoder
from txnlog_spark.formats.avro.resolve import Unresolvable, resolver
from txnlog_spark.formats.avro.scan import scanner
from txnlog_spark.formats.avro.schema import Avro
from txnlog_spark.formats.columns import Whole
from txnlog_spark.formats.decoded import Decode, Decoded, Misfit, with_problems
from txnlog_spark.formats.errors import MalformedAvro

_REFUSALS = (MalformedAvro, Unresolvable, pa.ArrowException, OverflowError)
"""Errors of a value that is not a value of its schema; pyarrow's if it is out of range."""

_ROUNDS_MAX = 100
"""Times that a column is scanned again without the values at which the scan before stopped.

A scan stops at the first field that some values lack, so there may be a round for each field."""


def avro_decoder(writer: Avro, reader: Avro, type_: pa.DataType, depth_max: int) -> Decode:
    """Decode values that were written with one schema as another, the reader's, has them.

    `type_` is Arrow's type of the Spark type of the reader's schema. AvroSchemaError where the
    reader's schema cannot read the writer's at all.
    """
    return _Decoder(writer, reader, type_, depth_max).decode


class _Decoder:
    def __init__(self, writer: Avro, reader: Avro, type_: pa.DataType, depth_max: int) -> None:
        self._raw = RawDecoder(writer, depth_max)
        self._scan = scanner(writer)
        self._resolve = resolver(writer, reader, type_)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values without null; a malformed value is null and has a problem."""
        try:
            return Decoded(self._decode(values))
        except _REFUSALS:
            problems = self._misfits(values)
        kept = _others(problems, len(values))
        try:
            made = self._decode(values.take(pa.array(kept)))
        except _REFUSALS:
            for row in kept.tolist():
                self._find_problem(values, row, problems)
            kept = _others(problems, len(values))
            made = self._decode(values.take(pa.array(kept)))
        return with_problems(made, problems, len(values))

    def _misfits(self, values: pa.Array) -> dict[int, str]:
        """Return the malformed rows at which scans stop, each scan without the rows before."""
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
            malformed = [row for row in doubted if self._find_problem(values, row, problems)]
            if not malformed or len(malformed) < len(doubted):
                break
        return problems

    def _decode(self, values: pa.Array) -> pa.Array:
        try:
            raw = self._scan(values) if self._scan else self._raw.decode(values.to_pylist())
        except Misfit:
            raw = self._raw.decode(values.to_pylist())
        return self._resolve(raw)

    def _find_problem(self, values: pa.Array, row: int, problems: dict[int, str]) -> bool:
        """Return whether a value is malformed, and put the reason into `problems`."""
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
    """Return structs that are null only where `absent`; elsewhere null becomes null fields.

    Spark's `from_avro` gives malformed values so in mode PERMISSIVE. Other types stay.
    """
    if not pa.types.is_struct(array.type) or array.null_count == absent.true_count:
        return array
    return pa.StructArray.from_arrays(array.flatten(), fields=list(array.type), mask=absent)
