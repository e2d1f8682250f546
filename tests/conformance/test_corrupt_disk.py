"""Bit rot in a segment: a reader is told, nothing wrong is delivered, and the rest is served."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from support.clients.librdkafka import TIMEOUT_S, consumer, create_topic, produce_values

from txnlog_kafka.wire.records import iter_batches


def flip_in_batch(path, wanted_offset: int) -> None:
    """Change one bit in the records of the batch with this base offset."""
    data = bytearray(path.read_bytes())
    for header, position in iter_batches(bytes(data)):
        if header.base_offset == wanted_offset:
            data[position + header.size_bytes - 2] ^= 0x10
    path.write_bytes(bytes(data))


def test_a_corrupt_batch_is_reported_and_the_others_are_served(new_broker, unique):
    broker = new_broker()
    topic = create_topic(broker.bootstrap_servers, unique("rot"))
    for value in ("first", "second", "third"):
        produce_values(broker.bootstrap_servers, topic, [value])
    broker.stop()
    flip_in_batch(broker.data_dir / f"{topic}-0" / f"{0:020}.log", 1)
    broker.start()
    bootstrap = broker.bootstrap_servers
    reader = consumer(bootstrap, unique("group"), check_crcs=True)
    reader.assign([TopicPartition(topic, 0, 0)])
    assert reader.poll(TIMEOUT_S).value() == b"first"
    with pytest.raises(KafkaException) as caught:
        error = reader.poll(TIMEOUT_S).error()
        raise KafkaException(error)
    assert caught.value.args[0].code() == KafkaError._BAD_MSG
    reader.seek(TopicPartition(topic, 0, 2))
    assert reader.poll(TIMEOUT_S).value() == b"third"
    reader.close()
    produce_values(bootstrap, topic, ["fourth"])
