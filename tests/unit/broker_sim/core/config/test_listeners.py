"""`listeners` and what goes with it: names, protocols, addresses, options of one listener."""

from __future__ import annotations

import pytest

from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.endpoint import (
    Endpoint,
    SecurityProtocol,
    inter_broker_listener,
    read_listeners,
    read_registry,
)

JAAS = 'x.PlainLoginModule required user_alice="alice-secret";'


def listeners_of(**options):
    return read_listeners(BrokerConfig({k.replace("_", "."): v for k, v in options.items()}))


def refused(match, options):
    with pytest.raises(ConfigError, match=match) as caught:
        read_listeners(BrokerConfig(options))
    return str(caught.value)


def test_listeners_are_parsed_and_told_to_clients():
    (one,) = listeners_of(listeners="PLAINTEXT://[::1]:0")
    assert (one.name, one.bound) == ("PLAINTEXT", Endpoint("::1", 0))
    assert str(Endpoint("::1", 9)) == "[::1]:9"
    (told,) = listeners_of(advertised_listeners="PLAINTEXT://kafka.example:19092")
    assert told.advertised == Endpoint("kafka.example", 19092)
    assert told.bound == Endpoint("127.0.0.1", 9092)


def test_each_name_has_its_protocol_and_address():
    options = {
        "listeners": "inside://127.0.0.1:1,SSL://127.0.0.1:2,OUTSIDE://0.0.0.0:3",
        "advertised.listeners": "OUTSIDE://h:13,SSL://h:12,INSIDE://h:11",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL,SSL:SSL",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    found = read_listeners(BrokerConfig(options))
    assert [(one.name, one.protocol, one.bound.port, one.advertised.port) for one in found] == [
        ("INSIDE", SecurityProtocol.PLAINTEXT, 1, 11),
        ("SSL", SecurityProtocol.SSL, 2, 12),
        ("OUTSIDE", SecurityProtocol.SASL_SSL, 3, 13),
    ]


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_all_interfaces_need_an_address_that_clients_can_reach(host):
    config = {"listeners": f"PLAINTEXT://{host}:9092"}
    refused(r"set advertised\.listeners", config)
    config["advertised.listeners"] = "PLAINTEXT://10.0.0.1:9092"
    (one,) = read_listeners(BrokerConfig(config))
    assert one.advertised == Endpoint("10.0.0.1", 9092)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"listeners": "127.0.0.1:9092"}, "listeners must be"),
        ({"listeners": "PLAINTEXT://h:70000"}, "over 65535"),
        ({"listeners": "PLAINTEXT://h"}, "listeners must be"),
        ({"listeners": "OUTSIDE://h:1"}, r"map has no security protocol of the listener OUTSIDE"),
        ({"listeners": "SSL://h:1,ssl://h:2"}, "SSL is twice"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:1"}, "1 is twice"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "NAME:PROTOCOL"),
        ({"advertised.listeners": "SSL://h:1"}, "one address of each listener"),
        ({"inter.broker.listener.name": "SSL"}, "not one of the listeners PLAINTEXT"),
        (
            {
                "inter.broker.listener.name": "PLAINTEXT",
                "security.inter.broker.protocol": "PLAINTEXT",
            },
            "only one of",
        ),
        ({"listeners": "SASL_SSL://h:1"}, "SASL_SSL must be of PLAIN.*not GSSAPI"),
        ({"listener.name.other.ssl.client.auth": "none"}, "no such listener"),
    ],
)
def test_what_cannot_be_is_refused_with_its_option(options, match):
    refused(match, options)


def test_two_addresses_of_one_host_may_share_a_port():
    both = listeners_of(listeners="PLAINTEXT://127.0.0.1:9,SSL://[::1]:9")
    assert {one.bound.port for one in both} == {9}


def test_an_option_of_a_listener_wins_and_of_a_mechanism_on_it_more():
    config = BrokerConfig(
        {
            "connections.max.reauth.ms": 1,
            "listener.name.one.connections.max.reauth.ms": "2",
            "listener.name.one.scram-sha-256.connections.max.reauth.ms": "3",
            "listener.name.one.plain.sasl.jaas.config": JAAS,
        }
    )
    option = "connections.max.reauth.ms"
    assert config.of_listener("ONE", option, "SCRAM-SHA-256") == 3
    assert config.of_listener("ONE", option, "PLAIN") == 2
    assert config.of_listener("TWO", option, "PLAIN") == 1
    assert config.of_listener("ONE", "sasl.jaas.config", "PLAIN") == JAAS
    assert config.of_listener("TWO", "sasl.jaas.config", "PLAIN") == ""


@pytest.mark.parametrize(
    "name",
    [
        "sasl.jaas.config",
        "listener.name.one.sasl.jaas.config",
        "listener.name.ONE.ssl.client.auth",
        "listener.name.one.gssapi.sasl.jaas.config",
        "listener.name.one.num.partitions",
    ],
)
def test_an_option_that_no_listener_has_is_unknown_and_its_value_is_not_told(name):
    with pytest.raises(ConfigError, match="unknown configuration") as caught:
        BrokerConfig({name: JAAS})
    assert "alice-secret" not in str(caught.value)


def test_a_broker_without_a_registry_is_alone():
    assert read_registry(BrokerConfig()) is None


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:2181", Endpoint("127.0.0.1", 2181)),
        ("[::1]:1", Endpoint("::1", 1)),
        ("registry.example:65535", Endpoint("registry.example", 65535)),
    ],
)
def test_the_registry_has_one_address(text, endpoint):
    assert read_registry(BrokerConfig({"registry.connect": text})) == endpoint


@pytest.mark.parametrize(
    "text", ["2181", "h:", ":1", "h:0", "h:65536", "a:1,b:2", "h:1/path", "h o:1", "[:1"]
)
def test_what_is_no_address_of_a_registry_is_refused(text):
    with pytest.raises(ConfigError, match=r"registry\.connect must be host:port"):
        read_registry(BrokerConfig({"registry.connect": text}))


SASL = {
    "listeners": "PLAINTEXT://127.0.0.1:1,IN://127.0.0.1:2",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,IN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({**SASL, "inter.broker.listener.name": "in"},
         "must be one of the sasl.enabled.mechanisms of the listener IN, PLAIN, and is GSSAPI"),
        ({"listeners": "OUT://127.0.0.1:1", "listener.security.protocol.map": "OUT:PLAINTEXT"},
         "needs the listener PLAINTEXT, by which brokers find each other; there is OUT"),
        ({"security.inter.broker.protocol": "SSL"}, "needs the listener SSL"),
        ({"registry.heartbeat.interval.ms": "900", "registry.session.timeout.ms": "900"},
         r"heartbeat\.interval\.ms \(900\) must be less than registry\.session\.timeout\.ms"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_with_a_registry_is_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        read_registry(BrokerConfig({"registry.connect": "h:1", **options}))
    assert read_registry(BrokerConfig(options)) is None


def test_brokers_find_each_other_by_the_listener_of_that_name_or_of_their_protocol():
    assert inter_broker_listener(BrokerConfig()) == "PLAINTEXT"
    assert inter_broker_listener(BrokerConfig(SASL)) == "PLAINTEXT"
    named = {"listeners": "IN://h:1,OUT://h:2", "inter.broker.listener.name": "in"}
    named["listener.security.protocol.map"] = "IN:PLAINTEXT,OUT:PLAINTEXT"
    assert inter_broker_listener(BrokerConfig(named)) == "IN"
    assert read_registry(BrokerConfig({"registry.connect": "h:1", **named})) == Endpoint("h", 1)
    login = {"sasl.mechanism.inter.broker.protocol": "PLAIN", "inter.broker.listener.name": "IN"}
    secured = {"registry.connect": "h:1", **SASL, **login}
    assert read_registry(BrokerConfig(secured)) == Endpoint("h", 1)


def test_brokers_do_not_find_each_other_by_a_listener_with_tokens_alone():
    login = {"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}
    secured = {"registry.connect": "h:1", **SASL, **login, "inter.broker.listener.name": "IN"}
    with pytest.raises(ConfigError, match="and is OAUTHBEARER"):
        read_registry(BrokerConfig(secured | {"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}))
