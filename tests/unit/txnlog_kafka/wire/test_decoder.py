"""Hostile bytes: no message hangs, swells or misleads the decoder."""

from __future__ import annotations

import random
import struct

import pytest
from support.core.broker_build import produce_request
from support.core.message_build import fill

from txnlog_kafka.wire.decoder import MalformedMessage, decode_message
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.framing import MalformedFrame, decode_request, encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey

FLEXIBLE_METADATA = (ApiKey.METADATA, 9)


def head(key: ApiKey, version: int, *, flexible: bool = True) -> bytes:
    """A request header with no client id."""
    return struct.pack(">hhih", key, version, 1, -1) + (b"\x00" if flexible else b"")


def refused(frame: bytes) -> str:
    """Why the frame is no request."""
    with pytest.raises(MalformedFrame) as refusal:
        decode_request(frame)
    return str(refusal.value)


@pytest.mark.parametrize("key", APIS, ids=lambda key: key.name)
def test_every_request_that_can_be_encoded_passes_and_no_proper_part_of_it_does(key):
    api = APIS[key]
    for version in range(api.version_min, api.version_max + 1):
        rng = random.Random(f"shape/{key.name}/{version}")
        for _ in range(10):
            data = encode_message(fill(api.request, version, rng), version)
            decode_message(api.request, version, memoryview(data), elements_max=10_000)
            for cut in {len(data) - 1, len(data) // 2, rng.randrange(len(data) + 1)} - {-1}:
                if cut < len(data):
                    with pytest.raises(MalformedMessage):
                        decode_message(
                            api.request, version, memoryview(data)[:cut], elements_max=10_000
                        )


def test_a_string_that_reaches_past_the_frame_is_not_cut_short():
    data = head(ApiKey.FIND_COORDINATOR, 0, flexible=False) + struct.pack(">h", 300) + b"group"
    assert "past the frame" in refused(data)


def test_a_negative_count_is_null_and_refused_where_null_is_not_allowed():
    body = struct.pack(">hih", -1, 1000, -2)[:6] + struct.pack(">i", -2)
    assert "may not be null" in refused(
        head(ApiKey.PRODUCE, 3, flexible=False) + b"\xff\xff" + body
    )


def test_a_varint_that_does_not_end_is_refused_at_once():
    assert "over 5 bytes" in refused(head(*FLEXIBLE_METADATA) + b"\xff" * 1_000_000)


def test_a_count_beyond_the_frame_is_refused_before_an_element_is_made():
    assert "elements in" in refused(head(*FLEXIBLE_METADATA) + b"\xff\xff\xff\xff\x07")


@pytest.mark.invariant(63, 73)
def test_more_elements_than_the_limit_are_refused_before_one_is_made(monkeypatch):
    names = struct.pack(">i", 300_000) + b"\x00\x00" * 300_000
    assert "too many elements" in refused(head(ApiKey.METADATA, 1, flexible=False) + names)
    monkeypatch.setattr("txnlog_kafka.wire.framing.REQUEST_ELEMENTS_MAX", 300_000)
    decode_request(head(ApiKey.METADATA, 1, flexible=False) + names)


def test_unknown_tags_are_skipped_and_known_ones_must_fill_what_they_claim():
    flexible = b"\x01" + b"\x63\x02ab"
    header, _ = decode_request(head(ApiKey.LIST_GROUPS, 3) + flexible)
    assert header.api_key is ApiKey.LIST_GROUPS
    cluster_id = b"\x01" + b"\x00\x05" + b"\x02cXXX"
    fetch = APIS[ApiKey.FETCH].request(
        max_wait_ms=1, min_bytes=1, max_bytes=1, isolation_level=0, session_id=0, session_epoch=0,
        topics=[], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    frame = encode_request(fetch, 12, 1, None)[4:]
    assert "it claims" in refused(frame[:-1] + cluster_id)


def test_bytes_after_the_message_are_ignored_as_in_kafka():
    frame = encode_request(produce_request({("t", 0): b"x"}), 9, 1, "c")[4:]
    assert decode_request(frame + b"more")[1].topic_data[0].name == "t"
