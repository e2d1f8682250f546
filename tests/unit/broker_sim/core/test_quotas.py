"""Quotas in the core: what is counted, who shares a rate, which answers tell of a throttle."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.broker_build import BrokerOnDisk, fetch_request, produce_request, request
from support.core.registry_cluster import RegistryCluster

from broker_sim.core.config import INT32_MAX
from broker_sim.core.effects import Disconnected, NoResponse, RequestTime, Respond
from broker_sim.core.handlers import HANDLERS
from broker_sim.core.quotas import LOGINS, RATES_MIN
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

PRODUCED, CONSUMED, PERCENT = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
TIME = request(ApiKey.METADATA, topics=[])
SECOND_NS = 1_000_000_000


def alteration(
    names: dict[str, str | None], validate_only: bool = False, /, **quotas: float | None
) -> Any:
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]
    ops = [
        {"key": key, "value": value or 0.0, "remove": value is None}
        for key, value in quotas.items()
    ]
    entries = [{"entity": entity, "ops": ops}]
    return request(ApiKey.ALTER_CLIENT_QUOTAS, entries=entries, validate_only=validate_only)


def alter(broker: BrokerOnDisk, names: dict[str, str | None], **quotas: float | None) -> int:
    answer = broker.ask(alteration(names, **quotas), 1, connection_id=99)
    return int(answer.entries[0].error_code)


@pytest.fixture
def broker() -> BrokerOnDisk:
    made = BrokerOnDisk()
    made.create_topic("orders")
    return made


def produce(broker: BrokerOnDisk, size: int = 20_000, acks: int = 1, **who: Any) -> int:
    """Produce a batch: the time for which the host does not hear the connection, in ms."""
    records = encode_batch([Record(None, b"x" * size, 1)])
    broker.send(produce_request({("orders", 0): records}, acks), 9, **who)
    (answer,) = broker.steps[-1].responses
    assert isinstance(answer, Respond | NoResponse)
    if isinstance(answer, Respond):
        assert answer.message.throttle_time_ms == answer.throttle_ms
    return answer.throttle_ms


def fetch(broker: BrokerOnDisk, **how: Any) -> tuple[int, int]:
    """Fetch at once: the bytes of records, and the throttle time in ms."""
    answer = broker.ask(fetch_request("orders", max_wait_ms=0, **how), 12)
    sizes = (len(p.records or b"") for topic in answer.responses for p in topic.partitions)
    return sum(sizes), answer.throttle_time_ms


def test_without_a_quota_nobody_is_noted_or_throttled(broker):
    assert produce(broker, 1_000_000) == 0
    assert not broker.core.times_requests
    assert broker.parts.quotas._asked == broker.parts.quotas._rates == {}


def test_a_producer_waits_until_its_rate_is_the_quota(broker):
    assert alter(broker, {"client-id": "test"}, producer_byte_rate=1_000.0) == 0
    throttle_ms = produce(broker)
    # Twenty seconds of bytes, of which ten are there already.
    assert 10_000 <= throttle_ms < 10_200
    assert produce(broker, 0) > throttle_ms
    broker.advance(30_000)
    assert produce(broker, 0) == 0


def test_without_acks_the_connection_waits_all_the_same(broker):
    assert alter(broker, {"client-id": "test"}, producer_byte_rate=1_000.0) == 0
    assert produce(broker, acks=0) >= 10_000


def test_any_throttle_time_fits_in_its_field(broker):
    assert alter(broker, {"client-id": "test"}, producer_byte_rate=1.0) == 0
    for _ in range(4):
        throttle_ms = produce(broker, 900_000)
    assert throttle_ms == INT32_MAX


def test_users_share_a_rate_or_have_one_for_each_client_id(broker):
    def throttled(user: str, client_id: str) -> bool:
        broker.client_id = client_id
        return produce(broker, 6_000, principal=f"User:{user}") > 0

    assert alter(broker, {"user": "a"}, producer_byte_rate=1_000.0) == 0
    assert [throttled("a", "x"), throttled("a", "y"), throttled("b", "x")] == [False, True, False]
    assert alter(broker, {"user": None, "client-id": None}, producer_byte_rate=1_000.0) == 0
    assert [throttled("b", "x"), throttled("b", "y"), throttled("b", "x")] == [False, False, True]
    assert alter(broker, {"user": None, "client-id": None}, producer_byte_rate=None) == 0
    assert not throttled("b", "x")


def test_a_consumer_over_its_quota_gets_nothing_and_keeps_its_session(broker):
    for _ in range(3):
        produce(broker, 6_000)
    assert alter(broker, {"client-id": "test"}, consumer_byte_rate=1_000.0) == 0
    first = broker.ask(fetch_request("orders", max_wait_ms=0, max_bytes=6_000, session_epoch=0), 12)
    session = {"session_id": first.session_id, "session_epoch": 1}
    assert first.responses[0].partitions[0].records
    size, throttle_ms = fetch(broker, offset=1, max_bytes=6_000, **session)
    assert (size, throttle_ms > 0) == (0, True)
    assert fetch(broker, offset=1, max_bytes=6_000) == (0, throttle_ms)  # nothing more counted
    broker.advance(12_000)
    nothing_new = request(ApiKey.FETCH, session_id=first.session_id, session_epoch=2,
                          max_wait_ms=0, min_bytes=1, max_bytes=6_000, isolation_level=0,
                          topics=[])  # fmt: skip
    answer = broker.ask(nothing_new, 12)
    (partition,) = answer.responses[0].partitions
    assert (answer.throttle_time_ms, len(partition.records) > 6_000) == (0, True)


def test_a_consumer_gets_no_more_at_once_than_its_windows_hold(broker):
    for _ in range(10):
        produce(broker, 1_000)
    assert alter(broker, {"client-id": "test"}, consumer_byte_rate=300.0) == 0
    size, throttle_ms = fetch(broker, max_bytes=1 << 20, min_bytes=1 << 20)
    assert (2_000 < size < 3_000, throttle_ms) == (True, 0)


def test_a_follower_is_never_throttled():
    cluster = RegistryCluster(3)
    cluster.run(1_000)
    cluster.create_topic(0, "orders", 1)
    answer = cluster.ask(1, alteration({"client-id": None}, consumer_byte_rate=1.0), 1)
    assert [each.error_code for each in answer.entries] == [0]
    leader = cluster.brokers[cluster.held("orders").leader]
    for _ in range(3):
        records = encode_batch([Record(None, b"x" * 20_000, 1)])
        key = leader.send(produce_request({("orders", 0): records}), 9)
        cluster.run(300)
        assert leader.asked.answers[key].responses[0].partition_responses[0].error_code == 0
    assert len(cluster.held("orders").isr) == 3


def test_a_quota_of_a_cluster_is_in_all_images_and_survives_a_snapshot():
    cluster = RegistryCluster(3, metadata_log_max_record_bytes_between_snapshots="1")
    cluster.run(1_000)
    names = {"user": "u", "client-id": None}
    cluster.ask(cluster.another(), alteration(names, producer_byte_rate=5.0), 1)
    cluster.run(1_000)
    number = cluster.another()
    cluster.brokers[number].kill()
    cluster.run(3_000)
    for each in cluster.brokers.values():
        assert each.parts.image.client_quotas == {
            (("client-id", None), ("user", "u")): {PRODUCED: 5.0}
        }


def spend(broker: BrokerOnDisk, nanoseconds: int, connection_id: int = 1) -> None:
    assert broker.core.times_requests
    broker.step(RequestTime(connection_id, nanoseconds))


def test_time_counts_for_the_next_answer_and_is_waited_for_a_window_at_most(broker):
    assert alter(broker, {"user": "ANONYMOUS"}, request_percentage=1.0) == 0
    assert broker.ask(TIME, 9).throttle_time_ms == 0
    spend(broker, SECOND_NS // 10)  # one percent of ten seconds
    assert broker.ask(TIME, 9).throttle_time_ms == 0
    spend(broker, SECOND_NS // 1000)
    assert broker.ask(TIME, 9).throttle_time_ms == 100
    assert fetch(broker) == (0, 100)
    assert produce(broker) == 100
    assert produce(broker, acks=0) == 0
    spend(broker, SECOND_NS)
    assert broker.ask(TIME, 9).throttle_time_ms == 1_000
    broker.client_id = "another"
    assert broker.ask(TIME, 9).throttle_time_ms == 1_000  # the user's


def test_answers_that_come_later_are_throttled_too(broker):
    assert alter(broker, {"client-id": "test"}, request_percentage=1.0) == 0
    key = broker.send(fetch_request("orders", max_wait_ms=500), 12)
    spend(broker, SECOND_NS)
    broker.advance(500)
    assert broker.asked.answers[key].throttle_time_ms == 1_000


def test_every_api_of_clients_can_tell_of_a_throttle():
    for key in HANDLERS:
        has_field = hasattr(APIS[key].response(), "throttle_time_ms")
        assert has_field is (key not in {*LOGINS, ApiKey.WRITE_TXN_MARKERS}), key


def test_what_brokers_ask_counts_for_nobody(broker):
    assert alter(broker, {"user": None}, request_percentage=0.001) == 0
    for message, version in (
        (fetch_request("orders", max_wait_ms=0, replica_id=1), 12),
        (request(ApiKey.WRITE_TXN_MARKERS, markers=[]), 1),
        (request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN"), 1),
    ):
        broker.send(message, version)
        spend(broker, SECOND_NS)
    assert broker.ask(TIME, 9).throttle_time_ms == 0


def test_connections_and_clients_that_have_gone_leave_nothing(broker):
    assert alter(broker, {"client-id": None}, producer_byte_rate=1_000.0) == 0
    quotas = broker.parts.quotas
    for number in range(3 * RATES_MIN):
        broker.client_id = f"client-{number}"
        produce(broker, 10, connection_id=number + 100)
        broker.step(Disconnected(number + 100))
        broker.pass_time(100)
    assert len(quotas._rates) <= RATES_MIN
    assert quotas._asked == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_refused(broker, value):
    refused = ErrorCode.INVALID_REQUEST
    assert alter(broker, {"user": "u"}, request_percentage=value) == refused


def test_a_host_name_is_no_address(broker):
    refused = ErrorCode.INVALID_REQUEST
    assert alter(broker, {"ip": "localhost"}, connection_creation_rate=1.0) == refused


def test_an_entity_that_is_named_twice_is_not_changed(broker):
    message = alteration({"user": "u"}, producer_byte_rate=5.0)
    message.entries += alteration({"user": "u"}, producer_byte_rate=6.0).entries
    (entry,) = broker.ask(message, 1).entries
    assert entry.error_code == ErrorCode.INVALID_REQUEST
    assert broker.parts.image.client_quotas == {}


def test_without_free_space_quotas_are_removed_and_not_set(broker):
    assert alter(broker, {"user": "u"}, producer_byte_rate=5.0) == 0
    broker.parts.space.is_low = True
    assert alter(broker, {"user": "u"}, producer_byte_rate=6.0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert alter(broker, {"user": "u"}, producer_byte_rate=None) == 0
    assert broker.parts.image.client_quotas == {}
