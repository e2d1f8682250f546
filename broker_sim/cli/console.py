"""Lines and records, converted into each other as Kafka's console tools do.

A line to be produced is `headers delimiter key separator value`, each part only if it is to be
parsed (Kafka's `LineMessageReader`); a consumed record is printed as `DefaultMessageFormatter`
prints it. Properties have Kafka's names and defaults. Bytes stay bytes: they need not be text.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker_sim.cli.arguments import UsageError
from txnlog_kafka.wire.records import BatchHeader, Record

READER_PROPERTIES: Mapping[str, str] = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": "",
    "ignore.error": "false",
}
"""Properties of produce, with their defaults; without null.marker no text stands for null."""

FORMATTER_PROPERTIES: Mapping[str, str] = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
"""Properties of consume, with their defaults."""

_BOOLEANS = {"true": True, "false": False}


def read_properties(
    option: str, pairs: Sequence[str], known: Mapping[str, str]
) -> dict[str, str | bool]:
    """Return the value of every known property; switches as booleans. Raises UsageError.

    Values are not stripped: a separator may well be a blank.
    """
    values = dict(known)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{option} takes NAME=VALUE, not {pair!r}")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise UsageError(f"{option}: {name!r} is not known; {hint}")
        values[name] = value
    found: dict[str, str | bool] = {}
    for name, value in values.items():
        if known[name] not in _BOOLEANS:
            found[name] = value
        elif value.lower() in _BOOLEANS:
            found[name] = _BOOLEANS[value.lower()]
        else:
            raise UsageError(f"{option}: {name} is true or false, not {value!r}")
    return found


class LineRefused(Exception):
    """Line that lacks a separator; the text names the line and the part."""


@dataclass(frozen=True, slots=True)
class LineReader:
    """Converts lines to records, by READER_PROPERTIES."""

    properties: Mapping[str, str | bool]

    def record(self, line: bytes, number: int, timestamp_ms: int) -> Record:
        """Return the record of line `number`. Raises LineRefused unless errors are ignored."""
        headers, rest = self._part("parse.headers", "headers.delimiter", line, number)
        key, value = self._part("parse.key", "key.separator", rest, number)
        pairs: tuple[tuple[str, bytes | None], ...] = ()
        if headers is not None and self._value(headers) is not None:
            texts = headers.split(self._bytes("headers.separator"))
            pairs = tuple(self._header(text, number) for text in texts)
        key = None if key is None else self._value(key)
        return Record(key, self._value(value), timestamp_ms, pairs)

    def _part(
        self, switch: str, separator: str, line: bytes, number: int
    ) -> tuple[bytes | None, bytes]:
        """Return the text before the separator, None if it is not wanted, and the rest."""
        if not self.properties[switch]:
            return None, line
        before, found, after = line.partition(self._bytes(separator))
        if found:
            return before, after
        if self.properties["ignore.error"]:
            return None, line
        shown = line.decode(errors="replace")
        raise LineRefused(
            f"no {separator} ({self.properties[separator]!r}) in line {number}: {shown!r}"
        )

    def _header(self, text: bytes, number: int) -> tuple[str, bytes | None]:
        name, found, value = text.partition(self._bytes("headers.key.separator"))
        if found:
            return name.decode(errors="replace"), self._value(value)
        if self.properties["ignore.error"]:
            return name.decode(errors="replace"), None
        shown = text.decode(errors="replace")
        separator = self.properties["headers.key.separator"]
        raise LineRefused(
            f"no headers.key.separator ({separator!r}) in the header {shown!r} of line {number}"
        )

    def _bytes(self, name: str) -> bytes:
        return str(self.properties[name]).encode(errors="surrogateescape")

    def _value(self, text: bytes) -> bytes | None:
        marker = self._bytes("null.marker")
        return None if marker and text == marker else text


@dataclass(frozen=True, slots=True)
class RecordFormatter:
    """Converts records to lines, by FORMATTER_PROPERTIES."""

    properties: Mapping[str, str | bool]

    def line(self, partition: int, header: BatchHeader, record: Record) -> bytes:
        """Return the record as bytes, its line separator included."""
        fields = []
        if self._wants("timestamp"):
            kind = b"LogAppendTime" if header.is_log_append_time else b"CreateTime"
            fields.append(kind + b":%d" % record.timestamp)
        if self._wants("partition"):
            fields.append(b"Partition:%d" % partition)
        if self._wants("offset"):
            fields.append(b"Offset:%d" % record.record_offset)
        if self._wants("headers"):
            fields.append(self._headers(record))
        if self._wants("key"):
            fields.append(self._shown(record.key))
        if self._wants("value"):
            fields.append(self._shown(record.value))
        return self._bytes("key.separator").join(fields) + self._bytes("line.separator")

    def _wants(self, field: str) -> bool:
        return bool(self.properties[f"print.{field}"])

    def _headers(self, record: Record) -> bytes:
        texts = [name.encode() + b":" + self._shown(value) for name, value in record.headers]
        return self._bytes("headers.separator").join(texts) if texts else b"NO_HEADERS"

    def _shown(self, data: bytes | None) -> bytes:
        return self._bytes("null.literal") if data is None else data

    def _bytes(self, name: str) -> bytes:
        return str(self.properties[name]).encode(errors="surrogateescape")
