"""Answer on its way out: bytes, and record bytes that are still in their files.

Theory of operation: a small answer is encoded at once. In a large Fetch answer each record field is
encoded as a mark that no client can guess. References to the log files then replace the marks, and
lengths are put right. The bytes are read piece by piece as the socket takes them, so a peer that
does not read holds a piece, not its answer.
"""

from __future__ import annotations

import secrets
import struct
from collections import deque
from collections.abc import Iterable, Iterator

from broker_sim.apis.frames import encode_response
from broker_sim.core.effects import FileSlice, RecordsField, Respond
from broker_sim.server.storage import FileStorage, SlicesInUse
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.varint import encode_unsigned

WHOLE_BYTES_MAX = 64 * 1024
"""Answers with at most this many record bytes are encoded at once."""

_INT32 = struct.Struct(">i")
_MARK = secrets.token_bytes(16)


class Outgoing:
    """Answer on its way: made as soon as its step was carried out, encoded when it can go.

    From the first moment its files are watched. If its record bytes were removed or replaced since
    (retention, the log cleaner), the answer raises LookupError instead of sending other bytes.
    """

    def __init__(self, response: Respond, storage: FileStorage) -> None:
        self.connection_id = response.connection_id
        self.correlation_id = response.correlation_id
        self.throttle_ms = response.throttle_ms
        self._response: Respond | None = response
        self._storage = storage
        self._pieces: deque[memoryview | FileSlice] = deque()
        self._in_use: SlicesInUse | None = None
        if response.records:
            paths = frozenset(s.path for field in response.records for s in field.slices)
            if paths:
                self._in_use = storage.use(paths)

    def read(self, size_bytes: int) -> bytes | memoryview:
        """Return up to `size_bytes`; b"" at the end. Raises LookupError if record bytes are
        gone."""
        if self._in_use is not None and self._in_use.changed is not None:
            raise LookupError(f"{self._in_use.changed} was removed, replaced or truncated")
        if self._response is not None:
            response, self._response = self._response, None
            if not response.records:
                data = _encode_response(response)
                if len(data) <= size_bytes:
                    return data
                self._pieces.append(memoryview(data))
            else:
                parts = _parts(response, self._storage)
                self._pieces.extend(p for p in map(_piece, parts) if _length(p))
        if not self._pieces:
            self.close()
            return b""
        piece = self._pieces.popleft()
        if isinstance(piece, memoryview):
            if len(piece) > size_bytes:
                self._pieces.appendleft(piece[size_bytes:])
            return piece[:size_bytes]
        if piece.length > size_bytes:
            rest = FileSlice(piece.path, piece.position + size_bytes, piece.length - size_bytes)
            self._pieces.appendleft(rest)
        length = min(piece.length, size_bytes)
        return self._storage.read_slices([FileSlice(piece.path, piece.position, length)])

    def close(self) -> None:
        """Drop the rest of the answer, and release its files."""
        self._response = None
        self._pieces.clear()
        if self._in_use is not None:
            self._storage.release(self._in_use)
            self._in_use = None


def _parts(response: Respond, storage: FileStorage) -> Iterable[bytes | FileSlice]:
    """Return the parts of the framed answer."""
    if sum(s.length for field in response.records for s in field.slices) > WHOLE_BYTES_MAX:
        return _pieces(response)
    for field in response.records:
        field.target.records = storage.read_slices(field.slices)
    return [_encode_response(response)]


def _encode_response(response: Respond) -> bytes:
    return encode_response(
        response.api_key, response.api_version, response.correlation_id, response.message
    )


def _pieces(response: Respond) -> Iterator[bytes | FileSlice]:
    fields: dict[bytes, RecordsField] = {}
    for index, field in enumerate(response.records):
        mark = _MARK + _INT32.pack(index)
        fields[mark] = field
        field.target.records = mark
    api = APIS[ApiKey(response.api_key)]
    compact = api.response.SCHEMA.is_flexible(response.api_version)
    parts = list(_split_body(_encode_response(response)[_INT32.size :], fields, compact))
    yield _INT32.pack(sum(map(_length, parts)))
    yield from parts


def _split_body(
    body: bytes, fields: dict[bytes, RecordsField], compact: bool
) -> Iterator[bytes | FileSlice]:
    """Yield the body, with each mark, and the length before it, replaced by its record bytes."""
    mark_bytes = len(_MARK) + _INT32.size
    prefix_bytes = 1 if compact else _INT32.size
    start = 0
    while (at := body.find(_MARK, start)) >= 0:
        slices = fields[body[at : at + mark_bytes]].slices
        length = sum(s.length for s in slices)
        yield body[start : at - prefix_bytes]
        yield encode_unsigned(length + 1) if compact else _INT32.pack(length)
        yield from slices
        start = at + mark_bytes
    yield body[start:]


def _piece(part: bytes | FileSlice) -> memoryview | FileSlice:
    return part if isinstance(part, FileSlice) else memoryview(part)


def _length(part: bytes | memoryview | FileSlice) -> int:
    return part.length if isinstance(part, FileSlice) else len(part)
