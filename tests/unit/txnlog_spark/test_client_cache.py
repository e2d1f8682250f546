"""The client cache: one client per process and connection settings."""

from __future__ import annotations

import pytest
from support.sockets.socket_broker import SocketBroker

from txnlog_kafka.operations.effects import ANY_NODE, Call, Send
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_spark.client_cache import CLIENTS_MAX, ClientCache, ConnectionSettings


@pytest.fixture
def broker():
    with SocketBroker() as running:
        yield running


@pytest.fixture
def cache():
    made = ClientCache()
    yield made
    made.close()


def settings(broker, **changes) -> ConnectionSettings:
    return ConnectionSettings.of({"kafka.bootstrap.servers": broker.bootstrap_servers, **changes})


def test_queries_with_equal_settings_share_a_client(cache, broker):
    servers = broker.bootstrap_servers
    assert cache.get(settings(broker), servers) is cache.get(settings(broker), servers)


@pytest.mark.parametrize(
    "changes",
    [
        {"kafka.client.id": "other"},
        {"kafka.request.timeout.ms": 1_000},
        {"kafka.connections.max.idle.ms": -1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_two_queries_in_one_worker_share_nothing_where_their_settings_differ(
    cache, broker, changes
):
    servers = broker.bootstrap_servers
    one = cache.get(settings(broker), servers)
    other = cache.get(settings(broker, **changes), servers)
    assert one is not other
    assert one.session is not other.session
    one.session.coordinators[0, "g"] = 7
    assert not other.session.coordinators


def test_a_command_for_an_embedded_broker_names_its_directory(cache, broker, tmp_path):
    """Its address is another one after each start."""
    folder = tmp_path / "a log"
    embedded = ConnectionSettings.of({"path": str(folder)})
    client = cache.get(embedded, broker.bootstrap_servers)
    assert client.brokers_option == f"--path '{folder}'"


def test_what_one_query_left_unanswered_reaches_no_other(cache, broker):
    """The queries share the client of a cluster; the requests of an operation are its own."""
    client = cache.get(settings(broker), broker.bootstrap_servers)
    request = APIS[ApiKey.METADATA].request(topics=[])

    def leaving():
        return (yield Send(Call(ANY_NODE, request, 20_000)))

    first, second = client.run(leaving()), client.run(leaving())
    assert first != second
    assert not any(c.idle_s() == 0 for c in client._connections.values())


def test_the_client_that_was_used_least_recently_is_closed_for_a_new_one(cache, broker):
    servers = broker.bootstrap_servers
    clients = [
        cache.get(settings(broker, **{"kafka.client.id": str(n)}), servers)
        for n in range(CLIENTS_MAX)
    ]
    assert cache.get(settings(broker, **{"kafka.client.id": "0"}), servers) is clients[0]
    cache.get(settings(broker, **{"kafka.client.id": "new"}), servers)
    assert cache.get(settings(broker, **{"kafka.client.id": "0"}), servers) is clients[0]
    assert clients[1]._connections == {}
