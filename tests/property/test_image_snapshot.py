"""A snapshot of the image comes to the same as the records before it, from wherever one begins."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_sim.core.controller.acls import (
    Acl,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from broker_sim.core.controller.image import (
    _REPLAY,
    BrokerConfigsDelta,
    BrokersDelta,
    ClusterImage,
    MetadataRecord,
    PartitionDelta,
    Topic,
    TopicDelta,
    quota_entity,
)
from broker_sim.core.controller.image_snapshot import image_records
from broker_sim.core.controller.metadata_log import decode_record, encode_record
from broker_sim.core.controller.metadata_records import (
    acl_record,
    acl_removed_record,
    broker_configs_record,
    broker_fenced_record,
    broker_registered_record,
    client_quotas_record,
    cluster_record,
    configs_record,
    group_configs_record,
    partition_changed_record,
    partitions_record,
    producer_ids_record,
    scram_record,
    scram_removed_record,
    topic_deleted_record,
    topic_record,
)
from broker_sim.core.controller.registrations import BrokerRegistration, PartitionRegistration
from broker_sim.core.endpoint import Endpoint

NEVER_MADE = {"broker-start", "broker-unregistered"}
"""Records of a broker that is alone, and of older metadata logs."""


class Writer:
    """Draws records that may follow each other, and keeps the image after each."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.image = ClusterImage(0)
        self.records: list[MetadataRecord] = []
        self.add(cluster_record("id"))

    def add(self, record: MetadataRecord) -> None:
        written = decode_record(encode_record(record))
        self.image.replay(written)
        self.records.append(written)

    def draw(self) -> None:
        made: list[Callable[[], MetadataRecord | None]] = [
            self.broker_up,
            self.broker_down,
            self.topic,
            self.deleted,
            self.grown,
            self.configured,
            *([self.moved] * 3),
            self.broker_configured,
            self.group_configured,
            self.quota,
            lambda: producer_ids_record(self.image.next_producer_id + 1000),
            self.acl,
            self.scram,
        ]
        record = self.rng.choice(made)()
        if record is not None:
            self.add(record)

    def broker_up(self) -> MetadataRecord:
        rng, epoch = self.rng, len(self.records)
        at = {"PLAINTEXT": Endpoint("h", rng.randrange(3))}
        rack = rng.choice([None, "a"])
        made = BrokerRegistration(rng.randrange(4), epoch, at, rack, rng.random() < 0.2)
        return broker_registered_record(made)

    def broker_down(self) -> MetadataRecord | None:
        up = sorted(self.image.brokers)
        return broker_fenced_record(self.rng.choice(up)) if up else None

    def registration(self) -> PartitionRegistration:
        replicas = tuple(self.rng.sample(range(4), 2))
        return PartitionRegistration.new(replicas, replicas)

    def topic(self) -> MetadataRecord | None:
        name = self.rng.choice("abc")
        if name in self.image.topics:
            return None
        topic_id = uuid.UUID(int=self.rng.getrandbits(128))
        held = (self.registration(), self.registration())
        return topic_record(Topic(name, topic_id, 2, {}, 0, held))

    def chosen(self) -> Topic | None:
        topics = sorted(self.image.topics.values(), key=lambda topic: topic.name)
        return self.rng.choice(topics) if topics else None

    def deleted(self) -> MetadataRecord | None:
        topic = self.chosen()
        return topic_deleted_record(topic) if topic and self.rng.random() < 0.5 else None

    def grown(self) -> MetadataRecord | None:
        topic = self.chosen()
        if topic is None:
            return None
        return partitions_record(topic, topic.partition_count + 1, (self.registration(),))

    def configured(self) -> MetadataRecord | None:
        topic = self.chosen()
        return configs_record(topic, {"retention.ms": self.rng.randrange(9)}) if topic else None

    def moved(self) -> MetadataRecord | None:
        topic = self.chosen()
        if topic is None:
            return None
        number = self.rng.randrange(topic.partition_count)
        before, fresh = topic.partitions[number], self.registration()
        after = replace(
            fresh,
            leader_epoch=before.leader_epoch + 1,
            partition_epoch=before.partition_epoch + 1,
            adding=self.rng.choice([(), fresh.replicas[:1]]),
        )
        return partition_changed_record(topic, number, after)

    def broker_configured(self) -> MetadataRecord:
        configs = self.rng.choice([{}, {"message.max.bytes": "9"}])
        return broker_configs_record(self.rng.choice(["", "1"]), configs)

    def group_configured(self) -> MetadataRecord:
        configs = self.rng.choice([{}, {"consumer.session.timeout.ms": 50_000}])
        return group_configs_record(self.rng.choice("gh"), configs)

    def quota(self) -> MetadataRecord:
        names = self.rng.choice([{"user": None}, {"user": "u", "client-id": None}, {"ip": "::1"}])
        quotas = self.rng.choice([{}, {"request_percentage": 0.5, "producer_byte_rate": 9.0}])
        return client_quotas_record(quota_entity(names), quotas)

    def acl(self) -> MetadataRecord:
        acl = Acl(
            ResourceType.TOPIC,
            self.rng.choice([PatternType.LITERAL, PatternType.PREFIXED]),
            self.rng.choice("abc"),
            "User:x",
            "*",
            AclOperation.READ,
            Permission.ALLOW,
        )
        return acl_removed_record(acl) if acl in self.image.acls else acl_record(acl)

    def scram(self) -> MetadataRecord:
        user, mechanism = self.rng.choice("uv"), ScramMechanism.SCRAM_SHA_256
        if (user, mechanism) in self.image.scram_credentials and self.rng.random() < 0.5:
            return scram_removed_record(user, mechanism)
        keys = (self.rng.randbytes(4), b"s", b"v")
        return scram_record(user, mechanism, ScramCredential(self.rng.randrange(9), *keys))


def replayed(records: list[MetadataRecord]) -> ClusterImage:
    image = ClusterImage(0)
    for record in records:
        image.replay(record)
    return image


def through_bytes(image: ClusterImage) -> list[MetadataRecord]:
    return [decode_record(encode_record(record)) for record in image_records(image)]


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 60), data=st.data())
def test_an_image_that_is_behind_becomes_the_one_of_the_snapshot(
    seed: int, count: int, data: st.DataObject
) -> None:
    writer = Writer(seed)
    for _ in range(count):
        writer.draw()
    behind = replayed(writer.records[: data.draw(st.integers(0, len(writer.records)))])
    acls, before = behind.acls, replayed(through_bytes(behind))
    assert before == behind
    deltas = behind.restore(through_bytes(writer.image))
    assert behind == writer.image
    assert behind.acls is acls  # the authorizer holds it
    check_deltas(before, behind, deltas)
    assert behind.restore(through_bytes(writer.image)) == []


def check_deltas(before: ClusterImage, after: ClusterImage, deltas: list[Any]) -> None:
    """Carried out one by one they lead from the one to the other."""
    topics, brokers = dict(before.topics), dict(before.brokers)
    configured = set()
    for delta in deltas:
        match delta:
            case TopicDelta(known, made):
                if known is not None:
                    assert topics.pop(known.name).topic_id == known.topic_id
                if made is not None:
                    assert made.name not in topics
                    topics[made.name] = made
            case PartitionDelta(topic, number, known, made):
                assert known.partition_epoch != made.partition_epoch
                assert topic.partitions[number] == made
                held = topics[topic.name].partitions
                changed = (*held[:number], made, *held[number + 1 :])
                topics[topic.name] = replace(topics[topic.name], partitions=changed)
            case BrokersDelta(known, made):
                number = (known or made).broker_id
                assert brokers.pop(number, None) == known
                if made is not None:
                    brokers[number] = made
            case BrokerConfigsDelta(name):
                configured.add(name)
    assert (topics, brokers) == (after.topics, after.brokers)
    names = {*before.broker_configs, *after.broker_configs}
    both = before.broker_configs, after.broker_configs
    assert configured == {n for n in names if both[0].get(n, {}) != both[1].get(n, {})}


def test_the_drawn_records_are_of_all_types_that_a_cluster_has() -> None:
    seen = set()
    for seed in range(40):
        writer = Writer(seed)
        for _ in range(60):
            writer.draw()
        seen |= {record["type"] for record in writer.records}
    assert seen == set(_REPLAY) - NEVER_MADE
