"""Requests that the controller carries out, wherever they arrive; what brokers ask of it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.core.broker_build import (
    BrokerOnDisk,
    fetch_request,
    request,
)
from support.core.message_build import fill
from support.core.registry_cluster import RegistryCluster

from broker_sim.apis import BROKER_APIS, BrokerApiKey, frames
from broker_sim.core.controller.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker_sim.core.effects import Request
from broker_sim.core.handlers._forwarding import FORWARDED, refusal
from broker_sim.core.security.principals import ANONYMOUS
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import CLUSTER_APIS, KNOWN_APIS, ApiKey

K, E = ApiKey, ErrorCode
ADMIN, ALICE = "User:admin", "User:alice"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def started(count: int = 3, **config: Any) -> RegistryCluster:
    made = RegistryCluster(count, **config)
    made.run(1_000)
    return made


@pytest.fixture
def cluster() -> RegistryCluster:
    return started()


def metadata(cluster: RegistryCluster, number: int, *names: str) -> Any:
    message = request(K.METADATA, topics=[{"name": name} for name in names])
    return cluster.ask(number, message, 12)


def ask_broker(cluster: RegistryCluster, number: int, message: Any, key: BrokerApiKey) -> Any:
    """Send a request as another broker, or as a client in its place; return the answer."""
    broker = cluster.brokers[number]
    asked = Request(77, 1, key, BROKER_APIS[key].version, "x", "127.0.0.1", message,
                    principal=broker.principal)  # fmt: skip
    broker.asked.answers.pop((77, 1), None)
    broker.step(asked)
    cluster.run(200)
    return broker.asked.answers[77, 1]


# ------------------------------------------------------------------ of clients


def test_a_topic_that_is_created_by_any_broker_is_in_all_images_when_it_is_answered(cluster):
    for number in cluster.brokers:
        created = cluster.create_topic(number, f"orders{number}")
        assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 3, 3)
        controller = cluster.controller()
        assert f"orders{number}" in controller.parts.image.topics
    cluster.run(200)
    cluster.check_healed()
    answer = metadata(cluster, cluster.another(), "orders0")
    assert answer.controller_id == cluster.controllers[0]
    assert {b.node_id for b in answer.brokers} == {0, 1, 2}
    assert sorted(answer.topics[0].partitions[0].isr_nodes) == [0, 1, 2]


def test_of_three_that_create_one_topic_at_three_brokers_two_are_told_that_it_exists(cluster):
    topic = {"name": "orders", "num_partitions": 1, "replication_factor": -1}
    message = request(K.CREATE_TOPICS, timeout_ms=1000, topics=[topic])
    keys = {number: cluster.brokers[number].send(message, 7) for number in cluster.brokers}
    cluster.run(300)
    answers = [cluster.brokers[n].asked.answers[key].topics[0] for n, key in keys.items()]
    codes = sorted(each.error_code for each in answers)
    assert codes == [0, E.TOPIC_ALREADY_EXISTS, E.TOPIC_ALREADY_EXISTS]
    cluster.check_healed()


def test_the_controller_decides_as_who_has_asked_another_broker():
    cluster = started(authorizer_class_name=AUTHORIZER, super_users=f"{ADMIN};{ANONYMOUS}")
    number = cluster.another()
    cluster.brokers[number].principal = ALICE
    assert cluster.create_topic(number, "a").error_code == E.TOPIC_AUTHORIZATION_FAILED
    cluster.brokers[number].principal = ADMIN
    assert cluster.create_topic(number, "a").error_code == 0


def test_what_a_broker_needs_itself_it_may_do_at_itself_and_at_any_controller():
    """Other brokers see User:broker, a super user; every other principal may do nothing."""
    cluster = RegistryCluster(3, authorizer_class_name=AUTHORIZER,
                              super_users=f"{ADMIN};User:broker")  # fmt: skip
    cluster.broker_principal = "User:broker"
    cluster.run(1_000)
    for number, broker in cluster.brokers.items():
        broker.principal = ADMIN
        metadata(cluster, number, f"auto{number}")
        cluster.run(300)
        assert f"auto{number}" in cluster.controller().parts.image.topics
    (number,) = cluster.controllers
    for each in (number, cluster.another()):
        cluster.kill(each)
        cluster.run(20_000)
        cluster.start(each)
        cluster.run(5_000)
        cluster.check_healed()


def enveloped(key: ApiKey, principal: str) -> Any:
    frame = framing.encode_request(request(key, topics=[]), 6, 5, "c")
    return BROKER_APIS[BrokerApiKey.ENVELOPE].request(
        request_data=frame[4:],
        request_principal=principal.encode(),
        client_host_address=b"10.0.0.1",
    )


def test_nobody_but_a_broker_may_say_for_whom_it_asks():
    cluster = started(authorizer_class_name=AUTHORIZER, super_users=f"{ADMIN};{ANONYMOUS}")
    (number,) = cluster.controllers
    message = enveloped(K.DELETE_TOPICS, ADMIN)
    assert ask_broker(cluster, number, message, BrokerApiKey.ENVELOPE).error_code == 0
    cluster.brokers[number].principal = ALICE
    refused = ask_broker(cluster, number, message, BrokerApiKey.ENVELOPE)
    assert (refused.error_code, refused.response_data) == (E.CLUSTER_AUTHORIZATION_FAILED, None)


@pytest.mark.parametrize("key", BrokerApiKey)
def test_what_brokers_ask_is_for_who_may_act_for_the_cluster(key: BrokerApiKey):
    cluster = started(authorizer_class_name=AUTHORIZER, super_users=f"{ADMIN};{ANONYMOUS}")
    broker = cluster.controller()
    epoch = broker.parts.image.brokers[broker.node_id].epoch
    message = enveloped(K.DELETE_TOPICS, ADMIN)
    if key is not BrokerApiKey.ENVELOPE:
        own = BROKER_APIS[key].request
        message = own(broker_id=broker.node_id, broker_epoch=epoch)
    broker.principal = ALICE
    refused = ask_broker(cluster, broker.node_id, message, key)
    assert refused.error_code == E.CLUSTER_AUTHORIZATION_FAILED
    broker.principal = ADMIN
    allowed = {
        "resource_type": int(ResourceType.CLUSTER), "resource_name": CLUSTER_NAME,
        "resource_pattern_type": 3, "principal": ALICE, "host": "*",
        "operation": int(AclOperation.CLUSTER_ACTION), "permission_type": 3,
    }  # fmt: skip
    acl = request(K.CREATE_ACLS, creations=[allowed])
    assert cluster.ask(broker.node_id, acl, 3).results[0].error_code == 0
    broker.principal = ALICE
    assert ask_broker(cluster, broker.node_id, message, key).error_code == 0


def test_a_fetch_as_a_replica_is_for_who_may_act_for_the_cluster():
    cluster = started(authorizer_class_name=AUTHORIZER, super_users=f"{ADMIN};{ANONYMOUS}")
    cluster.create_topic(0, "orders", 1)
    leader = cluster.held("orders").leader
    message = fetch_request("orders", max_wait_ms=0, replica_id=(leader + 1) % 3)
    for principal, error in ((ALICE, E.TOPIC_AUTHORIZATION_FAILED), (ANONYMOUS, E.NONE)):
        cluster.brokers[leader].principal = principal
        answer = cluster.ask(leader, message, 12)
        assert answer.responses[0].partitions[0].error_code == error


def test_an_envelope_carries_nothing_but_what_the_controller_carries_out(cluster):
    (number,) = cluster.controllers
    message = enveloped(K.METADATA, ADMIN)
    answer = ask_broker(cluster, number, message, BrokerApiKey.ENVELOPE)
    assert answer.error_code == E.INVALID_REQUEST
    message.request_data = b"\x00\x13"
    answer = ask_broker(cluster, number, message, BrokerApiKey.ENVELOPE)
    assert answer.error_code == E.INVALID_REQUEST


def test_a_broker_that_is_not_the_controller_refuses_what_is_the_controllers(cluster):
    number = cluster.another()
    answer = ask_broker(cluster, number, enveloped(K.DELETE_TOPICS, ADMIN), BrokerApiKey.ENVELOPE)
    assert answer.error_code == E.NOT_CONTROLLER
    for key in (BrokerApiKey.ALTER_PARTITION, BrokerApiKey.ALLOCATE_PRODUCER_IDS):
        message = BROKER_APIS[key].request(broker_id=0, broker_epoch=1)
        assert ask_broker(cluster, number, message, key).error_code == E.NOT_CONTROLLER


def test_a_request_waits_through_an_election_and_is_then_carried_out(cluster):
    cluster.kill(cluster.controllers[0])
    topic = {"name": "orders", "num_partitions": 1, "replication_factor": 2}
    message = request(K.CREATE_TOPICS, timeout_ms=20_000, topics=[topic])
    answer = cluster.ask(cluster.up[0].node_id, message, 7, within_ms=10_000)
    assert answer.topics[0].error_code == 0
    assert "orders" in cluster.controller().parts.image.topics


def test_without_a_controller_a_request_is_answered_after_its_time(cluster):
    cluster.brokers[0].membership.requests._controller_id = lambda: -1
    created = cluster.create_topic(0, "orders")
    assert created.error_code == E.REQUEST_TIMED_OUT


@pytest.mark.parametrize("key", FORWARDED, ids=lambda key: key.name)
def test_a_refusal_as_a_whole_can_be_read_in_every_version(key):
    api = KNOWN_APIS[key]
    for version in range(api.version_min, api.version_max + 1):
        refused = 0
        for seed in range(20):
            message = fill(api.request, version, random.Random(seed))
            asked = Request(1, 1, key, version, None, "127.0.0.1", message)
            answer = refusal(asked, E.REQUEST_TIMED_OUT)
            frame = frames.encode_response(key, version, 1, answer)
            read = framing.decode_response(api, version, frame[4:])
            refused += f"error_code={int(E.REQUEST_TIMED_OUT)}" in str(read)
        assert refused


# ------------------------------------------------------------------ what comes to be later


def test_topics_that_somebody_needs_are_not_there_at_once_and_then_they_are(cluster):
    number = cluster.another()
    answer = metadata(cluster, number, "orders")
    assert answer.topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    cluster.run(300)
    assert metadata(cluster, number, "orders").topics[0].error_code == 0
    for key_type in (0, 1):
        message = request(K.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["x"])
        first = cluster.ask(number, message, 4).coordinators[0]
        assert first.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert first.error_message.endswith(" is being created")
        cluster.run(300)
        assert cluster.ask(number, message, 4).coordinators[0].error_code == 0
    held = cluster.controller().parts.image.topics["__transaction_state"]
    assert held.configs["min.insync.replicas"] == 2
    assert all(len(each.replicas) == 3 for each in held.partitions)


def init_producer_id(cluster: RegistryCluster, number: int) -> int:
    message = request(K.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1000)
    for _ in range(20):
        answer = cluster.ask(number, message, 4)
        if answer.error_code == 0:
            return int(answer.producer_id)
        assert answer.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        cluster.run(100)
    raise AssertionError("no producer id")


def test_producer_ids_are_unique_over_brokers_elections_and_starts(cluster):
    given = [init_producer_id(cluster, number) for number in (0, 1, 2, 0, 1, 2)]
    (old,) = cluster.controllers
    cluster.kill(old)
    cluster.run(5_000)
    given += [init_producer_id(cluster, broker.node_id) for broker in cluster.up]
    cluster.start(old)
    cluster.run(1_000)
    given += [init_producer_id(cluster, number) for number in (0, 1, 2)]
    assert len(set(given)) == len(given)


# ------------------------------------------------------------------ partitions


def test_an_isr_shrinks_and_grows_by_way_of_the_controller(cluster):
    cluster.create_topic(0, "orders", 1)
    leader = cluster.held("orders").leader
    away = cluster.another(leader)
    cluster.part(leader, away)
    assert cluster.write("a", acks=1) is E.NONE
    cluster.run(6_000)
    assert away not in cluster.held("orders").isr
    assert cluster.write("b") is E.NONE
    cluster.cut.clear()
    cluster.run(6_000)
    cluster.check_healed()


def lagging(cluster: RegistryCluster) -> tuple[int, int]:
    """A partition whose leader is not the controller, and a follower that gets nothing any more;
    leader and controller."""
    (controller,) = cluster.controllers
    for number in range(6):
        name = f"orders{number}"
        cluster.create_topic(0, name, 1, replication_factor=3)
        if cluster.held(name).leader != controller:
            break
    leader = cluster.held(name).leader
    cluster.part(leader, cluster.another(leader))
    assert cluster.write("a", topic=name, acks=1) is E.NONE
    return leader, controller


def test_a_proposal_that_the_controller_has_not_decided_is_made_again_after_a_moment(cluster):
    leader, controller = lagging(cluster)
    cluster.part(leader, controller)
    while not cluster.brokers[leader].traced("isr-not-decided"):
        cluster.run(50)
    cluster.run(200)
    assert len(cluster.brokers[leader].traced("isr-not-decided")) > 1
    cluster.cut.discard(frozenset((leader, controller)))
    cluster.run(100)
    held = [p for t in cluster.controller().parts.image.topics.values() for p in t.partitions]
    assert any(len(each.isr) < 3 for each in held)


def test_a_controller_that_stands_still_holds_up_no_proposal_when_another_one_is_elected(cluster):
    leader, controller = lagging(cluster)
    cluster.pause(controller)
    while not cluster.brokers[leader].traced("isr-proposed"):
        cluster.run(50)
    cluster.run(4_500)
    (new,) = [n for n in cluster.controllers if n != controller]
    topics = cluster.brokers[new].parts.image.topics
    partitions = [topic.partitions[0] for topic in topics.values()]
    assert any((p.leader, p.isr) == (leader, (leader,)) for p in partitions), partitions


def test_what_is_asked_of_a_controller_that_stays_silent_is_given_up_after_30_seconds(cluster):
    (controller,) = cluster.controllers
    asker = cluster.brokers[cluster.another()]
    told: list[Any] = []
    own = BROKER_APIS[BrokerApiKey.ALLOCATE_PRODUCER_IDS]
    asker.cause(
        lambda effects: asker.membership.requests.ask(
            own.request(broker_id=9, broker_epoch=9),
            (own.key, own.version),
            lambda answer, _: told.append(answer),
            effects,
        )
    )
    (asked,) = (e for e in cluster.sent if e.send.peer == controller
                and type(e.send.message).__name__.startswith("Allocate"))  # fmt: skip
    cluster.sent.remove(asked)  # neither answered nor lost
    cluster.run(29_000)
    assert told == []
    cluster.run(2_000)
    assert told == [E.NOT_CONTROLLER]


def test_a_replica_does_not_come_into_an_isr_by_what_it_had_before_it_was_started_again(cluster):
    cluster.create_topic(0, "orders", 1)
    held = cluster.held("orders")
    image = cluster.controller().parts.image
    own = BROKER_APIS[BrokerApiKey.ALTER_PARTITION].request
    part = own.TopicData.PartitionData
    follower = next(n for n in held.isr if n != held.leader)
    for epoch, error in ((image.brokers[follower].epoch - 1, E.INELIGIBLE_REPLICA),
                         (image.brokers[follower].epoch, E.NONE)):  # fmt: skip
        isr = [part.BrokerState(broker_id=held.leader, broker_epoch=-1),
               part.BrokerState(broker_id=follower, broker_epoch=epoch)]  # fmt: skip
        changed = part(partition_index=0, leader_epoch=held.leader_epoch,
                       new_isr_with_epochs=isr, partition_epoch=held.partition_epoch)  # fmt: skip
        message = own(
            broker_id=held.leader,
            broker_epoch=image.brokers[held.leader].epoch,
            topics=[own.TopicData(topic_id=image.topics["orders"].topic_id, partitions=[changed])],
        )
        answer = ask_broker(cluster, cluster.controllers[0], message, BrokerApiKey.ALTER_PARTITION)
        assert answer.topics[0].partitions[0].error_code == error


def test_the_leader_names_the_epochs_by_which_its_followers_have_fetched(cluster):
    cluster.create_topic(0, "orders", 1)
    cluster.run(1_000)
    held, image = cluster.held("orders"), cluster.controller().parts.image
    parts = cluster.brokers[held.leader].parts
    leader = parts.replicas.partition(parts.logs.get("orders", 0)).leader
    epochs = dict(zip(held.isr, leader.broker_epochs(held.isr), strict=True))
    assert epochs == {
        each: -1 if each == held.leader else image.brokers[each].epoch for each in held.isr
    }


def test_replicas_are_reassigned_by_way_of_any_broker_until_the_new_ones_are_in_sync():
    cluster = started(4)
    cluster.pause(3)
    number = cluster.another()
    created = cluster.create_topic(number, "orders", assignment=[0, 1, 2])
    assert (created.error_code, created.replication_factor) == (0, 3)
    answer = cluster.reassign(number, "orders", [3, 1])
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
    listed = cluster.ask(number, request(K.LIST_PARTITION_REASSIGNMENTS, topics=None), 0)
    assert listed.topics[0].partitions[0].adding_replicas == [3]
    cluster.resume(3)
    cluster.run(3_000)
    listed = cluster.ask(number, request(K.LIST_PARTITION_REASSIGNMENTS, topics=None), 0)
    assert (listed.error_code, listed.topics) == (0, [])
    held = cluster.held("orders")
    assert (held.replicas, set(held.isr)) == ((3, 1), {3, 1})
    assert [b.parts.logs.get("orders", 0) is not None for b in cluster.up] == [0, 1, 0, 1]
    cluster.check_healed()


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"assignment": [0, 0]}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": [0, 9]}, E.INVALID_REPLICA_ASSIGNMENT),
        ({"replication_factor": 4}, E.INVALID_REPLICATION_FACTOR),
    ],
)
def test_replicas_on_brokers_that_are_not_there_are_refused(cluster, asked, error):
    assert cluster.create_topic(1, "orders", **asked).error_code == error


def test_a_topic_grows_by_partitions_that_have_as_many_replicas(cluster):
    cluster.create_topic(1, "orders", 1, replication_factor=2)
    grown = {"name": "orders", "count": 3, "assignments": None}
    message = request(K.CREATE_PARTITIONS, timeout_ms=1000, topics=[grown])
    assert cluster.ask(2, message, 3).results[0].error_code == 0
    cluster.run(300)
    partitions = cluster.controller().parts.image.topics["orders"].partitions
    assert [len(each.replicas) for each in partitions] == [2, 2, 2]
    cluster.check_healed()


def test_preferred_leaders_are_elected_on_demand_and_when_it_is_time(cluster):
    cluster.create_topic(0, "orders", 3)
    dead = cluster.another()
    cluster.kill(dead)
    cluster.run(5_000)
    cluster.start(dead)
    cluster.run(3_000)
    leaders = [cluster.held("orders", n).leader for n in range(3)]
    assert dead not in leaders
    message = request(K.ELECT_LEADERS, election_type=0, topic_partitions=None, timeout_ms=1000)
    answer = cluster.ask(dead, message, 2)
    (found,) = answer.replica_election_results
    assert [each.error_code for each in found.partition_result] == [0]
    assert cluster.held("orders", found.partition_result[0].partition_id).leader == dead
    cluster.kill(dead)
    cluster.run(5_000)
    cluster.start(dead)
    cluster.run(301_000)
    leaders = [cluster.held("orders", n).leader for n in range(3)]
    assert sorted(leaders) == [0, 1, 2]


# ------------------------------------------------------------------ where a broker is alone


def test_only_a_broker_of_a_cluster_names_and_answers_what_is_of_clusters(cluster):
    message = request(K.API_VERSIONS, client_software_name="a", client_software_version="1")
    named = {each.api_key for each in cluster.ask(0, message, 3).api_keys}
    assert named >= set(CLUSTER_APIS)
    assert not named & set(BROKER_APIS)
    alone = BrokerOnDisk()
    assert not {each.api_key for each in alone.ask(message, 3).api_keys} & set(CLUSTER_APIS)
    for connection, key in enumerate(CLUSTER_APIS):
        alone.send(request(key), 0, connection_id=connection)
        assert "is not supported" in alone.asked.closed[connection]
    for key, own in BROKER_APIS.items():
        alone.step(Request(90, key, own.key, own.version, None, "", own.request()))
        assert "is not supported" in alone.asked.closed.pop(90)
