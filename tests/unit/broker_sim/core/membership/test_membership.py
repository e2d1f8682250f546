"""Brokers on a registry: who is up, who is the controller, and what all of them read."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, request
from support.core.core_network import REGISTRY
from support.core.registry_cluster import RegistryCluster

from broker_sim.core.controller.image import MetadataRecord, Topic
from broker_sim.core.controller.metadata_records import producer_ids_record, topic_record
from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration
from broker_sim.core.effects import ControlledShutdown, Stop
from broker_sim.core.log import STRAY_SUFFIX
from broker_sim.core.membership import controller, registry_link, registry_snapshots
from txnlog_kafka.wire.messages import ApiKey

SESSION_MS = 3_000
EXPIRED_MS = SESSION_MS + 1_000


@pytest.fixture
def cluster() -> RegistryCluster:
    made = RegistryCluster()
    made.run(1_000)
    return made


def decide(cluster: RegistryCluster, number: int, *records: MetadataRecord) -> list[bool]:
    """Submit a decision to append these records; return a list that receives its outcome."""
    told: list[bool] = []
    broker = cluster.brokers[number]
    broker.cause(
        lambda effects: broker.membership._decisions.submit(
            lambda _: list(records), lambda done, _: told.append(done), effects
        )
    )
    return told


def watch_serving(broker: BrokerOnDisk) -> list[bool]:
    """Return a list that receives, after each step from here on, True if the broker serves."""
    served: list[bool] = []
    step = broker.step

    def watched(item: Any) -> Any:
        found = step(item)
        served.append(broker.membership.is_serving)
        return found

    broker.step = watched
    return served


def next_producer_ids(cluster: RegistryCluster) -> list[int]:
    return [broker.parts.image.next_producer_id for broker in cluster.up]


def test_of_three_brokers_one_is_the_controller_and_all_serve_by_one_image(cluster):
    assert len(cluster.controllers) == 1
    cluster.check_healed()
    epochs = [broker.membership.broker_epoch for broker in cluster.up]
    assert len(set(epochs)) == 3
    assert {broker.membership.controller_id for broker in cluster.up} == set(cluster.controllers)
    (cluster_id,) = {broker.parts.image.cluster_id for broker in cluster.up}
    assert (
        f"cluster.id={cluster_id}"
        in cluster.brokers[2].disk.read("meta.properties", 0, 1000).decode()
    )


def test_a_broker_answers_nobody_before_it_has_read_the_metadata():
    cluster = RegistryCluster(1)
    broker = cluster.brokers[0]
    assert not broker.membership.is_serving
    broker.send(request(ApiKey.METADATA, topics=None), 12)
    assert "has not read" in broker.asked.closed[1]
    cluster.run(500)
    assert broker.membership.is_serving
    assert broker.ask(request(ApiKey.METADATA, topics=None), 12).brokers[0].node_id == 0


def test_when_the_controller_dies_another_broker_takes_over_and_unregisters_it(cluster):
    (old,) = cluster.controllers
    cluster.kill(old)
    cluster.run(EXPIRED_MS)
    (new,) = cluster.controllers
    assert new != old
    assert set(cluster.controller().parts.image.brokers) == set(cluster.others(old))
    assert decide(cluster, new, producer_ids_record(7_000)) == []
    cluster.run(200)
    assert next_producer_ids(cluster) == [7_000, 7_000]
    cluster.start(old)
    cluster.run(1_000)
    cluster.check_healed()


def test_a_broker_that_is_started_again_waits_until_its_old_registration_is_gone(cluster):
    before = cluster.brokers[2].membership.broker_epoch
    cluster.kill(2)
    cluster.start(2)
    cluster.run(SESSION_MS - 1_000)
    assert not cluster.brokers[2].membership.is_serving
    cluster.run(2_000)
    assert cluster.brokers[2].membership.broker_epoch > before
    cluster.check_healed()


def test_a_broker_that_was_started_again_leads_nothing_because_another_one_is_gone(
    cluster, monkeypatch
):
    """Its disk may be empty, and no controller has seen its start (cluster seed 30138)."""
    (number,) = cluster.controllers
    gone, again = (each for each in cluster.brokers if each != number)
    cluster.create_topic(number, "t", assignment=[gone, again])
    decider, image = cluster.controller().membership.controller, cluster.controller().parts.image
    registered = dict(image.brokers)
    del registered[gone]
    registered[again] = replace(registered[again], epoch=registered[again].epoch + 100)
    monkeypatch.setattr(controller, "registered_brokers", lambda _: registered)
    while records := decider._plan_brokers():
        for record in records:
            image.replay(record)
    (partition,) = image.topics["t"].partitions
    assert (partition.isr, partition.leader) == ((gone,), NO_LEADER)


def test_a_broker_that_stops_ends_its_session_and_the_next_process_need_not_wait(cluster):
    cluster.brokers[2].step(Stop())
    cluster.exchange()
    cluster.kill(2)
    cluster.start(2)
    cluster.run(500)
    cluster.check_healed()


def test_a_registry_that_is_started_again_has_the_sessions_and_nobody_loses_anything(cluster):
    controllers = cluster.controllers
    epochs = [broker.membership.broker_epoch for broker in cluster.up]
    cluster.stop_registry()
    cluster.run(2 * EXPIRED_MS)
    cluster.start_registry()
    cluster.run(1_000)
    assert cluster.controllers == controllers
    assert [broker.membership.broker_epoch for broker in cluster.up] == epochs
    assert decide(cluster, controllers[0], producer_ids_record(3_000)) == []
    cluster.run(200)
    assert next_producer_ids(cluster) == [3_000] * 3
    cluster.check_healed()


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_broker_whose_session_expired_serves_no_more_and_registers_again(cluster, is_controller):
    (controller,) = cluster.controllers
    cut_off = controller if is_controller else cluster.another()
    before = cluster.brokers[cut_off].membership.broker_epoch
    cluster.part(cut_off, REGISTRY)
    cluster.run(EXPIRED_MS)
    rest = [cluster.brokers[each] for each in cluster.others(cut_off)]
    assert all(cut_off not in broker.parts.image.brokers for broker in rest)
    assert sum(broker.is_controller for broker in rest) == 1
    cluster.cut.clear()
    served = watch_serving(cluster.brokers[cut_off])
    cluster.run(1_000)
    assert cluster.brokers[cut_off].membership.broker_epoch > before
    changes = [now for before, now in pairwise(served) if before != now]
    assert changes == [False, True]
    cluster.check_healed()


def test_a_controller_that_was_paused_through_an_election_changes_nothing(cluster):
    (old,) = cluster.controllers
    cluster.pause(old)
    cluster.run(EXPIRED_MS)
    rest = [cluster.brokers[each] for each in cluster.others(old)]
    (new,) = [broker for broker in rest if broker.is_controller]
    assert cluster.brokers[old].is_controller
    told = decide(cluster, old, producer_ids_record(5_000))
    assert decide(cluster, new.node_id, producer_ids_record(9_000)) == []
    cluster.run(200)
    assert next_producer_ids(cluster)[new.node_id] == 9_000
    cluster.resume(old)
    cluster.run(1_000)
    assert told == [False]
    assert next_producer_ids(cluster) == [9_000] * 3
    assert cluster.controllers == [new.node_id]
    cluster.check_healed()


def lose_answer_of_append(cluster: RegistryCluster, number: int) -> None:
    """The registry carries out the broker's append, and the broker is not told."""
    cluster.registry_requests(number)
    cluster.lose_between(number, REGISTRY)


@pytest.mark.parametrize("through_election", [False, True])
def test_an_append_whose_answer_was_lost_is_carried_out_once(cluster, through_election):
    (number,) = cluster.controllers
    told = decide(cluster, number, producer_ids_record(4_000))
    lose_answer_of_append(cluster, number)
    assert told == []
    if through_election:
        cluster.pause(number)
        cluster.run(EXPIRED_MS)
        cluster.resume(number)
    cluster.run(1_000)
    assert told == [True]
    assert next_producer_ids(cluster) == [4_000] * 3
    cluster.check_healed()


def test_decisions_are_made_one_after_another_each_by_the_image_of_the_one_before(cluster):
    (number,) = cluster.controllers
    broker, told = cluster.brokers[number], []

    def plan(_: Any) -> list[MetadataRecord]:
        return [producer_ids_record(broker.parts.image.next_producer_id + 1_000)]

    def submit_all(effects: Any) -> None:
        for each in range(3):
            broker.membership._decisions.submit(
                plan, lambda done, _, each=each: told.append((each, done)), effects
            )

    broker.cause(submit_all)
    assert told == []
    cluster.run(200)
    assert told == [(0, True), (1, True), (2, True)]
    assert next_producer_ids(cluster) == [3_000] * 3


def test_a_decision_at_a_broker_that_is_not_the_controller_is_refused_at_once(cluster):
    number = cluster.another()
    assert decide(cluster, number, producer_ids_record(1_000)) == [False]
    cluster.run(200)
    assert next_producer_ids(cluster) == [0] * 3


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_broker_in_a_controlled_shutdown_hands_over_what_it_leads_before_it_stops(
    cluster: RegistryCluster, is_controller: bool
) -> None:
    controller = cluster.controller().node_id
    number = controller if is_controller else cluster.another()
    broker = cluster.brokers[number]
    replicas = (number, *cluster.others(number))
    topic = Topic("t", uuid.UUID(int=9), 2, {}, 0, (
        PartitionRegistration.new(replicas, replicas),
        PartitionRegistration.new((number,), (number,)),
    ))  # fmt: skip
    decide(cluster, controller, topic_record(topic))
    cluster.run(1_000)
    epoch = broker.membership.broker_epoch
    assert not broker.broker.may_stop
    broker.step(ControlledShutdown())
    assert not broker.broker.may_stop
    cluster.run(2_000)
    assert broker.broker.may_stop
    image = cluster.brokers[cluster.others(number)[0]].parts.image
    shared, alone = image.topics["t"].partitions
    assert number not in (shared.leader, *shared.isr)
    assert alone.leader == NO_LEADER
    assert image.brokers[number].in_controlled_shutdown
    # One registration was enough.
    raised = broker.membership.broker_epoch
    assert raised > epoch
    cluster.run(2_000)
    assert broker.membership.broker_epoch == raised
    broker.step(Stop())
    cluster.exchange()
    cluster.kill(number)
    cluster.run(1_000)
    assert number not in image.brokers
    cluster.start(number)
    cluster.run(2_000)
    assert not image.brokers[number].in_controlled_shutdown
    assert cluster.held("t", 1).leader == number


def test_a_broker_that_is_not_registered_has_nothing_to_hand_over(
    cluster: RegistryCluster,
) -> None:
    cluster.stop_registry()
    cluster.kill(0)
    cluster.start(0)
    broker = cluster.brokers[0]
    broker.step(ControlledShutdown())
    assert broker.broker.may_stop


def test_a_topic_that_was_created_again_meanwhile_takes_the_place_of_the_old_one(cluster):
    cluster.create_topic(0, "orders", 1)
    held = cluster.held("orders")
    (controller,) = cluster.controllers
    away = next(n for n in held.replicas if n not in (held.leader, controller))
    cluster.write("old")
    cluster.run(500)
    assert cluster.brokers[away].parts.logs.get("orders", 0).log_end_offset == 1
    cluster.kill(away)
    cluster.delete_topic(controller, "orders")
    # Still registered, the broker that is down gets a replica of the new one, too.
    assert cluster.create_topic(controller, "orders", 1).error_code == 0
    cluster.start(away)
    cluster.run(EXPIRED_MS + 3_000)
    assert cluster.brokers[away].parts.logs.get("orders", 0).log_end_offset == 0
    (stray,) = (n for n in cluster.brokers[away].disk.list("") if n.endswith(STRAY_SUFFIX))
    log = f"{stray}/00000000000000000000.log"
    assert b"old" in cluster.brokers[away].disk.read(log, 0, 1000)
    cluster.check_healed()


def test_a_topic_that_is_created_while_a_broker_is_down_has_a_replica_there_when_it_comes(cluster):
    (controller,) = cluster.controllers
    away = cluster.another()
    cluster.kill(away)
    cluster.run(EXPIRED_MS)
    listed = cluster.ask(
        controller, request(ApiKey.DESCRIBE_CLUSTER, include_fenced_brokers=True), 2
    ).brokers
    assert [each.broker_id for each in listed if each.is_fenced] == [away]
    listed = cluster.ask(controller, request(ApiKey.DESCRIBE_CLUSTER), 2).brokers
    assert away not in [each.broker_id for each in listed]
    assert cluster.create_topic(controller, "orders", 3).error_code == 0
    for number in range(3):
        held = cluster.held("orders", number)
        assert set(held.replicas) == set(cluster.brokers)
        assert set(held.isr) == set(cluster.brokers) - {away}
        assert held.leader != away
    cluster.start(away)
    cluster.run(EXPIRED_MS + 3_000)
    cluster.check_healed()


# --------------------------------------------------------------------------- snapshots


def log_start(cluster: RegistryCluster) -> int:
    return cluster.registry.read(0).log_start_offset


@pytest.fixture
def small() -> RegistryCluster:
    """A cluster whose controller makes a snapshot after every 3000 bytes of records."""
    made = RegistryCluster(metadata_log_max_record_bytes_between_snapshots=3_000)
    made.run(1_000)
    return made


def test_a_snapshot_is_made_when_the_log_has_grown_and_a_new_process_begins_with_it(small):
    for number in range(6):
        assert small.create_topic(0, f"topic{number}").error_code == 0
    start = log_start(small)
    assert start > 0
    away = small.another()
    small.kill(away)
    small.start(away)
    small.run(EXPIRED_MS + 1_000)
    assert len(small.brokers[away].traced("metadata-restored")) == 1
    small.check_healed()


def test_a_snapshot_is_made_after_a_time_when_anything_was_appended():
    cluster = RegistryCluster(metadata_log_max_snapshot_interval_ms=10_000)
    cluster.run(11_000)
    assert log_start(cluster) > 0
    first = log_start(cluster)
    cluster.run(11_000)
    assert log_start(cluster) == first
    decide(cluster, cluster.controllers[0], producer_ids_record(1_000))
    cluster.run(11_000)
    assert log_start(cluster) == first + 1


def test_a_broker_that_was_paused_below_the_logs_start_catches_up_by_the_snapshot(small):
    assert small.create_topic(0, "kept").error_code == 0
    assert small.create_topic(0, "gone").error_code == 0
    away = small.another()
    before = small.brokers[away].parts.metadata.next_offset
    small.pause(away)
    small.run(EXPIRED_MS)
    (controller,) = small.controllers
    small.delete_topic(controller, "gone")
    for number in range(6):
        made = small.create_topic(controller, f"new{number}", replication_factor=2)
        assert made.error_code == 0
    small.run(500)
    assert log_start(small) > before
    small.resume(away)
    small.run(EXPIRED_MS + 2_000)
    broker = small.brokers[away]
    assert broker.traced("metadata-restored")
    assert broker.parts.logs.get("gone", 0) is None
    assert broker.parts.logs.get("kept", 0) is not None
    small.check_healed()


def test_whether_an_append_was_carried_out_is_known_when_a_snapshot_has_replaced_it(small):
    (number,) = small.controllers
    told = decide(small, number, producer_ids_record(4_000))
    lose_answer_of_append(small, number)
    small.pause(number)
    small.run(EXPIRED_MS)
    (new,) = (n for n in small.others(number) if small.brokers[n].is_controller)
    for each in range(6):
        assert small.create_topic(new, f"topic{each}", replication_factor=2).error_code == 0
    small.run(200)
    assert log_start(small) > small.brokers[number].parts.metadata.next_offset
    small.resume(number)
    small.run(EXPIRED_MS)
    assert told == [True]
    small.check_healed()


def test_a_snapshot_of_several_parts_whose_writer_loses_its_connection_is_made_again(
    small, monkeypatch
):
    monkeypatch.setattr(registry_snapshots, "PART_BYTES", 500)
    monkeypatch.setattr(registry_link, "READ_BYTES_MAX", 700)
    (number,) = small.controllers
    for each in range(6):
        assert small.create_topic(number, f"topic{each}").error_code == 0
    small.brokers[number].parts.metadata.bytes_since_snapshot = 3_000
    start = log_start(small)
    decide(small, number, producer_ids_record(1_000))
    for _ in range(2):  # the append is answered, then the first part of the snapshot
        small.registry_requests(number)
        for asked in small.of(number):
            small.answer(asked)
    small.lose_between(number, REGISTRY)
    assert len(small.brokers[number].traced("metadata-snapshot-failed")) == 1
    assert log_start(small) == start
    small.run(500)
    decide(small, number, producer_ids_record(2_000))
    small.run(500)
    assert log_start(small) > start
    away = small.another()
    small.kill(away)
    small.start(away)
    small.run(EXPIRED_MS + 1_000)
    assert small.brokers[away].traced("metadata-restored")
    small.check_healed()
