"""Members of one library that come, leave, fall silent and come back, on both brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.brokers.probe import wait_until
from support.clients.adapter import HANGS, Client, Member, Place, params_of, told_by
from support.clients.librdkafka import create_topic

PARTITIONS = 6
ASSIGNORS = {
    "aiokafka": ["range", "roundrobin", "sticky"],
    "kafka-python": ["range", "roundrobin", "sticky", "cooperative-sticky"],
    "librdkafka": ["range", "roundrobin", "cooperative-sticky"],
    "java": ["range", "roundrobin", "sticky", "cooperative-sticky"],
}
EACH_ASSIGNOR = [
    pytest.param(*each.values, assignor, marks=each.marks)
    for each in params_of(**HANGS)
    for assignor in ASSIGNORS[each.values[0]]
]


class Group:
    """A group of one library, on topics of six partitions."""

    def __init__(self, client: Client, bootstrap: str, group: str, topics: list[str]) -> None:
        self._names = client, bootstrap, group
        self.topics = topics
        self.places = {(topic, number) for topic in topics for number in range(PARTITIONS)}

    def join(self, assignor: str | None = None, **settings: object) -> Member:
        """Start another member."""
        if assignor is not None:
            settings["partition_assignment_strategy"] = assignor
        return Member(*self._names, *self.topics, **settings)

    def wait_shared(self, *members: Member) -> None:
        """Wait until these members have each partition once, evenly."""

        def shared() -> bool:
            for each in members:
                if each.failed is not None:
                    raise each.failed
            whole = sorted(place for each in members for place in each.share)
            even = len({len(each.share) for each in members}) == 1
            return whole == sorted(self.places) and even

        wait_until(shared, f"{len(members)} even shares")


@pytest.fixture
def make_group(bootstrap, client, unique) -> Callable[[int], Group]:
    """Makes the group, on one topic or on two."""

    def make(topics: int) -> Group:
        names = [create_topic(bootstrap, unique(f"t{n}"), PARTITIONS) for n in range(topics)]
        return Group(client, bootstrap, unique("group"), names)

    return make


@pytest.fixture
def group(make_group) -> Group:
    """The group on one topic."""
    return make_group(1)


@pytest.mark.parametrize(("client", "assignor"), EACH_ASSIGNOR, indirect=["client"])
def test_members_share_all_partitions_as_they_come_and_one_leaves(make_group, assignor):
    group, members = make_group(2), []
    for _ in range(3):
        members.append(group.join(assignor))
        group.wait_shared(*members)
    members.pop(0).close()
    group.wait_shared(*members)
    assert not any(what == "lost" for each in members for what, _ in each.events)


@told_by("kafka-python", "librdkafka", "java", **HANGS)
def test_a_cooperative_rebalance_takes_away_only_what_moves(group):
    first = group.join("cooperative-sticky")
    group.wait_shared(first)
    second = group.join("cooperative-sticky")
    group.wait_shared(first, second)
    moved = sorted(second.share)
    assert first.events == [("assigned", sorted(group.places)), ("revoked", moved)]
    assert second.events == [("assigned", moved)]
    second.close()
    group.wait_shared(first)
    assert first.events[2:] == [("assigned", moved)]


@told_by(**HANGS)
def test_an_eager_rebalance_takes_away_everything_first(group):
    everything, half = sorted(group.places), sorted(group.places)[:3]
    first = group.join("range", client_id="a")
    group.wait_shared(first)
    second = group.join("range", client_id="b")
    group.wait_shared(first, second)
    kept = sorted(first.share)
    second.close()
    group.wait_shared(first)
    assert kept in (half, everything[3:])
    told = [("assigned", everything), ("revoked", everything), ("assigned", kept)]
    assert first.events == [*told, ("revoked", kept), ("assigned", everything)]


@told_by(**HANGS)
@pytest.mark.parametrize(
    ("assignor", "expected"),
    [("range", [[0, 1, 2], [3, 4, 5]]), ("roundrobin", [[0, 2, 4], [1, 3, 5]])],
)
def test_range_gives_neighbours_to_one_member_and_round_robin_alternates(group, assignor, expected):
    members = [group.join(assignor) for _ in range(2)]
    group.wait_shared(*members)
    assert sorted(sorted(number for _, number in each.share) for each in members) == expected


@told_by("kafka-python", "librdkafka", "java", **HANGS)
def test_a_member_that_stops_polling_loses_its_partitions_to_the_other(client, group):
    place: Place = (group.topics[0], 0)
    silent = group.join(session_timeout_ms=1000, max_poll_interval_ms=1500)
    group.wait_shared(silent)
    silent.ask(lambda reader: reader.commit({place: (1, "")}))
    silent.stop_polling()
    busy = group.join(session_timeout_ms=6000)
    group.wait_shared(busy)
    refused = client.error_of(lambda: silent.ask(lambda reader: reader.commit({place: (2, "")})))
    assert (
        refused
        in {
            "kafka-python": ["CommitFailedError", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"],
            "librdkafka": [
                "UNKNOWN_MEMBER_ID",
                "ILLEGAL_GENERATION",
                "_MAX_POLL_EXCEEDED",
                "_STATE",
            ],
            "java": ["CommitFailedException"],
        }[client.name]
    )
    assert busy.ask(lambda reader: reader.committed(place)) == (1, "")


EARLY = pytest.mark.one_broker("the heartbeat of the older self may be told before its commit is")


@told_by("kafka-python", "librdkafka", "java", **HANGS, java=EARLY)
def test_a_second_holder_of_a_static_member_s_name_fences_the_first(client, group):
    place: Place = (group.topics[0], 0)
    settings = {"group_instance_id": "the-one", "session_timeout_ms": 30_000}
    # No heartbeat of its tells it before the commit does.
    first = group.join(**settings, heartbeat_interval_ms=9000)
    group.wait_shared(first)
    first.stop_polling()
    second = group.join(**settings)
    group.wait_shared(second)
    refused = client.error_of(lambda: first.ask(lambda reader: reader.commit({place: (1, "")})))
    assert (
        refused
        in {
            "kafka-python": ["FENCED_INSTANCE_ID", "CommitFailedError"],
            "librdkafka": ["FENCED_INSTANCE_ID", "_FATAL"],
            "java": ["FENCED_INSTANCE_ID"],
        }[client.name]
    )
    second.ask(lambda reader: reader.commit({place: (0, "")}))
    assert second.ask(lambda reader: reader.committed(place)) == (0, "")
    if client.name == "librdkafka":
        with pytest.raises(KafkaException, match="fenced") as told:
            wait_until(lambda: first.ask(lambda reader: reader.poll()) is None, "an error")
        assert told.value.args[0].code() == KafkaError._FATAL


@told_by(**HANGS)
def test_a_static_member_comes_back_to_its_partitions_and_the_other_notices_nothing(group):
    settings = {"session_timeout_ms": 30_000, "assignor": "range"}
    stays = group.join(group_instance_id="stays", **settings)
    group.wait_shared(stays)
    goes = group.join(group_instance_id="goes", **settings)
    group.wait_shared(stays, goes)
    had, told = goes.share, list(stays.events)
    generation = stays.ask(lambda reader: reader.generation())
    goes.close()
    back = group.join(group_instance_id="goes", **settings)
    group.wait_shared(stays, back)
    assert (back.share, stays.events) == (had, told)
    assert back.ask(lambda reader: reader.generation()) == generation
