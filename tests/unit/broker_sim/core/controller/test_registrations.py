"""Brokers and partitions in the metadata, and the records that change them."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from broker_sim.core.controller.image import BrokersDelta, ClusterImage, PartitionDelta, Topic
from broker_sim.core.controller.metadata_records import (
    broker_fenced_record,
    broker_registered_record,
    partition_changed_record,
    partitions_record,
    topic_record,
)
from broker_sim.core.controller.registrations import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
)
from broker_sim.core.endpoint import Endpoint
from txnlog_kafka.wire.invariants import InvariantViolation

FIRST = PartitionRegistration.new((1, 2, 3), (1, 2))
TOPIC = Topic("orders", uuid.UUID(int=7), 1, {}, 0, (FIRST,))


def replay(image, record):
    """Replay a record after it went through the log as JSON."""
    return image.replay(json.loads(json.dumps(record)))


@pytest.fixture
def image():
    made = ClusterImage(1)
    replay(made, topic_record(TOPIC))
    return made


def test_a_topic_of_a_cluster_is_stored_with_its_registrations(image):
    assert image.topics["orders"] == TOPIC
    assert image.registration(image.topics["orders"], 0) == FIRST


def test_a_change_of_the_leader_raises_both_epochs_and_one_of_the_isr_the_partitions_alone():
    shrunk = FIRST.changed(isr=(1,))
    assert (shrunk.leader_epoch, shrunk.partition_epoch) == (0, 1)
    elected = shrunk.changed(leader=2, isr=(2,))
    assert (elected.leader_epoch, elected.partition_epoch) == (1, 2)
    gone = elected.changed(leader=NO_LEADER)
    assert (gone.leader_epoch, gone.partition_epoch) == (2, 3)


def test_a_stored_change_gives_what_was_before_and_after(image):
    after = FIRST.changed(leader=2, isr=(2,), removing=(1,))
    delta = replay(image, partition_changed_record(TOPIC, 0, after))
    assert delta == PartitionDelta(image.topics["orders"], 0, FIRST, after)
    assert image.registration(image.topics["orders"], 0) == after


def test_a_change_that_was_made_of_an_older_one_is_a_violation(image):
    after = FIRST.changed(isr=(1,))
    replay(image, partition_changed_record(TOPIC, 0, after))
    with pytest.raises(InvariantViolation, match="out of order"):
        replay(image, partition_changed_record(TOPIC, 0, FIRST.changed(isr=(2,))))


def test_more_partitions_come_behind_those_that_are_there(image):
    second = PartitionRegistration.new((2, 3), (3,))
    replay(image, partitions_record(TOPIC, 2, [second]))
    topic = image.topics["orders"]
    assert (topic.partition_count, topic.partitions) == (2, (FIRST, second))
    assert second.leader == 3


def test_a_broker_is_up_from_its_registration_to_the_end_of_it(image):
    endpoints = {"PLAINTEXT": Endpoint("127.0.0.1", 9092)}
    broker = BrokerRegistration(2, 40, endpoints, "rack-a")
    assert replay(image, broker_registered_record(broker)) == BrokersDelta(None, broker)
    assert image.brokers == {2: broker}
    assert replay(image, broker_fenced_record(2)) == BrokersDelta(broker, None)
    assert (image.brokers, image.fenced) == ({}, {2: broker})
    again = replace(broker, epoch=41)
    assert replay(image, broker_registered_record(again)) == BrokersDelta(None, again)
    assert (image.registered, image.fenced) == ({2: again}, {})


def test_a_record_of_before_that_a_broker_is_down_is_read(image):
    broker = BrokerRegistration(2, 40, {})
    replay(image, broker_registered_record(broker))
    assert replay(image, {"type": "broker-unregistered", "broker": 2}) == BrokersDelta(broker, None)
    assert image.fenced == {2: broker}


def test_a_partition_whose_isr_is_down_has_no_leader():
    assert PartitionRegistration.new((1, 2), ()).leader == NO_LEADER


def test_a_broker_that_is_alone_leads_what_was_stored_without_registrations():
    image = ClusterImage(4, broker_epoch=6)
    replay(image, topic_record(Topic("t", uuid.UUID(int=1), 1, {}, 2)))
    found = image.registration(image.topics["t"], 0)
    assert found == PartitionRegistration((4,), (4,), 4, 4, 0)
