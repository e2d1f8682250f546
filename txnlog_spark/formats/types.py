"""Spark's types: their Arrow types, and the parts of them that `value.fields` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from txnlog_spark.errors import OptionError, TxnLogError

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


# Parts ----------------------------------------------------------------------------------------


def part_of(type_: DataType, paths: Sequence[tuple[str, ...]], option: str) -> DataType:
    """Return the type with the fields of these paths alone, in its own order; all without paths.

    A path goes through arrays, and through the values of maps, to the structs in them. OptionError
    names a path that leads nowhere. An `Unreadable` part that is wanted raises its error.
    """
    try:
        return _part(type_, paths, 0) if paths else type_
    except _Nowhere as error:
        hint = "; a name with a dot is in backticks" if len(error.path) > 1 else ""
        shown = ", ".join(type_.names) if isinstance(type_, StructType) else type_.simpleString()
        raise OptionError(option, ".".join(error.path), f"a field of {shown}{hint}") from None


class _Nowhere(Exception):
    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__(path)
        self.path = path


def _check_readable(type_: DataType) -> None:
    if isinstance(type_, Unreadable):
        raise type_.error
    if isinstance(type_, (ArrayType, MapType)):
        _check_readable(type_.elementType if isinstance(type_, ArrayType) else type_.valueType)
    for field in type_ if isinstance(type_, StructType) else ():
        _check_readable(field.dataType)


def _part(type_: DataType, paths: Sequence[tuple[str, ...]], depth: int) -> DataType:
    """Return the part that paths lead to which agree in their first `depth` names."""
    if any(len(path) == depth for path in paths):
        _check_readable(type_)
        return type_
    if isinstance(type_, Unreadable):
        if type_.inner is None:
            raise type_.error
        return _part(type_.inner, paths, depth)
    if isinstance(type_, ArrayType):
        return ArrayType(_part(type_.elementType, paths, depth), type_.containsNull)
    if isinstance(type_, MapType):
        value = _part(type_.valueType, paths, depth)
        return MapType(type_.keyType, value, type_.valueContainsNull)
    fields = type_.fields if isinstance(type_, StructType) else []
    for path in paths:
        if path[depth] not in [field.name for field in fields]:
            raise _Nowhere(path)
    made = StructType()
    for field in fields:
        below = [path for path in paths if path[depth] == field.name]
        if below:
            made.add(field.name, _part(field.dataType, below, depth + 1), field.nullable)
    return made
