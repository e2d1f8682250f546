"""Decoded messages of a run: equal bytes share one object, which code must not change."""

from __future__ import annotations

import struct

import pytest

from simulation.hosts.network import DecodedMessages
from txnlog_kafka.wire.framing import MalformedFrame, decode_request, decode_response
from txnlog_kafka.wire.framing import encode_request as framed
from txnlog_kafka.wire.framing import encode_response as framed_answer
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.messages import APIS, ApiKey

METADATA = APIS[ApiKey.METADATA]
WANTED = METADATA.request.MetadataRequestTopic


def request_frame(topic: str, version: int = 9) -> bytes:
    """A request for one topic, without its length."""
    request = METADATA.request(topics=[WANTED(name=topic)], allow_auto_topic_creation=False)
    return framed(request, version, 1, "c")[4:]


def test_equal_bytes_are_one_message_and_others_another() -> None:
    decode = DecodedMessages()
    _, first = decode_request(request_frame("a"), decode)
    _, again = decode_request(request_frame("a"), decode)
    _, other = decode_request(request_frame("b"), decode)
    assert first is again
    assert (first.topics[0].name, other.topics[0].name) == ("a", "b")
    decode.check()


def test_the_same_bytes_of_another_version_or_api_are_another_message() -> None:
    decode = DecodedMessages()
    versions = [decode_request(request_frame("a", v), decode)[1] for v in (5, 6)]
    assert versions[0] is not versions[1]
    ends = APIS[ApiKey.END_TXN], APIS[ApiKey.ADD_OFFSETS_TO_TXN]
    ended = ends[0].response(throttle_time_ms=0, error_code=3)
    answer = framed_answer(ApiKey.END_TXN, 0, 1, ended)[4:]
    found = [decode_response(api, 0, answer, decode) for api in ends]
    assert [type(each) for each in found] == [api.response for api in ends]


def test_a_message_that_was_changed_is_noticed() -> None:
    decode = DecodedMessages()
    _, message = decode_request(request_frame("a"), decode)
    message.topics[0].name = "b"
    with pytest.raises(InvariantViolation, match="was changed"):
        decode.check()


def test_what_is_no_message_is_refused_each_time() -> None:
    decode = DecodedMessages()
    frame = struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\x00\x7f"
    for _ in range(2):
        with pytest.raises(MalformedFrame):
            decode_request(frame, decode)
    decode.check()
