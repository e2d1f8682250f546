"""The part of a type that `value.fields` names."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.types import Unreadable


def part_of(type_: DataType, paths: Sequence[tuple[str, ...]], option: str) -> DataType:
    """Return the type with the fields of these paths alone, in its own order; all without paths.

    A path goes through arrays, and through the values of maps, to the structs in them. OptionError
    names a path that leads nowhere. An `Unreadable` part that is wanted raises its error.
    """
    if not paths:
        return type_
    for path in paths:
        if not _leads_somewhere(type_, path):
            hint = "; a name with a dot is in backticks" if len(path) > 1 else ""
            raise OptionError(option, ".".join(path), f"a field of {_shown(type_)}{hint}")
    return _part(type_, [list(path) for path in paths])


def _shown(type_: DataType) -> str:
    return ", ".join(type_.names) if isinstance(type_, StructType) else type_.simpleString()


def _below(type_: DataType) -> DataType:
    while isinstance(type_, (ArrayType, MapType, Unreadable)):
        if isinstance(type_, Unreadable):
            type_ = _inner(type_)
        else:
            type_ = type_.elementType if isinstance(type_, ArrayType) else type_.valueType
    return type_


def _inner(type_: Unreadable) -> DataType:
    if type_.inner is None:
        raise type_.error
    return type_.inner


def _check_readable(type_: DataType) -> None:
    if isinstance(type_, Unreadable):
        raise type_.error
    if isinstance(type_, (ArrayType, MapType)):
        _check_readable(_below(type_))
    for field in type_ if isinstance(type_, StructType) else ():
        _check_readable(field.dataType)


def _leads_somewhere(type_: DataType, path: Sequence[str]) -> bool:
    if not path:
        return True
    inner = _below(type_)
    if not isinstance(inner, StructType) or path[0] not in inner.names:
        return False
    return _leads_somewhere(inner[path[0]].dataType, path[1:])


def _part(type_: DataType, wanted: list[list[str]]) -> DataType:
    if [] in wanted:
        _check_readable(type_)
        return type_
    if isinstance(type_, Unreadable):
        return _part(_inner(type_), wanted)
    if isinstance(type_, ArrayType):
        return ArrayType(_part(type_.elementType, wanted), type_.containsNull)
    if isinstance(type_, MapType):
        return MapType(type_.keyType, _part(type_.valueType, wanted), type_.valueContainsNull)
    made = StructType()
    for field in type_ if isinstance(type_, StructType) else ():
        below = [path[1:] for path in wanted if path[0] == field.name]
        if below:
            made.add(field.name, _part(field.dataType, below), field.nullable)
    return made
