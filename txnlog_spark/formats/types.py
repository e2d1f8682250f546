"""Spark's types on the way to and from Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from txnlog_spark.errors import TxnLogError

if TYPE_CHECKING:
    import pyarrow as pa


class Unreadable(DataType):
    """Place of a type that a field does not have: an error only if the field is wanted.

    `inner`: the type without the parts that `error` is about, None if there is no such type.
    """

    def __init__(self, error: TxnLogError, inner: DataType | None = None) -> None:
        self.error = error
        self.inner = inner


def arrow_type(type_: DataType) -> pa.DataType:
    """Return the Arrow type in which Spark takes and gives values of this type."""
    from pyspark.sql.pandas.types import to_arrow_type  # with Arrow, which planning does without

    return to_arrow_type(type_, timezone="UTC")


def all_nullable(type_: DataType) -> DataType:
    """Return the same type in which everything may be null."""
    if isinstance(type_, StructType):
        made = StructType()
        for field in type_.fields:
            made.add(field.name, all_nullable(field.dataType), True)
        return made
    if isinstance(type_, ArrayType):
        return ArrayType(all_nullable(type_.elementType), True)
    if isinstance(type_, MapType):
        return MapType(type_.keyType, all_nullable(type_.valueType), True)
    return type_
