"""Messages to bytes; that these are Kafka's is shown in `test_kafka_python.py`."""

from __future__ import annotations

import struct
import uuid

import pytest

from broker_sim import schemas
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.messages import APIS, ApiKey

FETCH = APIS[ApiKey.FETCH]


def test_a_field_that_was_not_given_has_the_default_and_one_of_another_version_is_left_out() -> (
    None
):
    request = APIS[ApiKey.FIND_COORDINATOR].request
    assert encode_message(request(key="g", coordinator_keys=["x"]), 0) == b"\x00\x01g"
    assert encode_message(request(), 0) == b"\x00\x00"


def test_no_id_is_an_id_of_zeros() -> None:
    topic = FETCH.request.FetchTopic(topic_id=None, partitions=[])
    request = FETCH.request(topics=[topic], forgotten_topics_data=[])
    zeros = FETCH.request.FetchTopic(topic_id=uuid.UUID(int=0), partitions=[])
    again = FETCH.request(topics=[zeros], forgotten_topics_data=[])
    assert encode_message(request, 13) == encode_message(again, 13)


def test_long_texts_and_many_elements_have_longer_lengths() -> None:
    names = [APIS[ApiKey.METADATA].request.MetadataRequestTopic(name="n" * 126 + "x" * n)
             for n in range(200)]  # fmt: skip
    request = APIS[ApiKey.METADATA].request(topics=names)
    body = encode_message(request, 9)
    assert body.startswith(b"\xc9\x01\x7f" + b"n" * 126)
    assert b"\xc6\x02" + names[-1].name.encode() in body
    key = schemas.TransactionLogKey(transactional_id="t" * 32_767)
    assert encode_message(key, 0) == b"\x7f\xff" + b"t" * 32_767


def test_records_may_be_any_bytes() -> None:
    partition = APIS[ApiKey.FETCH].response.FetchableTopicResponse.PartitionData
    encoded = set()
    for records in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        answer = partition(aborted_transactions=None, records=records)
        topic = FETCH.response.FetchableTopicResponse(topic="t", partitions=[answer])
        encoded.add(encode_message(FETCH.response(responses=[topic]), 12))
    assert len(encoded) == 1


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(struct.error):
        encode_message(APIS[ApiKey.END_TXN].response(throttle_time_ms=1 << 40), 0)
