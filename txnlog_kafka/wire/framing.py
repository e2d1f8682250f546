"""Frames: a 4-byte big-endian length, then a header and a body.

Theory of operation: `FrameDecoder.feed` takes any bytes and returns whole frames. It never
allocates the size that a peer merely claims, unless its host asks for `space`. `decode_request` and
`decode_response` return messages; for any bytes they return a value or raise `MalformedFrame`, and
raise no other error. Encoders are their inverses. No socket here.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from txnlog_kafka.wire.decoder import REQUEST_ELEMENTS_MAX, RESPONSE_ELEMENTS_MAX, decode_message
from txnlog_kafka.wire.encoder import encode_parts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.messages import KNOWN_APIS, Api, ApiKey, Message, api_of
from txnlog_kafka.wire.varint import MalformedVarint, decode_unsigned

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""

LARGE_BYTES = 64 * 1024
"""Size from which a frame is received in a buffer of its own, if the host does that."""

PIECE_BYTES = 16 * 1024
"""Size below which a copy costs less than sending the bytes as a piece of their own."""

Frame = bytes | bytearray

_LENGTH = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhi")
_INT16 = struct.Struct(">h")


class MalformedFrame(Exception):
    """Bytes of the peer that cannot be a frame of the protocol: close the connection."""


class UnsupportedVersion(Exception):
    """Version, in a well-formed header, of a known API that is not supported."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"{header.api_key.name} version {header.api_version} is not supported")
        self.header = header


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Header of a request; `client_id` may be None."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


DecodeBody = Callable[[Any, int, memoryview, int], Message]
"""Function from a message's class, version, bytes and maximum of elements to the message."""


def decode_body(message_class: Any, version: int, body: memoryview, elements_max: int) -> Message:
    """Return the message of these bytes. Raises MalformedMessage, UnicodeDecodeError."""
    return decode_message(message_class, version, body, elements_max=elements_max)


class FrameDecoder:
    """Splits a byte stream into frames, for one connection.

    Bytes are buffered as they arrive, so memory is bounded by the bytes received, never by the
    value of a length field.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        """Limit of a frame; it may be changed, and a frame that is being received obeys it, too."""
        self._buffer = bytearray()
        self._large: bytearray | None = None
        self._filled = 0

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes that wait for the rest of their frame."""
        return len(self._buffer) if self._large is None else self._filled

    def space(self) -> memoryview | None:
        """Return the space for the rest of a large frame, which is then not copied; None otherwise.

        `filled` has to follow, before any other call. The space has the size in the length field:
        use it for a peer that may occupy so much memory, once it sends as much.
        """
        if self._large is None:
            length = self._length()
            if length is None or length < LARGE_BYTES or len(self._buffer) >= _LENGTH.size + length:
                return None
            self._filled = len(self._buffer) - _LENGTH.size
            self._large = bytearray(length)
            self._large[: self._filled] = memoryview(self._buffer)[_LENGTH.size :]
            self._buffer = bytearray()
        return memoryview(self._large)[self._filled :]

    def filled(self, size_bytes: int) -> None:
        """Note that so many bytes were received into `space`."""
        self._filled += size_bytes

    def feed(self, data: Frame | memoryview) -> Iterator[Frame]:
        """Yield every whole frame, without its length prefix. Raises MalformedFrame."""
        self.append(data)
        while (frame := self.pop()) is not None:
            yield frame

    def append(self, data: Frame | memoryview) -> None:
        """Keep bytes that arrived, for `pop`."""
        check(self._large is None, "a large frame is received in its space")
        self._buffer += data

    def pop(self) -> Frame | None:
        """Return the next whole frame, without its length prefix; None if there is no whole frame
        yet.

        Raises MalformedFrame as soon as a length is invalid.
        """
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            large, self._large = self._large, None
            return large
        length = self._length()
        if length is None:
            return None
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            frame = bytes(view[_LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def _length(self) -> int | None:
        """Return the length of the next frame, None if it is not there. Raises MalformedFrame."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length <= 0:
            raise MalformedFrame(f"frame length {length} is not positive")
        if length > self.frame_bytes_max:
            raise MalformedFrame(
                f"frame length {length} is over the limit of {self.frame_bytes_max} bytes"
            )
        return int(length)


def _request_header_flexible(api: Api, version: int) -> bool:
    return bool(api.request.SCHEMA.is_flexible(version))


def decode_request(frame: Frame, decode: DecodeBody = decode_body) -> tuple[RequestHeader, Message]:
    """Return a frame's header and message.

    Raises MalformedFrame for bytes that are not a request of a known API, and UnsupportedVersion
    for a version outside our range: its header is enough to answer ApiVersions (KIP-511).
    """
    if len(frame) < _REQUEST_HEAD.size:
        raise MalformedFrame(f"a request of {len(frame)} bytes has no header")
    key, version, correlation_id = _REQUEST_HEAD.unpack_from(frame)
    api = KNOWN_APIS.get(key)
    if api is None:
        raise MalformedFrame(f"unknown api key {key}")
    client_id, position = _decode_client_id(frame)
    header = RequestHeader(api.key, version, correlation_id, client_id)
    if not api.version_min <= version <= api.version_max:
        raise UnsupportedVersion(header)
    if _request_header_flexible(api, version):
        position = _skip_tagged_fields(frame, position)
    body = memoryview(frame)[position:]
    try:
        message = decode(api.request, version, body, REQUEST_ELEMENTS_MAX)
    except Exception as error:
        raise MalformedFrame(f"{api.name} v{version} cannot be decoded: {error}") from error
    return header, message


def _decode_client_id(frame: Frame) -> tuple[str | None, int]:
    position = _REQUEST_HEAD.size
    if len(frame) < position + 2:
        raise MalformedFrame("the request header has no client id")
    (length,) = _INT16.unpack_from(frame, position)
    position += 2
    if length == -1:
        return None, position
    if length < 0 or position + length > len(frame):
        raise MalformedFrame(f"client id length {length} is out of the frame")
    raw = frame[position : position + length]
    return raw.decode("utf-8", "replace"), position + length


def _skip_tagged_fields(frame: Frame, position: int) -> int:
    if frame[position : position + 1] == b"\x00":  # as in nearly every header
        return position + 1
    try:
        count, position = decode_unsigned(frame, position)
        if count > REQUEST_ELEMENTS_MAX:
            raise MalformedFrame(f"a header of {count} tagged fields")
        for _ in range(count):
            _, position = decode_unsigned(frame, position)
            size, position = decode_unsigned(frame, position)
            position += size
    except MalformedVarint as error:
        raise MalformedFrame(f"the tagged fields of the header: {error}") from error
    if position > len(frame):
        raise MalformedFrame("a tagged field of the header is out of the frame")
    return position


def encode_request(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Return the framed request, encoded at `version`."""
    return b"".join(request_pieces(message, version, correlation_id, client_id))


def request_pieces(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> list[bytes | bytearray | memoryview]:
    """Return the framed request in pieces; pieces from PIECE_BYTES on are the message's own."""
    api = api_of(message)
    name = b"" if client_id is None else client_id.encode()
    head = _REQUEST_HEAD.pack(api.key, version, correlation_id)
    head += _INT16.pack(-1 if client_id is None else len(name)) + name
    if _request_header_flexible(api, version):
        head += b"\x00"
    parts = _framed(head, message, version)
    pieces: list[bytes | bytearray | memoryview] = []
    for is_large, run in itertools.groupby(parts, lambda part: len(part) >= PIECE_BYTES):
        some = list(run)
        pieces += some if is_large else [b"".join(some)]
    return pieces


def encode_response(api_key: ApiKey, version: int, correlation_id: int, message: Message) -> bytes:
    """Return the framed response. ApiVersions keeps the old header in every version (KIP-511)."""
    api = KNOWN_APIS[api_key]
    flexible = api.response.SCHEMA.is_flexible(version) and api_key != ApiKey.API_VERSIONS
    head = _LENGTH.pack(correlation_id) + (b"\x00" if flexible else b"")
    return b"".join(_framed(head, message, version))


def _framed(head: bytes, message: Message, version: int) -> list[Any]:
    """Return the parts of a frame; record batches are not copied."""
    parts = encode_parts(message, version)
    length = len(head) + sum(map(len, parts))
    return [_LENGTH.pack(length), head, *parts]


def response_correlation_id(frame: Frame) -> int:
    """Return the correlation id of a response frame. Raises MalformedFrame if it has none."""
    if len(frame) < 4:
        raise MalformedFrame(f"a response of {len(frame)} bytes has no header")
    return int(_LENGTH.unpack_from(frame)[0])


def decode_response(
    api: Api, version: int, frame: Frame, decode: DecodeBody = decode_body
) -> Message:
    """Return the message of a response frame to a request of `api` at `version`."""
    response_correlation_id(frame)
    position = 4
    if api.response.SCHEMA.is_flexible(version) and api.key != ApiKey.API_VERSIONS:
        position = _skip_tagged_fields(frame, position)
    try:
        body = memoryview(frame)[position:]
        if api.key == ApiKey.API_VERSIONS:
            # To a version it does not know a broker answers in version 0 (KIP-511).
            is_old = bytes(body[:2]) == _INT16.pack(ErrorCode.UNSUPPORTED_VERSION)
            shape_version = 0 if is_old else version
            return decode(api.response, shape_version, body, REQUEST_ELEMENTS_MAX)
        return decode(api.response, version, body, RESPONSE_ELEMENTS_MAX)
    except Exception as error:
        raise MalformedFrame(f"{api.name} v{version} answer cannot be decoded: {error}") from error
