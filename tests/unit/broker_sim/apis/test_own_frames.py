"""Frames of our own requests: round trips, and bytes that are not a frame."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.broker_build import BrokerOnDisk

from broker_sim.apis import (
    BROKER_APIS,
    OWN_APIS,
    BrokerApiKey,
    OwnApi,
    RegistryApiKey,
    only_brokers_ask,
)
from broker_sim.apis.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from broker_sim.core.effects import Close, Request
from broker_sim.core.handlers import HANDLERS
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.framing import MalformedFrame
from txnlog_kafka.wire.messages import APIS, KNOWN_APIS, ApiKey

MULTI = OWN_APIS[RegistryApiKey.REGISTRY_MULTI]
OWN = pytest.mark.parametrize("own", OWN_APIS.values(), ids=lambda own: own.name)


def multi() -> Any:
    operation = MULTI.request.Operation(type=1, path="/a", data=b"x" * 300, expected_version=-1)
    return MULTI.request(session_id=7, operations=[operation, operation])


@OWN
def test_a_request_and_an_answer_come_back_as_they_were(own: OwnApi):
    frame = encode_request(own.request(session_id=5), 9, "me")
    header, message = decode_request(frame[4:])
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert (header.api_key, header.correlation_id, header.client_id) == (own.key, 9, "me")
    assert message.session_id == 5
    answer = encode_response(own.key, 0, 9, own.response(error_code=-112))
    correlation_id, read = decode_response(own, answer[4:])
    assert (correlation_id, read.error_code) == (9, -112)


def test_structures_within_a_request_come_back_as_they_were():
    header, message = decode_request(encode_request(multi(), 1, "")[4:])
    assert header.client_id == ""
    assert [(o.type, o.path, bytes(o.data)) for o in message.operations] == [
        (1, "/a", b"x" * 300)
    ] * 2


def test_kafkas_own_frames_are_decoded_and_encoded_as_before():
    frame = framing.encode_request(APIS[ApiKey.METADATA].request(), 1, 3, "me")
    assert decode_request(frame[4:])[0] == framing.decode_request(frame[4:])[0]
    answer = APIS[ApiKey.HEARTBEAT].response(throttle_time_ms=0, error_code=0)
    expected = framing.encode_response(ApiKey.HEARTBEAT, 4, 3, answer)
    assert encode_response(ApiKey.HEARTBEAT, 4, 3, answer) == expected


def test_no_broker_answers_or_advertises_a_request_of_ours():
    assert not set(OWN_APIS) & set(APIS)
    assert not set(OWN_APIS) & set(HANDLERS)
    broker = BrokerOnDisk()
    asked = Request(1, 9, MULTI.key, 0, "me", "127.0.0.1", multi())
    step = broker.step(asked)
    assert step.responses == (Close(1, "REGISTRY_MULTI is not supported"),)
    assert step.storage == ()


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_any_bytes_are_a_request_or_malformed(seed: int, changes: int):
    rng = random.Random(seed)
    frame = bytearray(encode_request(multi(), 1, "me")[4:])
    for _ in range(changes):
        frame[rng.randrange(2, len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    cut = rng.choice((len(frame), rng.randint(2, len(frame))))
    try:
        header, _ = decode_request(bytes(frame[:cut]))
    except MalformedFrame:
        return
    assert header.api_key is RegistryApiKey.REGISTRY_MULTI


@pytest.mark.parametrize("own", BROKER_APIS.values(), ids=lambda own: own.name)
def test_a_request_between_brokers_has_kafkas_headers(own: OwnApi):
    frame = encode_request(own.request(), 9, "me")
    head = struct.pack(">hhih", own.key, own.version, 9, 2) + b"me" + b"\x00"
    assert frame[4:].startswith(head)
    header, _ = decode_request(frame[4:])
    assert (header.api_key, header.api_version, header.client_id) == (own.key, own.version, "me")
    answer = encode_response(own.key, own.version, 9, own.response(error_code=41))
    assert answer[4:9] == struct.pack(">ib", 9, 0)
    correlation_id, read = decode_response(own, answer[4:])
    assert (correlation_id, read.error_code) == (9, 41)
    with pytest.raises(MalformedFrame, match="tagged fields"):
        decode_request(frame[4 : 4 + len(head) - 1] + b"\x01" + frame[4 + len(head) :])
    assert not set(BROKER_APIS) & set(KNOWN_APIS)


def test_an_envelope_has_the_bytes_of_kafkas_definition():
    own = BROKER_APIS[BrokerApiKey.ENVELOPE]
    message = own.request(request_data=b"ab", request_principal=None, client_host_address=b"c")
    frame = encode_request(message, 1, "")
    assert frame[4:] == struct.pack(">hhih", 58, 0, 1, 0) + b"\x00" + b"\x03ab\x00\x02c\x00"


FETCH = APIS[ApiKey.FETCH].request


@pytest.mark.parametrize(
    ("of_broker", "api_key", "version", "fields"),
    [
        (False, ApiKey.FETCH, 12, {"replica_id": -1}),
        (True, ApiKey.FETCH, 12, {"replica_id": 0}),
        (False, ApiKey.FETCH, 17, {"replica_state": FETCH.ReplicaState(replica_id=-1)}),
        (True, ApiKey.FETCH, 17, {"replica_state": FETCH.ReplicaState(replica_id=0)}),
        (False, ApiKey.LIST_OFFSETS, 8, {"replica_id": -1}),
        (True, ApiKey.LIST_OFFSETS, 8, {"replica_id": 2}),
        (False, ApiKey.ADD_PARTITIONS_TO_TXN, 3, {}),
        (True, ApiKey.ADD_PARTITIONS_TO_TXN, 4, {}),
        (True, ApiKey.WRITE_TXN_MARKERS, 1, {}),
        (False, ApiKey.PRODUCE, 9, {}),
    ],
)
def test_a_broker_is_known_by_what_clients_do_not_ask(of_broker, api_key, version, fields):
    assert only_brokers_ask(api_key, version, APIS[api_key].request(**fields)) is of_broker


@pytest.mark.parametrize("own", BROKER_APIS.values(), ids=lambda own: own.name)
def test_what_is_between_brokers_only_is_asked_by_brokers_only(own: OwnApi):
    assert only_brokers_ask(own.key, own.version, own.request())
