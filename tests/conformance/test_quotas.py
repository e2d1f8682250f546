"""Quotas of clients: set, described, obeyed and kept as Apache Kafka does it.

A rate may be exceeded for as long as its windows are: ten whole ones of a second by default. So a
client with a quota of T bytes a second may send 10 T at once, and then waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.brokers.probe import ports_of, wait_for, wait_until
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of
from support.kafka.java_tools import CONFIGS, JavaHost
from support.raw.raw import Connection
from support.raw.raw_admin import make_topic
from support.raw.requests import fetch_request, produce_request, request

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

WINDOWS_S = 10
"""Seconds of the whole windows that a rate is measured over, if a test does not set them."""
PRODUCED, CONSUMED, PERCENT = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
EXACT, DEFAULT, SPECIFIED = range(3)
SHORT = {"quota.window.num": "2"}
"""Configuration with one whole window: a rate may be exceeded for a second."""
OWN_RATES = pytest.mark.one_broker("each broker has rates of its own")

Entity = frozenset[tuple[str, str | None]]


def entity(**names: str | None) -> Entity:
    """The entity of these names; `client_id` stands for "client-id"."""
    return frozenset((kind.replace("_", "-"), name) for kind, name in names.items())


def change(of: Entity | list[tuple[str, str | None]], *ops: tuple[str, float | None]) -> Any:
    """Return an entry of AlterClientQuotas; None removes a quota."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in of],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops
        ],
    }


def alter(connection: Any, *entries: Any, validate_only: bool = False) -> dict[Entity, str]:
    """Change quotas: the errors by entity."""
    message = request(ApiKey.ALTER_CLIENT_QUOTAS, entries=[*entries], validate_only=validate_only)
    answered = connection.ask(message, 1).entries
    return {_entity(each): error_name(each.error_code) for each in answered}


def set_quota(connection: Any, of: Entity, *ops: tuple[str, float | None]) -> None:
    """Change the quotas of an entity, and wait until the broker has read of it."""
    assert alter(connection, change(of, *ops)) == {of: "NONE"}
    wanted = {key: value for key, value in ops if value is not None}
    wait_until(lambda: wanted.items() <= quotas_of(connection, of).items(), f"quotas of {of}")


def quotas_of(connection: Any, of: Entity) -> dict[str, float]:
    """The quotas of this entity alone."""
    exact = [(kind, DEFAULT if name is None else EXACT, name) for kind, name in of]
    error, found = described(connection, *exact, strict=True)
    assert error == "NONE"
    return found.get(of, {})


def described(
    connection: Any, *components: tuple[str, int, str | None], strict: bool = False
) -> tuple[str, dict[Entity, dict[str, float]]]:
    """DescribeClientQuotas: the error, and the quotas by entity."""
    wanted = [
        {"entity_type": kind, "match_type": match_type, "match": match}
        for kind, match_type, match in components
    ]
    message = request(ApiKey.DESCRIBE_CLIENT_QUOTAS, components=wanted, strict=strict)
    answer = connection.ask(message, 1)
    found = {_entity(e): {v.key: v.value for v in e.values} for e in answer.entries or ()}
    return error_name(answer.error_code), found


def _entity(entry: Any) -> Entity:
    return frozenset((each.entity_type, each.entity_name) for each in entry.entity)


# --------------------------------------------------------------------------- set and described

REFUSED = {
    "no entity": change([], (PRODUCED, 1.0)),
    "an unknown type": change([("group", "g")], (PRODUCED, 1.0)),
    "an empty name": change([("client-id", "")], (PRODUCED, 1.0)),
    "an ip and a user": change([("ip", "127.0.0.1"), ("user", "u")], (PRODUCED, 1.0)),
    "no address": change([("ip", "not an address")], ("connection_creation_rate", 1.0)),
    "a client's quota of an ip": change([("ip", "127.0.0.1")], (PRODUCED, 1.0)),
    "an ip's quota of a client": change([("client-id", "c")], ("connection_creation_rate", 1.0)),
    "an unknown key": change([("client-id", "c")], ("producer_byte_rat", 1.0)),
    "zero": change([("client-id", "c")], (PRODUCED, 0.0)),
    "a negative rate": change([("client-id", "c")], (PERCENT, -1.0)),
    "a part of a byte": change([("client-id", "c")], (CONSUMED, 1.5)),
    "too many bytes": change([("client-id", "c")], (CONSUMED, 1e30)),
    "too many connections": change([("ip", None)], ("connection_creation_rate", 2.0**31)),
    "a good and a bad one": change([("client-id", "c")], (PRODUCED, 9.0), (CONSUMED, 0.0)),
    "a key twice": change([("client-id", "c")], (PRODUCED, 9.0), (PRODUCED, 8.0)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_quota_is_refused_and_changes_nothing(connection, what):
    _, before = described(connection)
    assert set(alter(connection, REFUSED[what]).values()) == {"INVALID_REQUEST"}
    assert described(connection) == ("NONE", before)


ACCEPTED = {
    "a user": ({"user": "u"}, {PRODUCED: 1.0, CONSUMED: 2.0**62, PERCENT: 0.25}),
    "a client id": ({"client_id": "c"}, {PRODUCED: 1024.0}),
    "a client id of a user": ({"user": "u", "client_id": "c"}, {CONSUMED: 5.0}),
    "any client id of a user": ({"user": "u", "client_id": None}, {PERCENT: 250.0}),
    "a client id of any user": ({"user": None, "client_id": "c"}, {PRODUCED: 3.0}),
    "mutations": ({"user": "u"}, {"controller_mutation_rate": 0.5}),
    "an address": ({"ip": "10.1.2.3"}, {"connection_creation_rate": 7.0}),
    "an address of six": ({"ip": "::1"}, {"connection_creation_rate": 2.0**31 - 1}),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_quotas_are_set_described_changed_and_removed(connection, unique, what):
    names, quotas = ACCEPTED[what]
    of = entity(
        **{kind: name and (name if kind == "ip" else unique(name)) for kind, name in names.items()}
    )
    assert alter(connection, change(of, *quotas.items()), validate_only=True) == {of: "NONE"}
    assert quotas_of(connection, of) == {}
    set_quota(connection, of, *quotas.items())
    assert quotas_of(connection, of) == quotas
    key = next(iter(quotas))
    set_quota(connection, of, (key, 11.0))
    assert quotas_of(connection, of) == quotas | {key: 11.0}
    assert alter(connection, change(of, *((key, None) for key in quotas))) == {of: "NONE"}
    wait_for(lambda: quotas_of(connection, of), {})
    assert alter(connection, change(of, (key, None), ("never heard of", None))) == {of: "NONE"}


def test_entities_of_a_request_are_changed_by_themselves(connection, unique):
    good, bad, twice = (entity(client_id=unique(name)) for name in ("good", "bad", "twice"))
    answer = alter(
        connection,
        change(good, (PRODUCED, 5.0)),
        change(bad, (PRODUCED, -5.0)),
        change(twice, (PRODUCED, 5.0)),
        change(twice, (PRODUCED, 6.0)),
    )
    # Apache Kafka carries out the first of both all the same.
    assert answer == {good: "NONE", bad: "INVALID_REQUEST", twice: "INVALID_REQUEST"}
    wait_for(lambda: quotas_of(connection, good), {PRODUCED: 5.0})
    assert quotas_of(connection, bad) == {}


def test_a_filter_selects_by_names_defaults_and_types(connection, unique):
    user, name = unique("u"), unique("c")
    pair, alone = entity(user=user, client_id=name), entity(user=user)
    any_client, client = entity(user=user, client_id=None), entity(client_id=name)
    every = (pair, alone, any_client, client)
    for of in every:
        set_quota(connection, of, (PRODUCED, 5.0))

    def selected(*components: tuple[str, int, str | None], strict: bool = False) -> set[Entity]:
        error, found = described(connection, *components, strict=strict)
        assert error == "NONE"
        return found.keys() & set(every)

    this_user, this_client = ("user", EXACT, user), ("client-id", EXACT, name)
    assert selected() == set(every)
    assert selected(strict=True) == set()
    assert selected(this_user) == {pair, alone, any_client}
    assert selected(this_user, strict=True) == {alone}
    assert selected(this_user, this_client) == {pair}
    assert selected(this_client) == {pair, client}
    assert selected(this_user, ("client-id", DEFAULT, None)) == {any_client}
    assert selected(this_user, ("client-id", SPECIFIED, None)) == {pair, any_client}
    assert selected(("client-id", SPECIFIED, None), strict=True) == {client}
    assert selected(("ip", SPECIFIED, None)) == set()


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("", EXACT, "u")], "INVALID_REQUEST"),
        ([("group", EXACT, "g")], "UNSUPPORTED_VERSION"),
        ([("user", EXACT, None)], "INVALID_REQUEST"),
        ([("user", DEFAULT, "u")], "INVALID_REQUEST"),
        ([("user", SPECIFIED, "u")], "INVALID_REQUEST"),
        ([("user", 7, None)], "INVALID_REQUEST"),
        ([("user", EXACT, "u"), ("user", DEFAULT, None)], "INVALID_REQUEST"),
        ([("user", EXACT, "u"), ("ip", DEFAULT, None)], "INVALID_REQUEST"),
    ],
)
def test_what_is_no_filter_is_refused(connection, components, error):
    assert described(connection, *components) == (error, {})


def test_kafka_configs_sets_describes_and_removes_quotas(
    bootstrap: str, java: JavaHost, unique: Callable[[str], str]
) -> None:
    user, name = unique("u"), unique("c")
    server = ("--bootstrap-server", bootstrap)
    places = {
        f"Quota configs for client-id '{name}'": ["clients", name],
        f"Quota configs for user-principal '{user}'": ["users", user],
        f"Quota configs for user-principal '{user}', client-id '{name}'": [
            "users", user, "clients", name,
        ],
    }  # fmt: skip
    for title, words in places.items():
        kinds = [word for kind in words[::2] for word in ("--entity-type", kind)]
        names = [word for each in words[1::2] for word in ("--entity-name", each)]
        quotas = "producer_byte_rate=1024,request_percentage=12.5"
        java.ok(CONFIGS, *server, "--alter", *kinds, *names, "--add-config", quotas)

        def shown(kinds=kinds, names=names) -> list[str]:
            done = java.ok(CONFIGS, *server, "--describe", *kinds, *names)
            return sorted(done.lines)

        wait_until(lambda title=title, shown=shown: any(
            line.startswith(title) and "producer_byte_rate=1024.0" in line
            and "request_percentage=12.5" in line for line in shown()
        ), title)  # fmt: skip
        removed = ("--delete-config", "producer_byte_rate,request_percentage")
        java.ok(CONFIGS, *server, "--alter", *kinds, *names, *removed)
        wait_for(shown, [])


# --------------------------------------------------------------------------- obeyed


RATE = 100_000
VALUES = [f"{number:06}".ljust(2_500, "x") for number in range(80)]
LEAST_S = 400_000 / RATE - 1 - 1
"""Time that VALUES take as keys and values, but for two seconds: one is free, and the last answer
is not waited for."""


def test_clients_over_their_quotas_take_their_time_and_each_record_is_there_once(
    new_broker, unique
):
    bootstrap = new_broker(SHORT).bootstrap_servers
    topic = create_topic(bootstrap, unique("topic"))
    with Connection(ports_of(bootstrap)[0]) as connection:
        set_quota(connection, entity(client_id="writer"), (PRODUCED, RATE))
        set_quota(connection, entity(client_id="reader"), (CONSUMED, RATE))
    began = time.monotonic()
    produce_values(bootstrap, topic, VALUES, client_id="writer", batch_size=25_000)
    written = time.monotonic()
    assert written - began > LEAST_S
    read = read_topic(bootstrap, topic, client_id="reader", fetch_message_max_bytes=25_000)
    assert values_of(read) == VALUES
    assert time.monotonic() - written > LEAST_S


def records(size: int) -> bytes:
    return encode_batch([Record(None, b"x" * size, 1_700_000_000_000)])


@OWN_RATES
@pytest.mark.parametrize("acks", [1, 0])
def test_a_produce_over_the_quota_is_answered_at_once_and_the_connection_waits(
    broker, connection, topic, unique, acks
):
    name, size, rate = unique("c"), 105_000, 10_000
    set_quota(connection, entity(client_id=name), (PRODUCED, rate))
    expected_ms = (size / rate - WINDOWS_S) * 1000
    with Connection(broker.port, name) as mine, Connection(broker.port, name) as other:
        began = time.monotonic()
        message = produce_request({(topic, 0): records(size)}, acks, timeout_ms=10_000)
        if acks:
            throttle_ms = mine.ask(message, 9).throttle_time_ms
            assert expected_ms <= throttle_ms < expected_ms + 100
        else:
            mine.send_bytes(encode_request(message, 9, 0, name))
        assert time.monotonic() - began < expected_ms / 1000
        assert versions(other).error_code == 0  # another connection is not muted
        assert time.monotonic() - began < expected_ms / 1000
        assert versions(mine).error_code == 0
        assert time.monotonic() - began >= expected_ms / 1000


def versions(connection: Connection) -> Any:
    message = request(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1")
    return connection.ask(message, 3)


def produce_ms(connection: Connection, topic: str, size: int) -> int:
    """Produce a batch of a record: the throttle time of the answer, in ms."""
    answer = connection.ask(produce_request({(topic, 0): records(size)}, timeout_ms=10_000), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer.throttle_time_ms


def test_a_fetch_over_the_quota_is_empty_and_the_same_comes_later(new_broker, unique):
    broker, size, rate = new_broker(SHORT), 3_000, 4_000
    with Connection(broker.port, "c") as mine:
        topic = make_topic_of(mine, unique("fetched"))
        for _ in range(3):
            produce_ms(mine, topic, size)
        set_quota(mine, entity(client_id="c"), (CONSUMED, rate))

        def fetched(offset: int) -> tuple[int, int]:
            """Fetch a batch: its bytes, and the throttle time in ms."""
            answer = mine.ask(fetch_request(topic, offset, max_bytes=size), 12)
            sizes = (len(p.records or b"") for t in answer.responses for p in t.partitions)
            return sum(sizes), answer.throttle_time_ms

        first, throttle_ms = fetched(0)
        assert (first > size, throttle_ms) == (True, 0)
        began = time.monotonic()
        empty, throttle_ms = fetched(1)
        expected_ms = (2 * first / rate - 1) * 1000
        assert (empty, expected_ms - 250 <= throttle_ms <= expected_ms + 250) == (0, True)
        # What was not sent was not counted: the same comes when the time is over.
        again, next_ms = fetched(1)
        assert time.monotonic() - began >= throttle_ms / 1000
        wait_for(lambda: (again, next_ms) if again else fetched(1), (first, 0))


@OWN_RATES
def test_a_quota_of_time_throttles_any_request_for_a_window_at_most(broker, connection, unique):
    name = unique("c")
    set_quota(connection, entity(client_id=name), (PERCENT, 0.001))
    with Connection(broker.port, name) as mine:
        asked: list[tuple[float, int]] = []

        def is_throttled() -> bool:
            began = time.monotonic()
            answer = mine.ask(request(ApiKey.METADATA, topics=[]), 9)
            asked.append((began, answer.throttle_time_ms))
            return answer.throttle_time_ms > 0

        wait_until(is_throttled, "a request that has to wait")
        began, throttle_ms = asked[-1]
        assert throttle_ms <= 1000
        versions(mine)
        assert time.monotonic() - began >= throttle_ms / 1000
    assert produce_ms(connection, make_topic_of(connection, unique("t")), 10) == 0


def make_topic_of(connection: Any, name: str, **configs: str) -> str:
    make_topic(connection, name, **configs)
    return name


LEVELS = (
    {"user": "ANONYMOUS", "client_id": "c"},
    {"user": "ANONYMOUS", "client_id": None},
    {"user": "ANONYMOUS"},
    {"user": None, "client_id": "c"},
    {"user": None, "client_id": None},
    {"user": None},
    {"client_id": "c"},
    {"client_id": None},
)
"""The first level with a quota is the one that counts."""


def test_the_quota_of_the_most_specific_level_counts_and_survives_a_restart(new_broker, unique):
    broker = new_broker(SHORT)
    rates = {entity(**names): 200.0 * 3**number for number, names in enumerate(LEVELS)}
    with Connection(broker.port) as connection:
        topic = make_topic_of(connection, unique("levels"), max_message_bytes="4000000")
        for of, rate in rates.items():
            set_quota(connection, of, (PRODUCED, rate))
    broker.restart()
    with Connection(broker.port) as connection:
        wait_for(lambda: len(described(connection)[1]), len(LEVELS))
        for of, rate in rates.items():
            assert quotas_of(connection, of) == {PRODUCED: rate}
            # Six seconds of this rate, besides half of that of the levels before, in one to three.
            # It would be fifteen too many for the level before, and two for the next one.
            assert 2_500 <= throttled_ms(broker, topic, int(rate * 6)) < 12_000, of
            assert alter(connection, change(of, (PRODUCED, None))) == {of: "NONE"}
            wait_for(lambda of=of: quotas_of(connection, of), {})
        assert described(connection) == ("NONE", {})
        assert throttled_ms(broker, topic, 2_600_000) == 0


def throttled_ms(broker: Any, topic: str, size: int) -> int:
    """The throttle time of a batch on a connection of its own, with the client id "c"."""
    with Connection(broker.port, "c") as connection:
        return produce_ms(connection, topic, size)
