"""Administrators of three libraries: topics, configurations, groups, offsets, on both brokers."""

from __future__ import annotations

import pytest
from support.brokers.probe import wait_for, wait_until
from support.clients.adapter import HANGS, Member, told_by
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of

THREE = ("kafka-python", "librdkafka", "java")
ONCE = {
    "java": pytest.mark.no_kill("a change whose answer is lost is refused when it is asked again")
}
UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"
CONFIGS = {"retention.ms": "123456", "cleanup.policy": "compact"}


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """An empty topic of two partitions."""
    return create_topic(bootstrap, unique("admin"), 2)


@told_by(*THREE)
def test_a_topic_that_cannot_be_is_refused(client, admin, unique):
    name = unique("bad")
    for asked, expected in (
        (("no spaces",), "INVALID_TOPIC_EXCEPTION"),
        (("x" * 250,), "INVALID_TOPIC_EXCEPTION"),
        ((name, 0), "INVALID_PARTITIONS"),
        ((name, 1, 4), "INVALID_REPLICATION_FACTOR"),
        ((name, 1, 1, {"no.such.option": "1"}), "INVALID_CONFIG"),
        ((name, 1, 1, {"retention.ms": "soon"}), "INVALID_CONFIG"),
    ):
        assert client.error_of(lambda asked=asked: admin.create_topic(*asked)) == expected


@told_by(*THREE, **HANGS, **ONCE, librdkafka=ONCE["java"])
def test_a_topic_is_validated_created_deleted_and_its_name_can_be_used_again(
    bootstrap, client, admin, unique
):
    topic = unique("life")
    for count in (5, 1):
        admin.create_topic(topic, count, configs=CONFIGS, only_validates=True)
        assert topic not in admin.topics()
        admin.create_topic(topic, count, configs=CONFIGS)
        wait_until(lambda: topic in admin.topics(), "the topic")
        wait_for(lambda count=count: admin.partitions(topic), count)
        for only_validates in (True, False):
            again = client.error_of(
                lambda how=only_validates: admin.create_topic(topic, only_validates=how)
            )
            assert again == "TOPIC_ALREADY_EXISTS"
        assert read_topic(bootstrap, topic) == []
        produce_values(bootstrap, topic, ["keyed"], partition=0)
        assert [each.offset for each in read_topic(bootstrap, topic)] == [0]
        admin.delete_topic(topic)
        wait_until(lambda: topic not in admin.topics(), "the deletion")
        assert client.error_of(lambda: admin.delete_topic(topic)) == UNKNOWN


@told_by(*THREE, **HANGS, **ONCE)
def test_partitions_are_added_and_used_and_never_taken_away(
    bootstrap, client, admin, topic, unique
):
    admin.add_partitions(topic, 4, only_validates=True)
    assert admin.partitions(topic) == 2
    admin.add_partitions(topic, 4)
    wait_for(lambda: admin.partitions(topic), 4)
    produce_values(bootstrap, topic, ["into the new one"], partition=3)
    (seen,) = read_topic(bootstrap, topic)
    assert (seen.partition, seen.offset) == (3, 0)
    for name, count, error in (
        (topic, 3, "INVALID_PARTITIONS"),
        (topic, 4, "INVALID_PARTITIONS"),
        (unique("nothing"), 3, UNKNOWN),
    ):
        asked = client.error_of(lambda of=name, to=count: admin.add_partitions(of, to))
        assert asked == error


@told_by(*THREE, **HANGS)
def test_a_topic_s_configuration_tells_what_was_set_and_what_is_default(bootstrap, admin, unique):
    topic = create_topic(bootstrap, unique("configs"), config=CONFIGS)
    told = admin.configs(topic)
    own = {
        name: value for name, (value, source) in told.items() if source == "DYNAMIC_TOPIC_CONFIG"
    }
    assert own == CONFIGS
    assert told["message.timestamp.type"] == ("CreateTime", "DEFAULT_CONFIG")


@told_by(*THREE, **HANGS)
def test_configurations_change_one_by_one_and_return_to_the_default(admin, topic):
    names = ("retention.ms", "cleanup.policy")

    def now() -> list[tuple[str | None, str]]:
        told = admin.configs(topic)
        return [told[name] for name in names]

    before, own = now(), "DYNAMIC_TOPIC_CONFIG"
    assert before[0] == ("604800000", "DEFAULT_CONFIG")
    admin.alter_configs(topic, ("retention.ms", "SET", "1000"))
    admin.alter_configs(topic, ("cleanup.policy", "APPEND", "compact"))
    wait_for(now, [("1000", own), ("delete,compact", own)])
    admin.alter_configs(topic, ("cleanup.policy", "SUBTRACT", "delete"))
    wait_for(now, [("1000", own), ("compact", own)])
    admin.alter_configs(topic, *((name, "DELETE", None) for name in names))
    wait_for(now, before)


@told_by("librdkafka", "java")
@pytest.mark.parametrize(
    "change",
    [
        ("retention.ms", "SET", "soon"),
        ("no.such.option", "SET", "1"),
        ("retention.ms", "APPEND", "5"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_and_changes_nothing(
    client, admin, topic, change
):
    good = ("retention.bytes", "SET", "77")
    assert client.error_of(lambda: admin.alter_configs(topic, good, change)) == "INVALID_CONFIG"
    assert admin.configs(topic)["retention.bytes"] == ("-1", "DEFAULT_CONFIG")


@told_by("librdkafka", "java")
def test_configurations_of_a_topic_that_is_not_there_are_unknown(client, admin, unique):
    nothing, change = unique("nothing"), ("retention.ms", "SET", "1")
    assert client.error_of(lambda: admin.alter_configs(nothing, change)) == UNKNOWN
    assert client.error_of(lambda: admin.configs(nothing)) == UNKNOWN


@told_by(*THREE)
@pytest.mark.no_kill("tells which brokers are there")
def test_the_cluster_has_its_brokers(bootstrap, admin):
    assert admin.addresses() == sorted(bootstrap.split(","))


@told_by(*THREE, **HANGS)
def test_groups_are_listed_by_state_described_and_deleted_when_empty(
    bootstrap, client, admin, topic, unique
):
    group = unique("group")
    member = Member(client, bootstrap, group, topic, client_id="who-i-am")
    wait_until(lambda: len(member.share) == 2, "an assignment")
    # Where a coordinator moves, its groups are in no broker's list for a moment.
    wait_for(lambda: admin.groups().get(group), "STABLE")
    ((name, host),) = admin.members(group)
    assert name.startswith("who-i-am")
    assert host == "/127.0.0.1"
    assert client.error_of(lambda: admin.delete_group(group)) == "NON_EMPTY_GROUP"
    member.ask(lambda reader: reader.commit({(topic, 0): (0, "a note")}))
    assert admin.group_offsets(group) == {(topic, 0): (0, "a note")}
    member.close()
    wait_for(lambda: admin.groups().get(group), "EMPTY")
    admin.delete_group(group)
    assert group not in admin.groups()
    assert client.error_of(lambda: admin.delete_group(group)) == "GROUP_ID_NOT_FOUND"
    assert admin.group_offsets(group) == {}


@told_by(*THREE, **HANGS)
def test_a_group_s_offsets_are_listed_and_moved_when_it_has_no_members(
    bootstrap, client, admin, topic, unique
):
    group, place = unique("group"), (topic, 1)
    produce_values(bootstrap, topic, ["a", "b", "c"], partition=1)
    admin.move_offsets(group, {place: (2, "moved"), (topic, 0): (4, "")})
    moved = {place: (2, "moved"), (topic, 0): (4, "")}
    assert admin.group_offsets(group) == moved
    member = Member(client, bootstrap, group, topic)
    wait_until(lambda: bool(member.records), "a record")
    assert member.records[0].offset == 2
    refused = client.error_of(lambda: admin.move_offsets(group, {place: (0, "")}))
    assert refused == "UNKNOWN_MEMBER_ID"
    assert admin.group_offsets(group) == moved
    member.close()


@told_by(*THREE, **HANGS)
def test_offsets_are_found_at_both_ends_by_time_and_by_isolation_level(
    bootstrap, client, admin, topic, unique
):
    place, first_ms = (topic, 0), 1_700_000_000_000
    writer = client.transactional(bootstrap, unique("txn"))
    writer.begin()
    for number in range(10):
        writer.sent(topic, f"{number}", partition=0, timestamp=first_ms + number * 1000)
    writer.commit()
    writer.begin()
    writer.sent(topic, "open", partition=0, timestamp=first_ms)
    wait_for(lambda: admin.offset(place, "latest", committed=True), 11)
    assert admin.offset(place, "latest") == 12
    assert [admin.offset(place, each) for each in ("earliest", 0)] == [0, 0]
    assert admin.offset(place, first_ms + 8_500) == 9
    # Nothing is that late.
    assert admin.offset(place, first_ms + 10**12) == -1
    # The marker is of about now.
    assert admin.offset(place, "max_timestamp") in (9, 10)
    for isolation, end in (("read_committed", 11), ("read_uncommitted", 12)):
        with client.consumer(bootstrap, isolation_level=isolation) as reader:
            reader.assign([place])
            assert reader.ends(place) == (0, end)
    writer.commit()
    wait_for(lambda: admin.offset(place, "latest", committed=True), 13)


@told_by(*THREE, **HANGS)
def test_deleted_records_move_the_start_and_committed_ones_after_it_stay(
    bootstrap, client, admin, topic
):
    place = (topic, 0)
    produce_values(bootstrap, topic, ["a", "b", "c", "d"], partition=0)
    assert admin.delete_records(place, 2) == 2
    assert values_of(read_topic(bootstrap, topic)) == ["c", "d"]
    assert admin.offset(place, "earliest") == 2
    refused = client.error_of(lambda: admin.delete_records(place, 100))
    assert refused == "OFFSET_OUT_OF_RANGE"
    # -1: all there is.
    assert admin.delete_records(place, -1) == 4
    assert read_topic(bootstrap, topic) == []
