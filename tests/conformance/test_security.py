"""Kafka's tools, its Java client and librdkafka on secured listeners with ACLs, on both brokers.

A PLAINTEXT client administers: it is a super user, as the broker itself is. USER, and the user that
a test adds by `kafka-configs`, may do only the operations that their ACLs allow.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import admin as admin_client
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.probe import wait_until
from support.brokers.tls_kafka import LISTENERS, PASSWORD, TLS_BROKERS, USER
from support.clients.librdkafka import TIMEOUT_S, create_topic, read_topic, values_of
from support.clients.tls_client import answer_to, asked, port_in
from support.core.plain_messages import plain
from support.harness.availability import started_when_asked
from support.kafka.java_tools import CONFIGS, CONSOLE_CONSUMER, CONSOLE_PRODUCER, TOPICS, JavaHost
from support.raw.access_asks import ASKS, REFUSALS, codes

from broker_sim.cli.main import main
from broker_sim.core.controller.acls import CLUSTER_NAME, AclOperation
from broker_sim.core.handlers._access import ACCESS, CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID
from txnlog_kafka.wire.messages import ApiKey

ACLS = "org.apache.kafka.tools.AclCommand"
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
MODULES = "org.apache.kafka.common.security"
NEW_PASSWORD = "dora-secret"
NAMES = {TOPIC: "t", GROUP: "g", TRANSACTIONAL_ID: "x", CLUSTER: CLUSTER_NAME}
"""Resource names in the requests of ASKS, by resource type."""


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[Callable[[str], Any]]:
    """Return a function that starts a broker of each kind when a test first asks for the kind."""
    with started_when_asked(TLS_BROKERS, tmp_path_factory.mktemp, config=GUARDED) as broker_of:
        yield broker_of


@pytest.fixture
def guarded(broker_name: str, started: Callable[[str], Any]) -> Any:
    """Each of both brokers."""
    return started(broker_name)


@pytest.fixture
def topic(guarded: Any, unique: Callable[[str], str]) -> str:
    return create_topic(guarded.bootstrap_servers, unique("topic"))


@pytest.fixture
def acls(java: JavaHost, guarded: Any) -> Callable[..., list[str]]:
    """Runs kafka-acls; the entries that it prints."""

    def run(*words: str) -> list[str]:
        done = java.ok(ACLS, "--bootstrap-server", guarded.bootstrap_servers, *words)
        return sorted(re.findall(r"\(principal=[^)]*\)", done.out))

    return run


@pytest.fixture
def allow(acls: Callable[..., list[str]]) -> Callable[..., None]:
    """Adds ACLs for a user, and waits until they are in force."""

    def add(user: str, *words: str) -> None:
        acls("--add", "--allow-principal", f"User:{user}", *words)

    return add


def rdkafka(guarded: Any, listener: str, user: str = USER, password: str = PASSWORD,
            mechanism: str = "SCRAM-SHA-256", **more: Any) -> dict[str, Any]:  # fmt: skip
    """Settings of librdkafka for a listener."""
    settings = {
        "bootstrap.servers": guarded.security.address(listener),
        "security.protocol": LISTENERS[listener],
        "ssl.ca.location": str(guarded.security.ca_file),
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    if LISTENERS[listener].startswith("SASL"):
        settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return settings | more


def error_of(call: Callable[[], Any]) -> int:
    """The code of the error that it raises."""
    with pytest.raises(KafkaException) as caught:
        call()
    return int(caught.value.args[0].code())


def delivered(producer: Producer, topic: str, value: str) -> int:
    """The code of one record's delivery; 0 when it was written.

    A metadata answer that comes while ``produce`` runs lets librdkafka refuse the record at once.
    """
    codes: list[int] = []
    try:
        producer.produce(
            topic, value, on_delivery=lambda error, _: codes.append(error.code() if error else 0)
        )
    except KafkaException as refused:
        return int(refused.args[0].code())
    producer.flush(TIMEOUT_S)
    return codes[0]


def java_file(guarded: Any, folder: Path, listener: str, login: str = "") -> str:
    """A properties file for Kafka's tools."""
    lines = {
        "security.protocol": LISTENERS[listener],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(guarded.security.ca_file),
    }
    if login:
        module = "plain.Plain" if login == "PLAIN" else "scram.Scram"
        jaas = f'{MODULES}.{module}LoginModule required username="{USER}" password="{PASSWORD}";'
        lines |= {"sasl.mechanism": login, "sasl.jaas.config": jaas}
    path = folder / f"{listener}-{login}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(path)


# ------------------------------------------------------------------ kafka-acls


def entry(user: str, operation: str, permission: str = "ALLOW") -> str:
    return f"(principal=User:{user}, host=*, operation={operation}, permissionType={permission})"


def test_kafka_acls_adds_lists_and_removes(acls, unique):
    name, user = unique("t"), unique("u")
    where = ("--topic", name)
    acls("--add", "--allow-principal", f"User:{user}", "--producer", *where)
    acls("--add", "--deny-principal", f"User:{user}", "--operation", "Read", *where)
    wanted = [entry(user, o) for o in ("CREATE", "DESCRIBE", "WRITE")]
    assert acls("--list", *where) == sorted([*wanted, entry(user, "READ", "DENY")])
    prefixed = ("--resource-pattern-type", "prefixed")
    acls("--add", "--allow-principal", f"User:{user}", "--operation", "All", *where, *prefixed)
    assert acls("--list", *where, *prefixed) == [entry(user, "ALL")]
    match = ("--resource-pattern-type", "match")
    assert len(acls("--list", "--topic", f"{name}-1", *match)) == 1
    assert len(acls("--list", *where, *match)) == 5
    assert len(acls("--list", "--principal", f"User:{user}")) == 5
    acls("--remove", "--force", "--deny-principal", f"User:{user}", "--operation", "Read", *where)
    assert acls("--list", *where) == wanted
    acls("--remove", "--force", *where, *match)
    assert acls("--list", *where, *match) == []


def test_without_an_authorizer_kafka_acls_says_so(java, bootstrap):
    done = java.run(ACLS, "--bootstrap-server", bootstrap, "--list")
    assert done.errors >= {"SecurityDisabled"}, done


# ------------------------------------------------------------------ every API


@pytest.fixture(scope="module")
def with_topic(started: Callable[[str], Any]) -> Callable[[str], Any]:
    """The broker of a kind, with what the requests name."""
    ready: set[str] = set()

    def broker_of(name: str) -> Any:
        guarded = started(name)
        admin = AdminClient({"bootstrap.servers": guarded.bootstrap_servers})
        if "t" not in admin.list_topics(timeout=TIMEOUT_S).topics:
            create_topic(guarded.bootstrap_servers, "t")
        if name not in ready:
            Producer(
                {"bootstrap.servers": guarded.bootstrap_servers, "transactional.id": "x"}
            ).init_transactions(TIMEOUT_S)
            ready.add(name)
        return guarded

    return broker_of


def codes_of(guarded: Any, message: Any, version: int) -> set[int]:
    """Return the error codes of the answer that USER gets."""
    with port_in(guarded.security.ports["SASL_PLAINTEXT"]) as sock:
        assert asked(sock, ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
        token = f"\0{USER}\0{PASSWORD}".encode()
        assert asked(sock, ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token).error_code == 0
        return codes(plain(answer_to(sock, message, version)))


@pytest.mark.parametrize("api", [key.name for key in ASKS])
def test_who_may_nothing_is_answered_the_same_code_by_every_api(broker_name, with_topic, api):
    guarded = with_topic(broker_name)
    for message, version, error in ASKS[ApiKey[api]]:
        assert codes_of(guarded, message, version) - {0} == {error}


@pytest.mark.parametrize("api", [key.name for key in ASKS])
def test_every_api_serves_who_has_what_the_table_says(broker_name, with_topic, api):
    guarded = with_topic(broker_name)
    needs = {(kind, operation) for kind, operation in ACCESS[ApiKey[api]].items()}
    if api == "CREATE_TOPICS":
        needs.add((TOPIC, AclOperation.DESCRIBE_CONFIGS))
    bindings = [
        admin_client.AclBinding(
            admin_client.ResourceType(int(kind)),
            NAMES[kind],
            admin_client.ResourcePatternType.LITERAL
            if kind is CLUSTER
            else admin_client.ResourcePatternType.PREFIXED,
            f"User:{USER}",
            "*",
            admin_client.AclOperation(int(operation)),
            admin_client.AclPermissionType.ALLOW,
        )
        for kind, operation in needs
    ]
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap_servers})
    for future in admin.create_acls(bindings).values():
        future.result(TIMEOUT_S)
    try:
        for message, version, _ in ASKS[ApiKey[api]]:
            wait_until(
                lambda m=message, v=version: not codes_of(guarded, m, v) & REFUSALS, "an answer"
            )
    finally:
        everything = admin_client.AclBindingFilter(
            admin_client.ResourceType.ANY, None, admin_client.ResourcePatternType.ANY,
            f"User:{USER}", None, admin_client.AclOperation.ANY, admin_client.AclPermissionType.ANY,
        )  # fmt: skip
        admin.delete_acls([everything])[everything].result(TIMEOUT_S)
        wait_until(
            lambda: not admin.describe_acls(everything).result(TIMEOUT_S), "the ACLs to be gone"
        )


# ------------------------------------------------------------------ logins, byte by byte

HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
RIGHT = f"\0{USER}\0{PASSWORD}".encode()
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
METADATA = (ApiKey.METADATA, 12, {"topics": []})
VERSIONS = (ApiKey.API_VERSIONS, 3, SOFTWARE)
OF_ANOTHER = (ApiKey.API_VERSIONS, 5, SOFTWARE | {"cluster_id": "another", "node_id": 1})
"""Refused after the login alone (KIP-1242)."""


def mechanism(name: str) -> tuple[ApiKey, int, dict[str, Any]]:
    return HANDSHAKE, 1, {"mechanism": name}


def token(data: bytes) -> tuple[ApiKey, int, dict[str, Any]]:
    return AUTHENTICATE, 2, {"auth_bytes": data}


@pytest.mark.parametrize(
    ("listener", "asks", "answers"),
    [
        ("SASL_PLAINTEXT", [METADATA], [None]),
        ("SASL_PLAINTEXT", [token(RIGHT)], [None]),
        ("SASL_PLAINTEXT", [VERSIONS, VERSIONS], [0, None]),
        ("SASL_PLAINTEXT", [VERSIONS, METADATA], [0, None]),
        (
            "SASL_PLAINTEXT",
            [OF_ANOTHER, mechanism("PLAIN"), token(RIGHT), OF_ANOTHER, METADATA],
            [0, 0, 0, 129, 0],
        ),
        ("SASL_PLAINTEXT", [mechanism("GSSAPI"), VERSIONS], [33, None]),
        ("SASL_PLAINTEXT", [mechanism("PLAIN"), token(RIGHT + b"x"), METADATA], [0, 58, None]),
        ("SASL_PLAINTEXT", [mechanism("PLAIN"), token(b"nonsense")], [0, 58]),
        ("SASL_PLAINTEXT", [mechanism("SCRAM-SHA-256"), token(b"n,,n=nobody,r=a")], [0, 58]),
        ("SASL_PLAINTEXT", [mechanism("PLAIN"), token(RIGHT), METADATA, VERSIONS], [0, 0, 0, 0]),
        ("SASL_PLAINTEXT", [mechanism("PLAIN"), token(RIGHT), token(RIGHT)], [0, 0, 34]),
        (
            "SASL_PLAINTEXT",
            [mechanism("PLAIN"), token(RIGHT), mechanism("PLAIN"), token(RIGHT), METADATA],
            [0, 0, 34, 34, 0],
        ),
        ("PLAINTEXT", [mechanism("PLAIN"), token(RIGHT), METADATA], [34, 34, 0]),
    ],
)
def test_what_a_login_is_answered(guarded, listener, asks, answers):
    """Check each answer; the expected answer None means that the broker closes the connection."""
    port = guarded.port if listener == "PLAINTEXT" else guarded.security.ports[listener]
    with port_in(port) as sock:
        for (key, version, fields), expected in zip(asks, answers, strict=True):
            try:
                answer = asked(sock, key, version, **fields)
            except OSError:
                assert expected is None
                return
            assert getattr(answer, "error_code", 0) == expected


# ------------------------------------------------------------------ kafka-configs


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_configs_adds_changes_and_removes_users(java, guarded, unique, mechanism):
    user = unique("dora")
    server = ("--bootstrap-server", guarded.bootstrap_servers)
    who = ("--entity-type", "users", "--entity-name", user)

    def configure(*words: str) -> str:
        return java.ok(CONFIGS, *server, *words, *who).out

    def lets_in(password: str) -> bool:
        settings = rdkafka(guarded, "SASL_SSL", user, password, mechanism)
        refused: list[int] = []
        settings["error_cb"] = lambda error: refused.append(error.code())
        admin = AdminClient(settings)
        try:
            admin.list_topics(timeout=5)
        except KafkaException:
            admin.poll(0)
            assert KafkaError._AUTHENTICATION in refused
            return False
        return True

    assert not lets_in(NEW_PASSWORD)
    add = f"{mechanism}=[iterations=8192,password={NEW_PASSWORD}]"
    configure("--alter", "--add-config", add)
    wait_until(lambda: f"{mechanism}=iterations=8192" in configure("--describe"), "the user")
    assert lets_in(NEW_PASSWORD)
    configure("--alter", "--add-config", f"{mechanism}=[password=another]")
    wait_until(lambda: f"{mechanism}=iterations=4096" in configure("--describe"), "the change")
    assert not lets_in(NEW_PASSWORD)
    assert lets_in("another")
    configure("--alter", "--delete-config", mechanism)
    wait_until(lambda: mechanism not in configure("--describe"), "the user to be gone")
    assert not lets_in("another")


# ------------------------------------------------------------------ the Java client


@pytest.mark.parametrize(
    "how",
    [
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ],
)
def test_the_java_client_writes_and_reads(java, guarded, allow, topic, tmp_path, how):
    listener, login = how
    group = f"group-{topic}"
    allow(USER, "--producer", "--topic", topic)
    allow(USER, "--consumer", "--topic", topic, "--group", group)
    file = java_file(guarded, tmp_path, listener, login)
    where = ("--bootstrap-server", guarded.security.address(listener), "--topic", topic)
    java.ok(CONSOLE_PRODUCER, *where, "--command-config", file, stdin="one\ntwo\n")
    read = ("--from-beginning", "--max-messages", 2, "--timeout-ms", 30_000, "--group", group)
    done = java.ok(CONSOLE_CONSUMER, *where, *read, "--command-config", file)
    assert done.lines == ["one", "two"]


def test_the_java_client_is_refused_without_an_acl_and_with_a_wrong_password(
    java, guarded, topic, tmp_path
):
    where = ("--bootstrap-server", guarded.security.address("SASL_SSL"), "--topic", topic)
    file = java_file(guarded, tmp_path, "SASL_SSL", "SCRAM-SHA-256")
    read = ("--from-beginning", "--max-messages", 1, "--timeout-ms", 30_000)
    done = java.run(CONSOLE_CONSUMER, *where, *read, "--command-config", file)
    assert done.errors >= {"TopicAuthorization"}, done
    wrong = Path(file)
    wrong.write_text(wrong.read_text().replace(PASSWORD, "wrong"))
    server = where[:2]
    done = java.run(TOPICS, *server, "--command-config", str(wrong), "--list")
    assert done.errors >= {"SaslAuthentication"}, done


# ------------------------------------------------------------------ librdkafka


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_commits_a_transaction_with_just_its_acls(
    guarded, allow, topic, unique, mechanism
):
    transactional_id, group = unique("id"), unique("group")
    settings = rdkafka(guarded, "SASL_SSL", mechanism=mechanism)
    one = Producer(settings | {"transactional.id": transactional_id})
    refused = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert error_of(lambda: one.init_transactions(TIMEOUT_S)) == refused
    allow(USER, "--operation", "Write", "--transactional-id", transactional_id)
    another = Producer(settings | {"transactional.id": transactional_id})
    another.init_transactions(TIMEOUT_S)
    another.begin_transaction()
    assert delivered(another, topic, "late") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(USER, "--operation", "Write", "--topic", topic)
    last = Producer(settings | {"transactional.id": transactional_id})
    last.init_transactions(TIMEOUT_S)
    last.begin_transaction()
    assert delivered(last, topic, "value") == 0
    last.commit_transaction(TIMEOUT_S)
    assert values_of(read_topic(guarded.bootstrap_servers, topic)) == ["value"]
    consumer = Consumer(settings | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[int] = []

    def polled() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error():
            found.append(message.error().code())
        return bool(found)

    wait_until(polled, "a refusal")
    consumer.close()
    assert found[0] in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    )


def test_an_idempotent_producer_needs_a_topic_that_it_may_write_to(guarded, allow, topic):
    settings = rdkafka(guarded, "SASL_SSL") | {"enable.idempotence": True}
    allow(USER, "--operation", "Write", "--topic", topic)
    assert delivered(Producer(settings), topic, "value") == 0


def test_a_topic_is_created_by_who_may_create_it(guarded, allow, unique):
    name = unique("new")
    admin = AdminClient(rdkafka(guarded, "SASL_SSL"))
    new = NewTopic(name, num_partitions=1, replication_factor=1)
    refused = error_of(lambda: admin.create_topics([new])[name].result(TIMEOUT_S))
    assert refused == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(USER, "--operation", "Create", "--topic", name)
    admin.create_topics([new])[name].result(TIMEOUT_S)


def test_a_certificate_is_a_principal(guarded, allow, topic, tmp_path):
    file = str(guarded.security.ca.sign("walter").write_pem(tmp_path / "client.pem"))
    settings = rdkafka(guarded, "MUTUAL") | {
        "ssl.certificate.location": file,
        "ssl.key.location": file,
    }
    refused = delivered(Producer(settings), topic, "value")
    assert refused == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow("CN=walter", "--operation", "Write", "--topic", topic)
    assert delivered(Producer(settings), topic, "value") == 0


# ------------------------------------------------------------------ our own commands


def test_our_commands_take_the_file_that_kafkas_tools_take(
    guarded, allow, topic, tmp_path, capsys, monkeypatch
):
    allow(USER, "--operation", "All", "--topic", topic)
    file = java_file(guarded, tmp_path, "SASL_SSL", "SCRAM-SHA-512")
    server = ("--bootstrap-server", guarded.security.address("SASL_SSL"), "--command-config", file)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert main(["produce", *server, "--topic", topic]) == 0
    assert values_of(read_topic(guarded.bootstrap_servers, topic)) == ["one", "two"]
    capsys.readouterr()
    assert main(["topics", "describe", *server, "--topic", topic, "--json"]) == 0
    assert topic in capsys.readouterr().out
    wrong = Path(file)
    wrong.write_text(wrong.read_text().replace(PASSWORD, "hunter2"))
    assert main(["topics", "list", *server]) == 1
    said = capsys.readouterr().err
    assert f"refused the login of user '{USER}'" in said
    assert "hunter2" not in said
