"""JSON texts to columns of Spark values, as Spark's `from_json` reads them with its defaults.

Many texts are read at once by Arrow's JSON reader, which takes less than Spark in most respects.
Where it takes more, or gives something else, the texts are read one by one (`alone`). So are those
of a schema with a map, which that reader does not know. A text that Spark finds malformed is null
here and has a problem. So is a text that is refused here alone (docs/formats.md): no value is
another than Spark's.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import binary_parts
from txnlog_spark.formats.decoded import Decode, Misfit, decode_halves, on_present
from txnlog_spark.formats.json.alone import one_by_one
from txnlog_spark.formats.json.times import Zone, dates, session_zone, timestamps
from txnlog_spark.formats.types import arrow_type

ROWS_MIN = 64
"""Number of texts that are read one by one if they cannot be read together."""

_BYTES_MAX = 1 << 28
_BLANKS = " \t\r\n"
_NOT_JACKSONS = re.compile(rb"[\[:,][ \t\r\n]*(?:-NaN|-?Inf)[ \t\r\n]*[,}\]]")
"""Numbers that Arrow's reader takes, and Jackson refuses."""
_NESTING_MAX = 500
"""Brackets of a text from which Python's parser decides, which does not read all depths."""

_WIDE_DECIMAL = pa.decimal256(76, 38)
_TOO_WIDE = (
    r'[0-9]{29}|[:\[,][ \t\r\n]*"?[+-]?[0-9.]+[eE][+-]?[0-9]{2}'
    r'|"[0-9.eE+-]*\\u00(?:2[bBdDeE]|3[0-9]|[46]5)'
)
"""Numbers with many digits or a great exponent, also with escapes in a string.

Arrow's reader does not check that they fit, and ends the process if the exponent is very great."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The Arrow type that is read for a Spark type, and the conversion to the wanted array."""

    type_: pa.DataType
    convert: Callable[[pa.Array], pa.Array]


def json_decoder(type_: spark.DataType, time_zone: str) -> Decode:
    """Decode JSON texts to `arrow_type(type_)`; `time_zone` is the session's.

    ValueError names a type that is not read, and its field. OptionError names a zone that is
    refused.
    """
    zone = session_zone(time_zone)
    single = one_by_one(type_, zone)
    read = _read(type_, arrow_type(type_), zone)
    if read is None:
        return single
    is_array = isinstance(type_, spark.ArrayType)
    together = _array_reader(read) if is_array else _struct_reader(read)
    return partial(decode_halves, together=together, one_by_one=single, rows_min=ROWS_MIN)


def _struct_reader(read: _Read) -> Callable[[pa.Array], pa.Array]:
    schema = pa.schema(list(read.type_))

    def together(values: pa.Array) -> pa.Array:
        columns = _columns(_checked(values, b"{", b"}"), schema)
        return read.convert(pa.StructArray.from_arrays(columns, fields=list(read.type_)))

    return together


def _array_reader(read: _Read) -> Callable[[pa.Array], pa.Array]:
    """Read each array as the only field of an object."""
    schema = pa.schema([pa.field("v", read.type_)])

    def together(values: pa.Array) -> pa.Array:
        texts = _checked(values, b"[", b"]")
        (column,) = _columns(pc.binary_join_element_wise('{"v":', texts, "}", ""), schema)
        return read.convert(column)

    return together


# Texts ----------------------------------------------------------------------------------------


def _checked(values: pa.Array, opening: bytes, closing: bytes) -> pa.Array:
    """Return the values as texts. Misfit unless each begins and ends as an object or array does.

    So a text cannot borrow from its neighbour. If a text has more than one JSON value, or less, the
    reader gives another number of rows than there are values: a line end between two texts does not
    end a string, and no bracket opens behind a closed one without a comma.
    """
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        raise Misfit from None
    if not _are_closed(texts, opening, closing):
        texts = pc.utf8_trim(texts, _BLANKS)
        if not _are_closed(texts, opening, closing):
            raise Misfit
    _check_limits(texts)
    return texts


def _are_closed(texts: pa.Array, opening: bytes, closing: bytes) -> bool:
    """Return whether each text begins and ends as an object or array does."""
    offsets, data = binary_parts(texts)
    if (np.diff(offsets) < 2).any():
        return False
    right = (data[offsets[:-1]] == opening[0]) & (data[offsets[1:] - 1] == closing[0])
    return bool(right.all())


def _check_limits(texts: pa.Array) -> None:
    """Raise Misfit if a text may be nested too deeply, or all have too many bytes."""
    offsets, _ = binary_parts(texts)
    if offsets[-1] - offsets[0] > _BYTES_MAX:
        raise Misfit
    long = texts.filter(pa.array(np.diff(offsets) > _NESTING_MAX))
    opened = pc.add(pc.count_substring(long, "{"), pc.count_substring(long, "["))
    if len(long) and pc.max(opened).as_py() > _NESTING_MAX:
        raise Misfit


def _columns(texts: pa.Array, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of these objects, as Arrow reads them."""
    import pyarrow.json as arrow_json

    line = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    lines = pc.binary_join(line, "\n")
    if "decimal" in str(schema.types) and pc.match_substring_regex(lines, _TOO_WIDE)[0].as_py():
        raise Misfit
    data = lines[0].as_buffer()
    whole = memoryview(data)
    if _has(whole, b"\0") or (
        (_has(whole, b"Inf") or _has(whole, b"-NaN")) and _NOT_JACKSONS.search(whole)
    ):
        raise Misfit
    try:
        table = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(whole) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="ignore",
                newlines_in_values=True,
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise Misfit from None
    if table.num_rows != len(texts):
        raise Misfit
    return [_whole(column) for column in table.columns]


def _has(data: memoryview, part: bytes) -> bool:
    return re.search(re.escape(part), data) is not None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# Types ----------------------------------------------------------------------------------------


def _read(type_: spark.DataType, arrow: pa.DataType, zone: Zone) -> _Read | None:
    """Return None if Arrow's reader does not know the type."""
    if isinstance(type_, spark.StructType):
        return _struct(type_, arrow, zone)
    if isinstance(type_, spark.ArrayType):
        element = _read(type_.elementType, arrow.value_type, zone)
        return None if element is None else _list(element, arrow)
    if isinstance(type_, spark.MapType):
        return None
    if isinstance(type_, spark.DecimalType):
        return _decimal(arrow)
    if isinstance(type_, (spark.DoubleType, spark.FloatType)):
        return _Read(arrow, _without_negative_zero)
    of_text: dict[type[spark.DataType], Callable[[pa.Array], pa.Array]] = {
        spark.DateType: dates,
        spark.TimestampType: lambda texts: pa.array(timestamps(texts, zone)).view(arrow),
        spark.TimestampNTZType: lambda texts: pa.array(timestamps(texts, None)).view(arrow),
        spark.BinaryType: _base64,
    }
    if type(type_) in of_text:
        return _Read(pa.string(), on_present(of_text[type(type_)]))
    return _Read(arrow, lambda array: array)


def _struct(type_: spark.StructType, arrow: pa.DataType, zone: Zone) -> _Read | None:
    fields = [_read(field.dataType, arrow.field(at).type, zone) for at, field in enumerate(type_)]
    known = [field for field in fields if field is not None]
    if not fields or len(known) < len(fields) or len(set(type_.names)) < len(fields):
        return None
    read = pa.struct(
        [pa.field(name, field.type_) for name, field in zip(type_.names, known, strict=True)]
    )

    def convert(array: pa.Array) -> pa.Array:
        children = [field.convert(array.field(at)) for at, field in enumerate(known)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)

    return _Read(read, convert)


def _list(element: _Read, arrow: pa.DataType) -> _Read:
    def convert(array: pa.Array) -> pa.Array:
        items = element.convert(array.values)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, items, arrow, mask=mask)

    return _Read(pa.list_(pa.field(arrow.value_field.name, element.type_)), convert)


def _without_negative_zero(array: pa.Array) -> pa.Array:
    """Raise Misfit for negative zero: Jackson reads -0 as zero, and Arrow as -0.0."""
    numbers = array.to_numpy(zero_copy_only=False)
    if (np.signbit(numbers) & (numbers == 0)).any():
        raise Misfit
    return array


def _decimal(arrow: pa.DataType) -> _Read:
    """Read decimals with more places than the type has, and round them half up as Spark does."""

    def convert(array: pa.Array) -> pa.Array:
        try:
            return array.cast(arrow)
        except pa.ArrowInvalid:
            # A number has more places than the type, or is too wide: try the rounded numbers.
            pass
        try:
            rounded = pc.round(array, arrow.scale, "half_towards_infinity")
            return rounded.cast(arrow)
        except pa.ArrowInvalid:
            raise Misfit from None

    return _Read(_WIDE_DECIMAL, convert)


_bytes_of = partial(binascii.a2b_base64, strict_mode=True)


def _base64(texts: pa.Array) -> pa.Array:
    try:
        return pa.array(map(_bytes_of, texts.to_pylist()), pa.binary())
    except ValueError:
        raise Misfit from None
