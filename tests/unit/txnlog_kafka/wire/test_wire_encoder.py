"""Messages to bytes: what kafka-python makes of them is the witness."""

from __future__ import annotations

import random
import struct
import uuid
from typing import Any

import pytest
from support.message_build import fill

from broker_sim import schemas
from broker_sim.apis import DEFINED_APIS
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.framing import decode_request, encode_request
from txnlog_kafka.wire.kafka_python import build
from txnlog_kafka.wire.messages import APIS, KNOWN_APIS, ApiKey

OWN_RECORDS = [each for each in vars(schemas).values() if hasattr(each, "valid_versions")]
OWN_MESSAGES = [each for own in DEFINED_APIS.values() for each in (own.request, own.response)]
FETCH = APIS[ApiKey.FETCH]


def witness(message: Any, version: int) -> bytes:
    """The bytes by kafka-python, which looks for these in what its decoder made."""
    if hasattr(type(message), "is_request"):
        message._header = message._min_version = message._max_version = None
        return bytes(message.encode(version=version))
    return bytes(message.encode(version=version, header=False))


@pytest.mark.parametrize("key", KNOWN_APIS, ids=lambda key: key.name)
def test_every_message_in_every_version_has_the_bytes_of_kafka_python(key: ApiKey) -> None:
    api = KNOWN_APIS[key]
    for message_class in (api.request, api.response):
        for version in range(api.version_min, api.version_max + 1):
            rng = random.Random(f"encoder/{message_class.name}/{version}")
            for _ in range(10):
                message = fill(message_class, version, rng)
                assert encode_message(message, version) == witness(message, version)


@pytest.mark.parametrize("made", OWN_RECORDS + OWN_MESSAGES, ids=lambda made: made.__name__)
def test_a_definition_of_ours_has_the_bytes_of_kafka_python_too(made: Any) -> None:
    first, last = made.valid_versions
    for version in range(first, last + 1):
        rng = random.Random(f"encoder/{made.name}/{version}")
        for _ in range(10):
            message = fill(made, version, rng)
            assert encode_message(message, version) == witness(message, version)


def test_a_field_that_was_not_given_has_the_default_and_one_of_another_version_is_left_out() -> (
    None
):
    request = APIS[ApiKey.FIND_COORDINATOR].request
    assert encode_message(build(request, key="g", coordinator_keys=["x"]), 0) == b"\x00\x01g"
    assert encode_message(build(request), 0) == b"\x00\x00"


def test_a_tagged_field_is_written_when_it_is_not_the_default() -> None:
    plain = build(FETCH.request, replica_state=None, topics=[], forgotten_topics_data=[])
    assert encode_message(plain, 12).endswith(b"\x00")
    named = build(FETCH.request, cluster_id="c", topics=[], forgotten_topics_data=[])
    assert encode_message(named, 12) == encode_message(plain, 12)[:-1] + b"\x01\x00\x02\x02c"


def test_no_id_is_an_id_of_zeros() -> None:
    topic = build(FETCH.request.FetchTopic, topic_id=None, partitions=[])
    request = build(FETCH.request, topics=[topic], forgotten_topics_data=[])
    zeros = build(FETCH.request.FetchTopic, topic_id=uuid.UUID(int=0), partitions=[])
    again = build(FETCH.request, topics=[zeros], forgotten_topics_data=[])
    assert encode_message(request, 13) == encode_message(again, 13)


def test_long_texts_and_many_elements_have_longer_lengths() -> None:
    names = [build(APIS[ApiKey.METADATA].request.MetadataRequestTopic, name="n" * 126 + "x" * n)
             for n in range(200)]  # fmt: skip
    request = APIS[ApiKey.METADATA].request(topics=names)
    assert encode_message(request, 9) == witness(request, 9)
    key = build(schemas.TransactionLogKey, transactional_id="t" * 32_767)
    assert encode_message(key, 0) == b"\x7f\xff" + b"t" * 32_767


def test_records_may_be_any_bytes() -> None:
    partition = APIS[ApiKey.FETCH].response.FetchableTopicResponse.PartitionData
    encoded = set()
    for records in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        answer = build(partition, aborted_transactions=None, records=records)
        topic = build(FETCH.response.FetchableTopicResponse, topic="t", partitions=[answer])
        encoded.add(encode_message(build(FETCH.response, responses=[topic]), 12))
    assert len(encoded) == 1


def test_a_message_that_was_decoded_can_be_encoded_again() -> None:
    made = FETCH.request(max_wait_ms=7, topics=[])
    frame = encode_request(made, 12, 1, "c")
    assert encode_request(decode_request(frame[4:])[1], 12, 1, "c") == frame


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(ValueError, match="no version 99"):
        encode_message(FETCH.request(), 99)
    with pytest.raises(struct.error):
        encode_message(build(APIS[ApiKey.END_TXN].response, throttle_time_ms=1 << 40), 0)
