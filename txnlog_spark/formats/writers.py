"""What a format makes of the keys or the values of a write, by format.

A writer is made on the driver when a batch is planned, which is where a registry is asked, and goes
to the tasks as it is: plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from txnlog_spark.codec.schema_ids import with_header
from txnlog_spark.codec.types import arrow_type
from txnlog_spark.formats.time_zone import zone_of_column

Encode = Callable[[Any], Any]
"""An Arrow array without null to a binary array."""


@dataclass(frozen=True, slots=True)
class TextWriter:
    """Text in UTF-8, which it is in Arrow."""

    def encode(self, column: Any) -> Any:
        """The strings' bytes."""
        return column.cast(pa.binary())


@dataclass(frozen=True, slots=True)
class JsonWriter:
    """JSON, as `to_json` writes it, behind `header`. Without `time_zone` it is the session's.

    `column` is where the values are, "" where the fields of a struct are the columns.
    """

    type: DataType
    time_zone: str | None
    header: bytes
    column: str

    def encode(self, column: Any) -> Any:
        """The values' texts."""
        zone = self.time_zone or zone_of_column(column.type) or "UTC"
        return with_header(self.header, _json_encode(self.type, zone, self.column)(column))


@lru_cache(maxsize=64)
def _json_encode(type_: DataType, time_zone: str, column: str) -> Encode:
    from txnlog_spark.json.encode import json_encoder

    return json_encoder(type_, time_zone, column)


@dataclass(frozen=True, slots=True)
class AvroWriter:
    """Avro with one schema, behind `header`."""

    type: DataType
    schema: str
    header: bytes

    def encode(self, column: Any) -> Any:
        """The values' datums."""
        from txnlog_spark.avro.encode import schema_encoder

        encode = schema_encoder(self.schema, arrow_type(self.type))
        return with_header(self.header, encode(column))


@dataclass(frozen=True, slots=True)
class ProtobufWriter:
    """Messages of this name in a descriptor set, behind `header`."""

    type: DataType
    descriptors: bytes
    message: str
    header: bytes

    def encode(self, column: Any) -> Any:
        """The values' messages."""
        encode = _protobuf_encode(self.descriptors, self.message, self.type)
        return with_header(self.header, encode(column))


@lru_cache(maxsize=64)
def _protobuf_encode(descriptors: bytes, message: str, type_: DataType) -> Encode:
    from txnlog_spark.protobuf.encode import protobuf_encoder
    from txnlog_spark.protobuf.types import message_descriptor

    return protobuf_encoder(message_descriptor(descriptors, message), type_)
