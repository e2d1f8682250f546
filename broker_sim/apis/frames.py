"""Frames of all requests: `txnlog_kafka.wire.framing`, and the APIs that are defined here.

A request of the registry has Kafka's request header v1, and its answer Kafka's response header v0:
neither has tagged fields. Kafka's requests between brokers have headers v2 and v1. For any bytes a
decoder returns a value or raises `MalformedFrame`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker_sim.apis import (
    DEFINED_APIS,
    AnyApiKey,
    BrokerApiKey,
    OwnApi,
    RegistryApiKey,
    own_api_of,
)
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.decoder import REQUEST_ELEMENTS_MAX, RESPONSE_ELEMENTS_MAX
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.framing import (
    DecodeBody,
    Frame,
    MalformedFrame,
    RequestHeader,
    decode_body,
)
from txnlog_kafka.wire.messages import ApiKey, Message, api_of

_HEAD = struct.Struct(">hhih")
_INT32 = struct.Struct(">i")
_NO_TAGS = b"\x00"


@dataclass(frozen=True, slots=True)
class OwnRequestHeader:
    """Header of a request that is defined here; `client_id` may be None."""

    api_key: RegistryApiKey | BrokerApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request(
    frame: Frame, decode: DecodeBody = decode_body
) -> tuple[RequestHeader | OwnRequestHeader, Message]:
    """Return a frame's header and message. Raises MalformedFrame, and UnsupportedVersion for
    Kafka's requests."""
    own = DEFINED_APIS.get(int.from_bytes(frame[:2]))
    if own is None:
        return framing.decode_request(frame, decode)
    if len(frame) < _HEAD.size:
        raise MalformedFrame(f"a request of {len(frame)} bytes has no header")
    _, version, correlation_id, length = _HEAD.unpack_from(frame)
    end = _HEAD.size + max(length, 0)
    if version != own.version or length < -1 or end > len(frame):
        raise MalformedFrame(f"{own.name} v{version} with a client id of {length} bytes")
    client_id = None if length < 0 else frame[_HEAD.size : end].decode("utf-8", "replace")
    end = _skip_tags(own, frame, end)
    body = memoryview(frame)[end:]
    message = _decode(own.request, version, body, REQUEST_ELEMENTS_MAX, decode)
    return OwnRequestHeader(own.key, version, correlation_id, client_id), message


def encode_request(message: Message, correlation_id: int, client_id: str) -> bytes:
    """Return the framed request, which must be defined here."""
    own, name = own_api_of(message), client_id.encode()
    head = _HEAD.pack(own.key, own.version, correlation_id, len(name)) + name
    return _framed(head + _tags(own) + encode_message(message, own.version))


def encode_peer_request(
    message: Message,
    api_version: int,
    correlation_id: int,
    client_id: str,
    decode: DecodeBody = decode_body,
) -> tuple[bytes, Callable[[Frame], Message]]:
    """Return the framed request, of either kind, and the function that decodes its answer's frame.

    `api_version` counts for Kafka's requests only: a request that is defined here has one version.
    """
    try:
        own = own_api_of(message)
    except KeyError:
        frame = framing.encode_request(message, api_version, correlation_id, client_id)
        api = api_of(message)
        return frame, lambda answer: framing.decode_response(api, api_version, answer, decode)
    frame = encode_request(message, correlation_id, client_id)
    return frame, lambda answer: decode_response(own, answer, decode)[1]


def encode_response(
    api_key: AnyApiKey, version: int, correlation_id: int, message: Message
) -> bytes:
    """Return the framed answer."""
    if isinstance(api_key, ApiKey):
        return framing.encode_response(api_key, version, correlation_id, message)
    head = _INT32.pack(correlation_id) + _tags(DEFINED_APIS[api_key])
    return _framed(head + encode_message(message, version))


def decode_response(
    own: OwnApi, frame: Frame, decode: DecodeBody = decode_body
) -> tuple[int, Message]:
    """Return the correlation id and the message of an answer. Raises MalformedFrame."""
    correlation_id = framing.response_correlation_id(frame)
    start = _skip_tags(own, frame, _INT32.size)
    body = memoryview(frame)[start:]
    return correlation_id, _decode(own.response, own.version, body, RESPONSE_ELEMENTS_MAX, decode)


def _tags(own: OwnApi) -> bytes:
    return _NO_TAGS if own.has_tagged_header else b""


def _skip_tags(own: OwnApi, frame: Frame, position: int) -> int:
    """Skip tagged fields of a header; refuse any field, because our own processes write none."""
    tags = _tags(own)
    if frame[position : position + len(tags)] != tags:
        raise MalformedFrame(f"{own.name} with tagged fields in its header")
    return position + len(tags)


def _framed(frame: bytes) -> bytes:
    return _INT32.pack(len(frame)) + frame


def _decode(
    message_class: Any, version: int, body: memoryview, elements_max: int, decode: DecodeBody
) -> Message:
    try:
        return decode(message_class, version, body, elements_max)
    except Exception as error:
        raise MalformedFrame(f"{message_class.__name__} cannot be decoded: {error}") from error
