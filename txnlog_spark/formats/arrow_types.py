"""Arrow types of the rows that Spark hands over, and the narrower ones that the encoders read.

With `spark.sql.execution.arrow.useLargeVarTypes` strings and bytes have 64-bit offsets. The
encoders read offsets of 32 bits alone, so rows become narrow where they come in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_spark.errors import OptionError

_NARROW = {
    each: each
    for each in (
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()),
        *(pa.duration("us"), pa.time64("ns"), pa.month_day_nano_interval()),
    )
} | {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""Types without parts or parameters, and the narrow type in place of each."""


def narrow_rows(batch: Any) -> Any:
    """Return the record batch with narrow columns. OptionError for a type that is not read."""
    columns = [
        narrow_array(column, name)
        for column, name in zip(batch.columns, batch.schema.names, strict=True)
    ]
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def narrow_array(array: Any, column: str) -> Any:
    """Return the array with 32-bit offsets in all its parts. OptionError names the column.

    Views, dictionaries and other types that Spark does not send are refused: encoders are not
    tested with them.
    """

    def narrow(type_: pa.DataType) -> pa.DataType:
        if type_ in _NARROW:
            return _NARROW[type_]
        if pa.types.is_decimal128(type_) or (pa.types.is_timestamp(type_) and type_.unit == "us"):
            return type_
        if pa.types.is_list(type_) or pa.types.is_large_list(type_):
            return pa.list_(part(type_.value_field))
        if pa.types.is_map(type_):
            return pa.map_(part(type_.key_field), part(type_.item_field), type_.keys_sorted)
        if pa.types.is_struct(type_):
            return pa.struct([part(field) for field in type_])
        raise OptionError(
            f"column {column}",
            str(array.type),
            f"no Arrow type {type_} is read, and Spark sends none with its defaults: unset the "
            "settings spark.sql.execution.arrow.*",
        )

    def part(field: pa.Field) -> pa.Field:
        return field.with_type(narrow(field.type))

    wanted = narrow(array.type)
    if wanted == array.type:
        return array
    # A copy, as a cast of a slice fails where the slice begins beyond 2 GiB of the whole batch.
    return array.take(pa.array(np.arange(len(array)))).cast(wanted)
