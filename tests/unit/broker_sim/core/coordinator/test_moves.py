"""Coordinators follow the leaders of their partitions: who answers, what a load reads, what ends
with a shard."""

from __future__ import annotations

import pytest
from support.core.broker_build import request
from support.core.core_cluster import DATA, OFFSETS, STATE, CoreCluster, coordinated, end_request

from broker_sim.core.controller.registrations import NO_LEADER
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition

GROUP, TRANSACTION = 0, 1
MEMBER = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000}


@pytest.fixture
def cluster() -> CoreCluster:
    return coordinated()


def found(cluster: CoreCluster, asked: int, key_type: int) -> tuple[str, int, int]:
    """(error, node, port) of FindCoordinator at this broker."""
    message = request(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["x"])
    (entry,) = cluster.ask(asked, message, 4).coordinators
    return error_name(entry.error_code), entry.node_id, entry.port


def join(cluster: CoreCluster, number: int, member_id: str = "") -> object:
    return cluster.ask(number, join_request(member_id), 5)


def join_request(member_id: str) -> object:
    return request(
        ApiKey.JOIN_GROUP, group_id="g", member_id=member_id, protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"m"}], **MEMBER,
    )  # fmt: skip


def stable_member(cluster: CoreCluster, number: int) -> str:
    """The one member of group `g`, with its assignment."""
    member_id = join(cluster, number).member_id
    joined = join(cluster, number, member_id)
    assert (joined.error_code, joined.leader) == (0, member_id)
    message = request(
        ApiKey.SYNC_GROUP, group_id="g", generation_id=joined.generation_id, member_id=member_id,
        assignments=[{"member_id": member_id, "assignment": b"mine"}],
    )  # fmt: skip
    assert cluster.ask(number, message, 3).assignment == b"mine"
    return str(member_id)


def heartbeat(cluster: CoreCluster, number: int, member_id: str, generation: int = 1) -> str:
    message = request(ApiKey.HEARTBEAT, group_id="g", member_id=member_id, generation_id=generation)
    return error_name(cluster.ask(number, message, 3).error_code)


def ends(cluster: CoreCluster, place: TopicPartition) -> list[int]:
    """The log end of each replica."""
    return [broker.log(*place).log_end_offset for broker in cluster.brokers.values()]


# --------------------------------------------------------------------------- who answers


def test_every_broker_names_the_leader_of_the_keys_partition(cluster) -> None:
    for asked in range(3):
        assert found(cluster, asked, TRANSACTION) == ("NONE", 0, 9000)
        assert found(cluster, asked, GROUP) == ("NONE", 1, 9001)
    cluster.change(*STATE, leader=2)
    assert {found(cluster, asked, TRANSACTION) for asked in range(3)} == {("NONE", 2, 9002)}


def test_without_a_leader_there_is_no_coordinator_now(cluster) -> None:
    cluster.change(*STATE, leader=NO_LEADER)
    assert found(cluster, 1, TRANSACTION) == ("COORDINATOR_NOT_AVAILABLE", -1, -1)
    cluster.change(*STATE, leader=0)
    cluster.unregister(0)  # and the election has not come yet
    assert found(cluster, 1, TRANSACTION) == ("COORDINATOR_NOT_AVAILABLE", -1, -1)


@pytest.mark.parametrize(
    ("timeout_ms", "told", "state", "values"),
    [
        (600_000, "NONE", "CompleteCommit", ["open"]),
        (30_000, "PRODUCER_FENCED", "CompleteAbort", []),
    ],
)
def test_without_a_leader_of_its_log_a_transaction_waits_and_the_next_one_ends_it(
    cluster, timeout_ms, told, state, values
) -> None:
    producer = cluster.producer()
    assert (producer.init(timeout_ms=timeout_ms), producer.add_partitions("orders", 2)) == (
        "NONE", "NONE",
    )  # fmt: skip
    assert producer.produce("orders", 2, "open") == "NONE"
    cluster.settle()
    cluster.change(*STATE, leader=NO_LEADER)
    before = [ends(cluster, place) for place in DATA]
    end = end_request(producer, commit=True)
    for number in range(3):
        assert cluster.brokers[number].ask(end, 4).error_code == ErrorCode.NOT_COORDINATOR
        cluster.brokers[number].advance(60_000)
    after = [ends(cluster, place) for place in DATA]
    assert after == before, "no marker, also when its time is over"
    cluster.change(*STATE, leader=1)
    cluster.settle()
    assert producer.end(commit=True) == told
    cluster.settle()
    assert (cluster.state(1), cluster.committed(DATA[2])) == (state, values)


def test_only_the_leader_coordinates_and_the_next_one_goes_on_with_what_it_loads(cluster) -> None:
    producer = cluster.producer()
    assert producer.init() == "NONE"
    assert producer.add_partitions("orders", 0) == "NONE"
    assert [cluster.state(n) for n in range(3)] == ["Ongoing", *["NOT_COORDINATOR"] * 2]
    cluster.change(*STATE, leader=2)
    cluster.run(1_200)
    assert [cluster.state(n) for n in range(3)] == [*["NOT_COORDINATOR"] * 2, "Ongoing"]
    assert producer.add_partitions("orders", 1) == "NONE"
    cluster.change(*STATE, leader=0)  # back, and it must not remember what it knew
    cluster.run(1_200)
    assert cluster.state(0) == "Ongoing"
    listed = cluster.brokers[0].parts.transactions.describe("t")
    assert [number for _, number in listed.partitions] == [0, 1]


def test_a_reassignment_that_takes_the_replica_away_takes_the_coordinator_away(cluster) -> None:
    assert cluster.producer().init() == "NONE"
    cluster.change(*STATE, replicas=(1, 2), isr=(1, 2), leader=1)
    cluster.run(1_200)
    assert [cluster.state(n) for n in range(3)] == ["NOT_COORDINATOR", "Empty", "NOT_COORDINATOR"]


def test_a_broker_that_starts_again_coordinates_nothing_before_the_next_election(cluster) -> None:
    assert cluster.producer().init() == "NONE"
    cluster.kill(0)
    cluster.restart(0)
    assert cluster.state(0) == "NOT_COORDINATOR"
    cluster.change(*STATE, leader=1)
    cluster.change(*STATE, leader=0)
    cluster.settle()
    assert cluster.state(0) == "Empty"


# --------------------------------------------------------------------------- loading


def test_a_new_leader_loads_what_is_above_the_high_watermark_and_answers_when_it_is_committed(
    cluster,
) -> None:
    producer = cluster.producer()
    assert producer.init() == "NONE"
    message = request(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": "orders", "partitions": [2]}],
    )
    cluster.brokers[0].send(message, 3, connection_id=5)
    cluster.replicate(0, 1, times=1)
    assert ends(cluster, STATE) == [2, 2, 1]
    cluster.kill(0)
    cluster.change(*STATE, leader=1, isr=(1, 2))
    cluster.brokers[1].advance(0)
    assert cluster.brokers[1].log(*STATE).high_watermark < 2
    told = cluster.brokers[1].parts.transactions.describe("t")
    assert told.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.settle()
    assert cluster.state(1) == "Ongoing"
    assert cluster.brokers[1].parts.transactions.describe("t").partitions == (DATA[2],)


def test_until_a_group_is_loaded_its_members_wait_and_heartbeats_are_taken(cluster) -> None:
    member_id = stable_member(cluster, 1)
    cluster.change(*OFFSETS, leader=2)
    at_new = cluster.brokers[2]
    beat = request(ApiKey.HEARTBEAT, group_id="g", member_id=member_id, generation_id=1)
    listing = request(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])
    describing = request(ApiKey.DESCRIBE_GROUPS, groups=["g"])
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert at_new.ask(beat, 3).error_code == 0
    assert at_new.ask(listing, 4).error_code == loading
    assert at_new.ask(describing, 5).groups[0].error_code == loading
    cluster.settle()
    assert at_new.ask(beat, 3).error_code == 0
    assert [group.group_id for group in at_new.ask(listing, 4).groups] == ["g"]
    assert at_new.ask(describing, 5).groups[0].group_state == "Stable"


def test_a_load_that_is_overtaken_by_the_next_election_counts_for_nothing(cluster) -> None:
    assert cluster.producer().init() == "NONE"
    cluster.change(*STATE, leader=1)
    cluster.change(*STATE, leader=2)
    cluster.run(1_200)
    assert [cluster.state(n) for n in range(3)] == [*["NOT_COORDINATOR"] * 2, "Empty"]


# --------------------------------------------------------------------------- what ends


def test_who_waits_for_a_record_at_resignation_is_sent_to_the_next_coordinator(cluster) -> None:
    producer = cluster.producer()
    assert producer.init() == "NONE"
    message = request(ApiKey.INIT_PRODUCER_ID, transactional_id="t", transaction_timeout_ms=60_000)
    key = cluster.brokers[0].send(message, 4, connection_id=5)
    assert key not in cluster.brokers[0].asked.answers
    cluster.change(*STATE, leader=1)
    assert cluster.brokers[0].asked.answers[key].error_code == ErrorCode.NOT_COORDINATOR


def test_the_timeout_of_a_transaction_is_the_new_coordinators_business(cluster) -> None:
    producer = cluster.producer()
    assert producer.init(timeout_ms=30_000) == "NONE"
    assert producer.add_partitions("orders", 2) == "NONE"
    cluster.change(*STATE, leader=2)
    cluster.run(1_200)
    before = ends(cluster, STATE)
    cluster.brokers[0].advance(60_000)
    assert ends(cluster, STATE) == before
    cluster.brokers[2].advance(60_000)
    cluster.settle()
    assert cluster.state(2) == "CompleteAbort"


def test_a_member_goes_on_at_the_new_coordinator_which_also_ends_its_session(cluster) -> None:
    member_id = stable_member(cluster, 1)
    cluster.change(*OFFSETS, leader=2)
    cluster.settle()
    assert heartbeat(cluster, 1, member_id) == "NOT_COORDINATOR"
    assert heartbeat(cluster, 2, member_id) == "NONE"
    before = ends(cluster, OFFSETS)
    cluster.brokers[1].advance(30_000)
    assert ends(cluster, OFFSETS) == before
    cluster.brokers[2].advance(30_000)
    assert heartbeat(cluster, 2, member_id) == "UNKNOWN_MEMBER_ID"


def test_committed_offsets_are_the_same_at_each_coordinator(cluster) -> None:
    for committed, leader in ((5, 1), (6, 2), (7, 1)):
        if leader != cluster.leader(OFFSETS):
            cluster.change(*OFFSETS, leader=leader)
            cluster.settle()
        place = {"partition_index": 0, "committed_offset": committed}
        topic = {"name": "orders", "partitions": [place]}
        message = request(ApiKey.OFFSET_COMMIT, group_id="g", topics=[topic])
        answer = cluster.ask(leader, message, 8)
        assert answer.topics[0].partitions[0].error_code == 0
        groups = cluster.brokers[leader].parts.groups
        fetched = groups.offset_fetch("g", {"orders": [0]}, require_stable=True)
        assert fetched.offsets[0].committed_offset == committed


def test_a_broker_that_follows_in_all_partitions_coordinates_nothing(cluster) -> None:
    assert cluster.producer().init() == "NONE"
    cluster.brokers[0].cause(cluster.brokers[0].parts.metadata._publisher.fence)
    assert cluster.state(0) == "NOT_COORDINATOR"


def test_who_waits_for_a_rebalance_joins_again_at_the_next_coordinator(cluster) -> None:
    member_id = stable_member(cluster, 1)
    message = join_request("")
    second = cluster.ask(1, message, 5).member_id
    message.member_id = second
    key = cluster.brokers[1].send(message, 5, connection_id=70)
    assert key not in cluster.brokers[1].asked.answers
    cluster.change(*OFFSETS, leader=2)
    assert cluster.brokers[1].asked.answers[key].error_code == ErrorCode.NOT_COORDINATOR
    cluster.settle()
    # The rebalance was not written down: the group is what it was before.
    described = cluster.brokers[2].parts.groups.describe_group("g")
    assert (described.state, [each.member_id for each in described.members]) == (
        "Stable", [member_id],
    )  # fmt: skip
    assert error_name(cluster.ask(2, message, 5).error_code) == "UNKNOWN_MEMBER_ID"
    message.member_id = ""
    assert error_name(cluster.ask(2, message, 5).error_code) == "MEMBER_ID_REQUIRED"
    assert heartbeat(cluster, 2, member_id) == "NONE"
