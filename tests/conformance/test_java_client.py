"""Calls that only Apache Kafka's Java client has, on both brokers."""

from __future__ import annotations

import time

import pytest
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import Member, told_by
from support.clients.librdkafka import create_topic, produce_values

pytestmark = told_by("java")


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """An empty topic of two partitions."""
    return create_topic(bootstrap, unique("topic"), 2)


def test_group_offsets_have_a_leader_epoch_and_are_deleted_one_by_one(client, admin, topic, unique):
    group, place = unique("group"), client.place((topic, 0))
    zero = client.java.java.util.Optional.of(0)
    offset = client.own.consumer.OffsetAndMetadata(3, zero, "a note")
    admin.made.alterConsumerGroupOffsets(group, {place: offset}).all().get()
    admin.move_offsets(group, {(topic, 1): (4, "")})
    stored = admin.made.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
    assert stored[place].leaderEpoch().get() == 0
    assert admin.group_offsets(group) == {(topic, 0): (3, "a note"), (topic, 1): (4, "")}
    admin.made.deleteConsumerGroupOffsets(group, {place}).all().get()
    assert admin.group_offsets(group) == {(topic, 1): (4, "")}


@pytest.mark.no_kill("who was removed is back if the coordinator dies before the others join again")
def test_members_are_removed_from_a_group_by_instance_id_and_all_at_once(
    client, bootstrap, admin, topic, unique
):
    group, own = unique("group"), client.own.admin
    one = Member(client, bootstrap, group, topic, group_instance_id="one")
    two = Member(client, bootstrap, group, topic)
    wait_until(lambda: len(one.share) == len(two.share) == 1, "a partition each")

    def remove(*names: str) -> None:
        members = [own.MemberToRemove(name) for name in names]
        options = own.RemoveMembersFromConsumerGroupOptions
        asked = options(members) if names else options()
        admin.made.removeMembersFromConsumerGroup(group, asked).all().get()

    assert client.thrown_by(lambda: remove("nobody")) == "UnknownMemberIdException"
    one.stop_polling()
    remove("one")
    wait_until(lambda: len(two.share) == 2, "the other to own all")
    assert len(admin.members(group)) == 1
    two.stop_polling()
    remove()
    assert admin.members(group) == []


def test_a_consumer_commits_without_waiting_pauses_and_resumes(client, bootstrap, topic, unique):
    place, java_place = (topic, 0), client.place((topic, 0))
    produce_values(bootstrap, topic, map(str, range(3)), partition=0)
    reader, told = client.consumer(bootstrap, unique("group")), client.java.Told()
    reader.assign([place])
    reader.made.commitAsync(client.offsets({place: (4, "four")}), told)

    def answer() -> str:
        reader.poll()
        return told.take()

    wait_for(answer, f"committed {topic}-0")
    assert reader.committed(place) == (4, "four")
    reader.made.pause([java_place])
    reader.seek(place, 0)
    assert reader.poll() == []
    reader.made.resume([java_place])
    assert [each.value for each in reader.take(1)] == [b"0"]


def test_a_consumer_without_a_position_starts_where_its_policy_says(client, bootstrap, topic):
    place, writer, now = (topic, 0), client.producer(bootstrap), time.time_ns() // 10**6
    for hours in (3, 2, 0):
        writer.sent(topic, "v", partition=0, timestamp=now - hours * 3_600_000)
    for policy, expected in (("earliest", 0), ("latest", 3), ("by_duration:PT2H30M", 1)):
        reader = client.consumer(bootstrap, auto_offset_reset=policy)
        reader.assign([place])
        assert reader.position(place) == expected
    strict = client.consumer(bootstrap, auto_offset_reset="none")
    strict.assign([place])
    assert client.thrown_by(lambda: strict.position(place)) == "NoOffsetForPartitionException"
    strict.seek(place, 77)
    out_of_range = client.thrown_by(lambda: strict.take(1))
    assert out_of_range == "OffsetOutOfRangeException"
