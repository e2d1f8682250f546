"""From Avro bytes to *raw* Arrow arrays, without logical types.

fastavro decodes with a schema of the same binary layout, whose values Arrow takes in bulk:

    string              bytes: no text is made that Arrow would encode again
    enum                int: the symbol's index
    logical types       their integer or bytes
    map                 array of records key, value
    union of several    each branch in a record of one field, `member<i>`, which costs no byte:
                        Arrow puts it into that field of a struct, and null into the others
"""

from __future__ import annotations

from io import BytesIO
from itertools import count
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.types import Schema

from txnlog_spark.formats.avro.schema import NO_DEFAULT, Avro
from txnlog_spark.formats.errors import AvroSchemaError, MalformedAvro

_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.binary(),
    "enum": pa.int32(),
}


def raw_members(node: Avro) -> list[Avro]:
    """Return the branches of a union that is a struct of members when raw; [] for other types."""
    branches = node.non_null
    return branches if len(branches) > 1 and not node.widened else []


class _Layout:
    """Maker of the schema for fastavro. Each named type gets a name of its own."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.numbers = count()

    def of(self, node: Avro) -> Any:
        if node.kind in ("bytes", "string"):
            return "bytes"
        if node.kind == "enum":
            return "int"
        if node.kind == "array":
            return {"type": "array", "items": self.of(node.items)}
        if node.kind == "map":
            entry = self._record(key="bytes", value=self.of(node.items))
            return {"type": "array", "items": entry}
        if node.kind == "union":
            return self._union(node)
        if node.kind in ("record", "fixed"):
            return self._named(node)
        return node.kind

    def _new_name(self) -> str:
        return f"type{next(self.numbers)}"

    def _record(self, **fields: Any) -> dict[str, Any]:
        made = [{"name": name, "type": type_} for name, type_ in fields.items()]
        return {"type": "record", "name": self._new_name(), "fields": made}

    def _union(self, node: Avro) -> list[Any]:
        members = raw_members(node)
        return [
            self._record(**{f"member{members.index(branch)}": self.of(branch)})
            if branch in members
            else self.of(branch)
            for branch in node.branches
        ]

    def _named(self, node: Avro) -> Any:
        if id(node) in self.names:
            return self.names[id(node)]
        name = self.names[id(node)] = self._new_name()
        if node.kind == "fixed":
            return {"type": "fixed", "name": name, "size": node.size}
        fields = [{"name": each.name, "type": self.of(each.type)} for each in node.fields]
        return {"type": "record", "name": name, "fields": fields}


def raw_type(node: Avro, depth_max: int, depths: dict[str, int] | None = None) -> Any:
    """Return the Arrow type of raw values; None for a record in itself beyond `depth_max`."""
    depths = depths or {}
    if node.kind == "fixed":
        return pa.binary(node.size)
    if node.kind == "record":
        depth = depths.get(node.name, 0)
        if depth and depth >= depth_max:
            return None
        inner = depths | {node.name: depth + 1}
        fields = [(each.name, raw_type(each.type, depth_max, inner)) for each in node.fields]
        return pa.struct([(name, type_) for name, type_ in fields if type_ is not None])
    if node.kind == "union":
        return _raw_union_type(node, depth_max, depths)
    if node.kind not in ("array", "map"):
        return _ARROW[node.kind]
    items = raw_type(node.items, depth_max, depths)
    if items is None:
        return None
    if node.kind == "map":
        items = pa.struct([("key", pa.binary()), ("value", items)])
    return pa.list_(items)


def _raw_union_type(node: Avro, depth_max: int, depths: dict[str, int]) -> Any:
    if node.widened:
        return _ARROW[node.widened]
    branches = [raw_type(branch, depth_max, depths) for branch in node.non_null]
    if len(branches) == 1:
        return branches[0]
    named = [(f"member{index}", type_) for index, type_ in enumerate(branches)]
    return pa.struct([(name, type_) for name, type_ in named if type_ is not None])


class RawDecoder:
    """Decoder of values of one schema."""

    def __init__(self, node: Avro, depth_max: int) -> None:
        self.type = raw_type(node, depth_max)
        self._schema: Schema = fastavro.parse_schema(_Layout().of(node))

    def decode(self, values: list[bytes]) -> pa.Array:
        """Return the raw array of these values. MalformedAvro names the first malformed one."""
        read, schema = fastavro.schemaless_reader, self._schema
        decoded: list[Any] = []
        add = decoded.append
        try:
            for value in values:
                add(read(BytesIO(value), schema, None))
        except Exception as error:  # noqa: BLE001  # fastavro raises whatever the bytes lead to
            row = len(decoded)
            problem = f"{len(values[row])} bytes are not a datum of the schema: {error!r}"
            raise MalformedAvro(row, problem) from None
        return pa.array(decoded, self.type)


def raw_default(node: Avro, given: Any) -> Any:
    """Return the default of a field, which is JSON, as the raw value of a decoder."""
    try:
        return _default_of(node, given)
    except (TypeError, ValueError, AttributeError, KeyError):
        raise AvroSchemaError(
            f"an Avro schema has the default {given!r} for a {node.branch_name}"
        ) from None


def _default_of(node: Avro, given: Any) -> Any:
    if node.kind == "union":
        return _union_default(node, given)
    if node.kind == "string":
        return given.encode()
    if node.kind in ("bytes", "fixed"):
        return given.encode("latin-1")
    if node.kind == "enum":
        return node.symbols.index(given)
    if node.kind == "array":
        return [_default_of(node.items, each) for each in given]
    if node.kind == "map":
        entries = given.items()
        return [{"key": key.encode(), "value": _default_of(node.items, v)} for key, v in entries]
    if node.kind == "record":
        # A field without a default has to be in the record: else KeyError.
        values = {f.name: f.default for f in node.fields if f.default is not NO_DEFAULT} | given
        return {f.name: _default_of(f.type, values[f.name]) for f in node.fields}
    if (given is None) != (node.kind == "null"):
        raise ValueError(given)
    return pa.scalar(given, _ARROW[node.kind]).as_py()


def _union_default(node: Avro, given: Any) -> Any:
    if given is None:
        if not node.nullable:
            raise ValueError(given)
        return None
    for index, branch in enumerate(node.non_null):
        try:
            made = _default_of(branch, given)
        except (TypeError, ValueError, AttributeError, KeyError):
            # The default does not fit this branch. It may fit a later branch of the union.
            continue
        return {f"member{index}": made} if raw_members(node) else made
    raise ValueError(given)
