"""Columns of Avro values to columns of Spark values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from txnlog_spark.avro.errors import MalformedAvro
from txnlog_spark.avro.raw import RawDecoder
from txnlog_spark.avro.resolve import Unresolvable, resolver, spread
from txnlog_spark.avro.scan import Misfit, Whole, scanner
from txnlog_spark.avro.schema import Avro

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

    def decode(self, values: pa.Array) -> pa.Array:
        """The Arrow array of these values, none null. MalformedAvro says which is none, and why."""
        try:
            return self._decode(values)
        except MalformedAvro:
            raise
        except _REFUSALS:
            for row in range(len(values)):
                self._check(values, row)
            raise

    def decode_valid(self, values: pa.Array) -> pa.Array:
        """The same with null for what is none."""
        try:
            return self._decode(values)
        except _REFUSALS:
            kept = self._without_misfits(values)
        try:
            made = self._decode(values.take(pa.array(kept)))
        except _REFUSALS:
            kept = np.array([row for row in kept.tolist() if self._is_valid(values, row)], np.int64)
            made = self._decode(values.take(pa.array(kept)))
        valid = np.zeros(len(values), bool)
        valid[kept] = True
        return spread(made, pa.array(valid))

    def _without_misfits(self, values: pa.Array) -> Whole:
        """The rows that are left when those are taken out which the scan stops at, step by step."""
        kept = np.arange(len(values))
        if self._scan is None:
            return kept
        for _ in range(_ROUNDS_MAX):
            try:
                self._scan(values.take(pa.array(kept)))
                break
            except Misfit as misfit:
                doubted = [] if misfit.rows is None else kept[misfit.rows].tolist()
            malformed = [row for row in doubted if not self._is_valid(values, row)]
            kept = np.setdiff1d(kept, malformed)
            if not malformed or len(malformed) < len(doubted):
                break
        return kept

    def _decode(self, values: pa.Array) -> pa.Array:
        try:
            raw = self._scan(values) if self._scan else self._raw.decode(values.to_pylist())
        except Misfit:
            raw = self._raw.decode(values.to_pylist())
        return self._resolve(raw)

    def _is_valid(self, values: pa.Array, row: int) -> bool:
        try:
            self._check(values, row)
        except MalformedAvro:
            return False
        return True

    def _check(self, values: pa.Array, row: int) -> None:
        try:
            self._decode(values.slice(row, 1))
        except MalformedAvro as error:
            raise MalformedAvro(row, error.problem) from None
        except _REFUSALS as error:
            raise MalformedAvro(row, str(error)) from None


def null_fields(array: pa.Array, absent: pa.Array) -> pa.Array:
    """Null only where `absent`; elsewhere a struct that is null becomes one of null fields.

    So does Spark's `from_avro` with what is malformed in mode PERMISSIVE. Any other type stays.
    """
    if not pa.types.is_struct(array.type) or array.null_count == absent.true_count:
        return array
    return pa.StructArray.from_arrays(array.flatten(), fields=list(array.type), mask=absent)
