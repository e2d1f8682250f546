"""Spark types of Avro schemas and the reverse, as Spark's SchemaConverters has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as spark

from txnlog_spark.formats.avro.schema import Avro, AvroField, decimal_bytes
from txnlog_spark.formats.errors import AvroSchemaError
from txnlog_spark.formats.types import Unreadable

_PLAIN: dict[str, type[spark.DataType]] = {
    "boolean": spark.BooleanType,
    "int": spark.IntegerType,
    "long": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "bytes": spark.BinaryType,
    "fixed": spark.BinaryType,
    "string": spark.StringType,
    "enum": spark.StringType,
    "null": spark.NullType,
}
_LOGICAL: dict[str, type[spark.DataType]] = {
    "date": spark.DateType,
    "timestamp-millis": spark.TimestampType,
    "timestamp-micros": spark.TimestampType,
    "local-timestamp-millis": spark.TimestampNTZType,
    "local-timestamp-micros": spark.TimestampNTZType,
}
DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True)
class TypeOptions:
    """Options of Spark's `from_avro` on which the Spark type depends."""

    recursive_depth: int = -1
    """Times that a record may be inside itself, the outermost counted; below 1: never."""
    stable_union_names: bool = False
    union_name_prefix: str = "member_"


@dataclass(frozen=True)
class _Conversion:
    options: TypeOptions
    lenient: bool

    def convert(self, node: Avro, depths: dict[str, int]) -> tuple[spark.DataType, bool] | None:
        """Return Spark type and nullability; None if the depth of recursion leaves nothing."""
        if node.kind == "record":
            return self._record(node, depths)
        if node.kind == "union":
            return self._union(node, depths)
        if node.kind not in ("array", "map"):
            return _leaf_type(node), node.kind == "null"
        items = self.convert(node.items, depths)
        if items is None:
            return None
        if node.kind == "array":
            return spark.ArrayType(*items), False
        return spark.MapType(spark.StringType(), *items), False

    def _record(self, node: Avro, depths: dict[str, int]) -> tuple[spark.DataType, bool] | None:
        depth = depths.get(node.name, 0)
        if depth and self.options.recursive_depth <= 0:
            raise AvroSchemaError(
                f"the Avro record {node.name} contains itself, which no Spark type does; the "
                "option recursiveFieldMaxDepth (1 to 15) says to what depth it is to be read"
            )
        if depth and depth >= self.options.recursive_depth:
            return None
        inner = depths | {node.name: depth + 1}
        made = spark.StructType()
        for field in node.fields:
            try:
                found = self.convert(field.type, inner)
            except AvroSchemaError as error:
                if not self.lenient:
                    raise
                found = Unreadable(error), True
            if found is not None:
                made.add(field.name, *found)
        return made, False

    def _union(self, node: Avro, depths: dict[str, int]) -> tuple[spark.DataType, bool] | None:
        branches, nullable = node.non_null, node.nullable
        if node.widened:
            return _PLAIN[node.widened](), nullable
        if len(branches) == 1:
            found = self.convert(branches[0], depths)
            return found and (found[0], nullable or found[1])
        made = spark.StructType()
        for index, name in enumerate(member_names(node, self.options)):
            found = self.convert(branches[index], depths)
            if found is None:
                raise AvroSchemaError(
                    f"recursiveFieldMaxDepth leaves nothing of {branches[index].branch_name}, a "
                    "branch of a union of several types"
                )
            made.add(name, found[0], True)
        return made, nullable


def member_names(union: Avro, options: TypeOptions) -> list[str]:
    """Return the fields of the struct that a union of several types becomes."""
    branches = union.non_null
    if not options.stable_union_names:
        return [f"member{index}" for index in range(len(branches))]
    simple = [branch.branch_name.rpartition(".")[2] for branch in branches]
    lowered = [name.lower() for name in simple]
    if len(set(lowered)) < len(lowered):
        raise AvroSchemaError(
            f"enableStableIdentifiersForUnionType: types of a union have the same name: {simple}"
        )
    return [options.union_name_prefix + name for name in simple]


def _leaf_type(node: Avro) -> spark.DataType:
    if node.logical == "decimal":
        if node.precision > DECIMAL_DIGITS_MAX:
            raise AvroSchemaError(
                f"an Avro decimal of {node.precision} digits does not fit Spark's "
                f"{DECIMAL_DIGITS_MAX}"
            )
        return spark.DecimalType(node.precision, node.scale)
    if node.logical == "time-micros":
        precision = node.catalyst_type.removeprefix("time(").removesuffix(")")
        return spark.TimeType(int(precision) if precision.isdecimal() else 6)
    if node.logical in _LOGICAL:
        return _LOGICAL[node.logical]()
    if node.logical.endswith("timestamp-nanos") or node.catalyst_type:
        what = node.logical or f"spark.sql.catalyst.type {node.catalyst_type}"
        raise AvroSchemaError(f"txnlog_spark.avro does not convert the Avro type {what}")
    return _PLAIN[node.kind]()


def spark_type(node: Avro, options: TypeOptions, *, lenient: bool = False) -> spark.DataType:
    """Return the Spark type that `from_avro` gives for a schema. AvroSchemaError without one.

    `lenient`: a field without a type is `Unreadable`.
    """
    found = _Conversion(options, lenient).convert(node, {})
    if found is None:
        raise AvroSchemaError("recursiveFieldMaxDepth leaves nothing of the Avro schema")
    return found[0]


_FROM_SPARK: dict[type[spark.DataType], Any] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "int",
    spark.ShortType: "int",
    spark.IntegerType: "int",
    spark.LongType: "long",
    spark.FloatType: "float",
    spark.DoubleType: "double",
    spark.StringType: "string",
    spark.BinaryType: "bytes",
    spark.NullType: "null",
    spark.DateType: {"type": "int", "logicalType": "date"},
    spark.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    spark.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_json(type_: spark.DataType, nullable: bool) -> str:
    """Return the JSON of the schema with which `to_avro` writes a column of this type."""
    return json.dumps(_avro_of(type_, nullable, "topLevelRecord", ""))


def _avro_of(type_: spark.DataType, nullable: bool, name: str, namespace: str) -> Any:
    made = _avro_of_value(type_, name, namespace)
    return [made, "null"] if nullable and not isinstance(type_, spark.NullType) else made


def _avro_of_value(type_: spark.DataType, name: str, namespace: str) -> Any:
    inner = f"{namespace}.{name}" if namespace else name
    if isinstance(type_, spark.DecimalType):
        return {
            "type": "fixed",
            "name": "fixed",
            "namespace": inner,
            "size": decimal_bytes(type_.precision),
            "logicalType": "decimal",
            "precision": type_.precision,
            "scale": type_.scale,
        }
    if isinstance(type_, spark.TimeType):
        logical = {"type": "long", "logicalType": "time-micros"}
        return logical | {"spark.sql.catalyst.type": type_.simpleString()}
    if isinstance(type_, spark.ArrayType):
        items = _avro_of(type_.elementType, type_.containsNull, name, namespace)
        return {"type": "array", "items": items}
    if isinstance(type_, spark.MapType) and isinstance(type_.keyType, spark.StringType):
        values = _avro_of(type_.valueType, type_.valueContainsNull, name, namespace)
        return {"type": "map", "values": values}
    if isinstance(type_, spark.StructType):
        fields = [
            {"name": each.name, "type": _avro_of(each.dataType, each.nullable, each.name, inner)}
            for each in type_.fields
        ]
        made = {"type": "record", "name": name, "fields": fields}
        return made | ({"namespace": namespace} if namespace else {})
    for known, avro in _FROM_SPARK.items():
        if isinstance(type_, known):
            return avro
    raise AvroSchemaError(f"there is no Avro type for a column of {type_.simpleString()}")


def field_named(node: Avro, name: str) -> AvroField | None:
    """Return a record's field of this name, else the only one that differs in case, as Spark."""
    for field in node.fields:
        if field.name == name:
            return field
    found = [field for field in node.fields if field.name.lower() == name.lower()]
    return found[0] if len(found) == 1 else None
