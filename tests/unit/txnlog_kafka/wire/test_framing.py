"""Frames in, messages out: whatever the bytes, a value or MalformedFrame, and nothing else."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnlog_kafka.wire.decoder import REQUEST_ELEMENTS_MAX
from txnlog_kafka.wire.framing import (
    FRAME_BYTES_MAX,
    LARGE_BYTES,
    PIECE_BYTES,
    FrameDecoder,
    MalformedFrame,
    UnsupportedVersion,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_pieces,
    response_correlation_id,
)
from txnlog_kafka.wire.messages import APIS, ApiKey, api_of

EVERY_VERSION = [
    (api, version)
    for api in APIS.values()
    for version in range(api.version_min, api.version_max + 1)
]


@pytest.mark.parametrize(
    ("api", "version"), EVERY_VERSION, ids=lambda v: getattr(v, "name", None) or str(v)
)
def test_a_default_request_and_response_survive_the_wire_in_every_version(api, version):
    framed = encode_request(api.request(), version, 7, "client")
    (frame,) = FrameDecoder().feed(framed)
    header, message = decode_request(frame)
    assert (header.api_key, header.api_version) == (api.key, version)
    assert (header.correlation_id, header.client_id) == (7, "client")
    assert message == api.request()

    framed = encode_response(api.key, version, 9, api.response())
    (frame,) = FrameDecoder().feed(framed)
    assert response_correlation_id(frame) == 9
    answer = decode_response(api, version, frame)
    assert answer == api.response()


def test_frames_are_found_however_the_stream_is_cut():
    request = APIS[ApiKey.END_TXN].request(transactional_id="t", producer_id=4)
    stream = b"".join(encode_request(request, 3, n, None) for n in range(5))
    for cut in range(1, len(stream)):
        decoder = FrameDecoder()
        frames = [
            f for at in range(0, len(stream), cut) for f in decoder.feed(stream[at : at + cut])
        ]
        assert [decode_request(f)[0].correlation_id for f in frames] == [0, 1, 2, 3, 4]
        assert decoder.buffered_bytes == 0


def test_a_large_frame_is_received_in_a_space_of_its_own_and_small_ones_beside_it_are_not():
    frames = [b"small", bytes(range(256)) * 300, b"x" * LARGE_BYTES, b"y" * (LARGE_BYTES - 1), b"z"]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    for most in (3, 1_000, 70_000, len(stream)):
        decoder, at, found, spaces = FrameDecoder(), 0, [], 0
        while at < len(stream):
            space = decoder.space()
            part = stream[at : at + most] if space is None else stream[at:][: min(most, len(space))]
            at += len(part)
            if space is None:
                decoder.append(part)
            else:
                space[: len(part)] = part
                space.release()
                decoder.filled(len(part))
                spaces += 1
            while (frame := decoder.pop()) is not None:
                found.append(frame)
        assert found == frames
        assert (spaces > 0) == (most < len(stream))
        assert decoder.buffered_bytes == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 0, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_an_impossible_length_is_refused_before_anything_is_allocated(length):
    decoder = FrameDecoder()
    with pytest.raises(MalformedFrame):
        list(decoder.feed(struct.pack(">i", length)))
    assert decoder.buffered_bytes <= 4


def test_a_claimed_length_alone_holds_no_memory():
    decoder = FrameDecoder()
    assert list(decoder.feed(struct.pack(">i", FRAME_BYTES_MAX) + b"abc")) == []
    assert decoder.buffered_bytes == 7


def test_an_unknown_version_keeps_its_header_so_that_it_can_be_answered():
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 5, -1)
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(frame)
    assert caught.value.header.correlation_id == 5


def test_a_header_of_endless_tagged_fields_is_refused_before_they_are_walked():
    head = struct.pack(">hhih", ApiKey.METADATA, 9, 5, -1)
    assert REQUEST_ELEMENTS_MAX == 200_000
    one_more = b"\xc1\x9a\x0c"
    with pytest.raises(MalformedFrame, match="tagged fields"):
        decode_request(head + one_more + bytes(2 * 200_001) + b"\x01\x01\x00\x00\x00")


def test_an_unknown_api_key_is_malformed():
    with pytest.raises(MalformedFrame, match="unknown api key 999"):
        decode_request(struct.pack(">hhih", 999, 0, 5, -1))


@settings(max_examples=300)
@given(api=st.sampled_from(sorted(APIS)), version=st.integers(0, 17), body=st.binary(max_size=200))
def test_random_bodies_are_decoded_or_refused_and_nothing_else(api, version, body):
    frame = struct.pack(">hhih", api, version, 1, -1) + body
    with contextlib.suppress(MalformedFrame, UnsupportedVersion):
        decode_request(frame)
    with contextlib.suppress(MalformedFrame):
        decode_response(APIS[api], min(version, APIS[api].version_max), b"\0\0\0\1" + body)


def test_every_request_class_leads_back_to_its_api():
    for api in APIS.values():
        assert api_of(api.request()) is api


def test_record_batches_are_sent_from_where_they_are_and_small_ones_are_joined():
    produce = APIS[ApiKey.PRODUCE].request
    data = [bytearray(b"a" * PIECE_BYTES), b"b" * (PIECE_BYTES - 1), memoryview(bytes(70_000))]
    parts = [
        produce.TopicProduceData.PartitionProduceData(index=index, records=each)
        for index, each in enumerate(data)
    ]
    message = produce(topic_data=[produce.TopicProduceData(name="t", partition_data=parts)])
    pieces = request_pieces(message, 9, 7, "c")
    assert b"".join(pieces) == encode_request(message, 9, 7, "c")
    assert pieces[1] is data[0]
    assert pieces[3] is data[2]
    assert len(pieces) == 5
