"""Markers to other leaders: who gets them, what is asked again, who holds up whom."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import request
from support.core.core_cluster import DATA, OFFSETS, STATE, CoreCluster, coordinated, end_request
from support.core.core_network import Exchange
from support.raw.raw import RawProducer

from broker_sim.core.controller.metadata_records import topic_deleted_record
from broker_sim.core.controller.registrations import NO_LEADER
from broker_sim.core.coordinator.peer_batches import REQUEST_TIMEOUT_MS
from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import decode_marker
from txnlog_kafka.wire.topic_partition import TopicPartition

MARKERS = ApiKey.WRITE_TXN_MARKERS


@pytest.fixture
def cluster() -> CoreCluster:
    return coordinated()


def begun(cluster: CoreCluster, *places: TopicPartition, name: str = "t") -> RawProducer:
    """A transaction with one record in each of these partitions."""
    producer = cluster.producer(name)
    assert producer.init() == "NONE"
    for place in places or DATA:
        assert producer.produce(*place, f"{name} {place.partition}", version=12) == "NONE"
    return producer


def decide(
    cluster: CoreCluster, producer: RawProducer, *, commit: bool = True, version: int = 5
) -> None:
    """EndTxn is in the coordinator's log and replicated; no marker has left."""
    coordinator = cluster.leader(STATE)
    told = cluster.brokers[coordinator].asked.answers
    message = end_request(producer, commit=commit)
    key = cluster.brokers[coordinator].send(message, version, connection_id=77)
    for _ in range(20):
        if key in told:
            break
        cluster.replicate(coordinator, *cluster.others(coordinator), times=1)
        cluster.advance(50)
    assert told[key].error_code == 0


def markers_of(cluster: CoreCluster, number: int, place: TopicPartition) -> list[Any]:
    log = cluster.brokers[number].log(*place)
    found = [
        decode_marker(data, 0, header)
        for header, data in log.batches(log.log_start_offset)
        if header.is_control
    ]
    return [(marker.marker_type.name, marker.coordinator_epoch) for marker in found if marker]


def deliver_markers(cluster: CoreCluster, sender: int, *, but: int | None = None) -> None:
    """The markers that a coordinator has sent go their way, except those to one broker."""
    for _ in range(10):
        for asked in cluster.of(sender, MARKERS):
            if asked.send.peer == but:
                continue
            if asked.key is None:
                cluster.deliver(asked)
            cluster.answer(asked)
        for leader in cluster.brokers:
            cluster.replicate(leader, *cluster.others(leader), times=1)
        cluster.advance(60)


# --------------------------------------------------------------------------- who gets them


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_every_partition_gets_its_marker_wherever_it_is_led(cluster, commit, version) -> None:
    producer = begun(cluster)
    assert producer.end(commit=commit, version=version) == "NONE"
    cluster.settle()
    for place in DATA:
        assert cluster.committed(place) == ([f"t {place.partition}"] if commit else [])
        assert cluster.is_settled(place)
    assert cluster.state(0) == ("CompleteCommit" if commit else "CompleteAbort")


def test_a_leader_gets_one_request_at_a_time_with_all_markers_that_wait(cluster) -> None:
    cluster.change(*DATA[2], leader=1)
    cluster.settle()
    first = begun(cluster, DATA[1], DATA[2], name="a")
    others = [begun(cluster, DATA[1], name=name) for name in ("b", "c")]
    decide(cluster, first)
    for producer in others:
        decide(cluster, producer)
    (asked,) = cluster.of(0, MARKERS)
    (entry,) = asked.send.message.markers
    assert [topic.partition_indexes for topic in entry.topics] == [[1, 2]]
    cluster.deliver(asked)
    while not cluster.answer(asked):
        cluster.replicate(1, 0, 2, times=1)
        cluster.brokers[1].advance(100)
    (following,) = cluster.of(0, MARKERS)
    told = {entry.producer_id for entry in following.send.message.markers}
    assert told == {producer.producer_id for producer in others}
    cluster.settle()
    assert [cluster.state(0, name) for name in "abc"] == ["CompleteCommit"] * 3


def test_complete_is_written_only_when_all_partitions_have_their_marker(cluster) -> None:
    decide(cluster, begun(cluster))
    deliver_markers(cluster, 0, but=2)
    assert [len(markers_of(cluster, n, DATA[n])) for n in range(3)] == [1, 1, 0]
    described = cluster.brokers[0].parts.transactions.describe("t")
    assert (described.state, described.partitions) == ("PrepareCommit", (DATA[2],))
    deliver_markers(cluster, 0)
    assert cluster.state(0) == "CompleteCommit"


# --------------------------------------------------------------------------- who holds up whom


def to_broker_2(asked: Exchange) -> bool:
    """Broker 2 is deaf to markers."""
    return bool(asked.send.message.API_KEY == MARKERS and asked.send.peer == 2)


def test_a_leader_that_does_not_answer_holds_up_no_other_transaction(cluster) -> None:
    cluster.is_stuck = to_broker_2
    stuck = begun(cluster, DATA[1], DATA[2], name="stuck")
    assert stuck.end(commit=True, version=5) == "NONE"
    for name in ("a", "b"):
        free = begun(cluster, DATA[0], DATA[1], name=name)
        assert free.end(commit=True, version=5) == "NONE"
        cluster.run(1_200)
        assert cluster.state(0, name) == "CompleteCommit"
    assert cluster.state(0, "stuck") == "PrepareCommit"


def test_a_marker_that_waits_behind_a_dead_leader_goes_to_the_next_one(cluster) -> None:
    cluster.is_stuck = to_broker_2
    for name in ("a", "b"):
        assert begun(cluster, DATA[2], name=name).end(commit=True, version=5) == "NONE"
    assert len(cluster.of(0, MARKERS)) == 1  # of `a`, to broker 2, which does not answer
    cluster.change(*DATA[2], leader=1)
    cluster.run(1_200)
    assert cluster.state(0, "b") == "CompleteCommit"
    assert cluster.state(0, "a") == "PrepareCommit"


def test_a_request_that_is_not_answered_in_its_time_is_made_again_to_whoever_leads(cluster) -> None:
    decide(cluster, begun(cluster, DATA[2]))
    (late,) = cluster.of(0, MARKERS)
    cluster.change(*DATA[2], leader=1)
    cluster.sent.remove(late)
    cluster.brokers[0].advance(REQUEST_TIMEOUT_MS + 200)
    deliver_markers(cluster, 0)
    assert cluster.state(0) == "CompleteCommit"
    assert markers_of(cluster, 1, DATA[2]) == [("COMMIT", 0)]
    cluster.sent.append(late)
    cluster.deliver(late)
    assert cluster.answer(late)  # too late to be heard
    assert cluster.state(0) == "CompleteCommit"


# --------------------------------------------------------------------------- asked again


def test_a_lost_answer_is_asked_for_again_and_the_second_marker_changes_nothing(cluster) -> None:
    decide(cluster, begun(cluster, DATA[1]))
    (asked,) = cluster.of(0, MARKERS)
    cluster.deliver(asked)
    cluster.replicate(1, 0, 2)
    cluster.lose(asked)
    cluster.settle()
    assert cluster.state(0) == "CompleteCommit"
    assert len(markers_of(cluster, 1, DATA[1])) == 2
    assert cluster.committed(DATA[1]) == ["t 1"]


def test_without_a_leader_the_marker_waits_for_one(cluster) -> None:
    decide(cluster, begun(cluster, DATA[2]))
    (asked,) = cluster.of(0, MARKERS)
    cluster.change(*DATA[2], leader=NO_LEADER)
    cluster.lose(asked)
    cluster.settle()
    assert cluster.state(0) == "PrepareCommit"
    assert not cluster.of(0, MARKERS)
    cluster.change(*DATA[2], leader=0)
    cluster.settle()
    assert cluster.state(0) == "CompleteCommit"


def test_a_leader_that_has_resigned_says_so_and_the_next_one_is_asked(cluster) -> None:
    decide(cluster, begun(cluster, DATA[2]))
    cluster.change(*DATA[2], leader=1, read=False)
    for number in (1, 2):
        cluster.read(number)  # the coordinator has not heard of it
    deliver_markers(cluster, 0)
    assert cluster.state(0) == "PrepareCommit"
    assert not any(markers_of(cluster, n, DATA[2]) for n in range(3))
    cluster.read(0)
    cluster.settle()
    assert cluster.state(0) == "CompleteCommit"


def test_a_deleted_topic_is_taken_out_by_the_metadata_and_not_by_what_a_leader_says(
    cluster,
) -> None:
    decide(cluster, begun(cluster, DATA[1], DATA[2]))
    cluster.write(topic_deleted_record(cluster.topics.pop("orders")), read=False)
    cluster.read(1)
    cluster.read(2)
    deliver_markers(cluster, 0)
    assert cluster.state(0) == "PrepareCommit"
    cluster.read(0)
    cluster.settle()
    assert cluster.state(0) == "CompleteCommit"


# --------------------------------------------------------------------------- what leaders say


def answered(cluster: CoreCluster, number: int, place: tuple[str, int]) -> str:
    """Return the broker's error for a marker of the partition."""
    answer = cluster.ask(number, marker_request(place), 2)
    return error_name(answer.markers[0].topics[0].partitions[0].error_code)


def marker_request(place: tuple[str, int]) -> Any:
    marker = {
        "producer_id": 7, "producer_epoch": 0, "transaction_result": True,
        "topics": [{"name": place[0], "partition_indexes": [place[1]]}], "transaction_version": 1,
    }  # fmt: skip
    return request(MARKERS, markers=[marker])


def test_markers_are_refused_where_the_partition_is_not_led_or_not_there(cluster) -> None:
    cluster.change(*DATA[2], replicas=(2, 1), isr=(2, 1))
    assert cluster.brokers[0].parts.logs.get(*DATA[2]) is None
    assert answered(cluster, 0, DATA[2]) == "NOT_LEADER_OR_FOLLOWER"
    assert answered(cluster, 1, DATA[2]) == "NOT_LEADER_OR_FOLLOWER"
    assert answered(cluster, 2, DATA[2]) == "NONE"
    assert answered(cluster, 0, ("orders", 3)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert answered(cluster, 0, ("nothing", 0)) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_marker_for_offsets_is_refused_while_their_group_coordinator_loads(cluster) -> None:
    cluster.change(*OFFSETS, leader=2)
    assert cluster.brokers[2].parts.groups.is_loading(0)
    told = cluster.brokers[2].ask(marker_request(OFFSETS), 1).markers[0].topics[0]
    assert error_name(told.partitions[0].error_code) == "NOT_LEADER_OR_FOLLOWER"
    cluster.settle()
    assert answered(cluster, 2, OFFSETS) == "NONE"


def test_a_marker_of_an_older_coordinator_is_refused_and_ends_that_coordinators_try(
    cluster,
) -> None:
    """Broker 0 is paused with its markers on the way; broker 1 goes on, and they come late."""
    decide(cluster, begun(cluster, DATA[1], DATA[2]))
    late = [asked for asked in cluster.of(0, MARKERS) if asked.send.peer == 2]
    held = cluster.of(0)
    cluster.sent = [asked for asked in cluster.sent if asked not in held]
    for name in (STATE, OFFSETS, *DATA):  # the controller takes it for dead
        leader = cluster.leader(name) or 1
        cluster.change(*name, leader=leader, isr=(1, 2), read=False)
    for number in (1, 2):
        cluster.read(number)
    for _ in range(30):
        for number in (1, 2):
            cluster.brokers[number].advance(60)
        cluster.exchange(1)
    cluster.sent += held
    cluster.exchange(4)
    epoch = cluster.held(*STATE).leader_epoch
    assert epoch == 1
    assert markers_of(cluster, 2, DATA[2])[0] == ("COMMIT", epoch)
    assert late and markers_of(cluster, 2, DATA[2]) == [("COMMIT", epoch)]
    assert not any(cluster.brokers[0].parts.transactions._markers._waiting)
    cluster.read(0)
    cluster.settle()
    assert [cluster.state(n) for n in range(3)] == [
        "NOT_COORDINATOR", "CompleteCommit", "NOT_COORDINATOR",
    ]  # fmt: skip


# --------------------------------------------------------------------------- deaths


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_that_dies_before_its_markers_is_followed_by_one_that_writes_them(
    cluster, commit
) -> None:
    decide(cluster, begun(cluster), commit=commit)
    assert not any(markers_of(cluster, n, DATA[n]) for n in (1, 2))
    cluster.fail(0)
    cluster.settle()
    assert cluster.state(1) == ("CompleteCommit" if commit else "CompleteAbort")
    for place in DATA:
        assert cluster.committed(place) == ([f"t {place.partition}"] if commit else [])


@pytest.mark.parametrize("reached", [1, 2])
def test_a_coordinator_that_dies_between_two_markers_is_followed_by_one_that_ends_the_same_way(
    cluster, reached
) -> None:
    decide(cluster, begun(cluster))
    deliver_markers(cluster, 0, but=3 - reached)
    cluster.fail(0)
    cluster.settle()
    assert cluster.state(1) == "CompleteCommit"
    for place in DATA:
        assert cluster.committed(place) == [f"t {place.partition}"]
        assert cluster.is_settled(place)


def test_a_coordinator_that_dies_before_complete_leaves_markers_that_may_be_written_twice(
    cluster,
) -> None:
    decide(cluster, begun(cluster))
    before = cluster.brokers[0].log(*STATE).log_end_offset
    for _ in range(10):
        for asked in cluster.of(0, MARKERS):
            if asked.key is None:
                cluster.deliver(asked)
        cluster.replicate(1, 0, 2, times=1)
        cluster.replicate(2, 0, 1, times=1)
        cluster.replicate(0, 1, 2, times=1)
        cluster.brokers[1].advance(100)
        cluster.brokers[2].advance(100)
    assert all(markers_of(cluster, n, DATA[n]) for n in range(3))
    assert cluster.brokers[0].log(*STATE).log_end_offset == before
    cluster.fail(0)
    cluster.settle()
    assert cluster.state(1) == "CompleteCommit"
    assert [cluster.committed(place) for place in DATA] == [["t 0"], ["t 1"], ["t 2"]]


def test_a_coordinator_that_is_moved_back_and_forth_between_markers_completes_in_the_end(
    cluster,
) -> None:
    decide(cluster, begun(cluster), commit=False)
    for leader in (1, 2, 0, 1):
        cluster.change(*STATE, leader=leader)
        cluster.exchange(2)
        cluster.advance(100)
    cluster.settle()
    assert cluster.state(1) == "CompleteAbort"
    assert [cluster.committed(place) for place in DATA] == [[], [], []]
    assert begun(cluster).end(commit=True, version=5) == "NONE"
    cluster.settle()
    assert [cluster.committed(place) for place in DATA] == [["t 0"], ["t 1"], ["t 2"]]


def test_a_decision_that_is_not_replicated_is_not_carried_out_by_who_may_still_lose_it(
    cluster,
) -> None:
    """Broker 1 has PREPARE_COMMIT, leads, and dies before broker 2 has it: nothing was decided."""
    producer = begun(cluster, DATA[1], DATA[2])
    cluster.brokers[0].send(end_request(producer, commit=True), 5, connection_id=77)
    cluster.replicate(0, 1, times=1)
    ends = [cluster.brokers[n].log(*STATE).log_end_offset for n in range(3)]
    assert ends[0] == ends[1] > ends[2]
    cluster.kill(0)
    cluster.change(*STATE, leader=1, isr=(1, 2))
    cluster.change(*DATA[1], isr=(1, 2))
    cluster.change(*DATA[2], isr=(1, 2))
    cluster.brokers[1].advance(1000)  # it loads, and nobody fetches from it
    assert not cluster.of(1, MARKERS)
    assert markers_of(cluster, 1, DATA[1]) == []
    cluster.kill(1)
    cluster.change(*STATE, leader=2, isr=(2,))
    cluster.change(*DATA[1], leader=2, isr=(2,))
    cluster.change(*DATA[2], isr=(2,))
    cluster.restart(0)  # it had the decision in its log, and now it has not
    cluster.settle()
    assert cluster.state(2) == "Ongoing"
    assert markers_of(cluster, 2, DATA[1]) == markers_of(cluster, 2, DATA[2]) == []
