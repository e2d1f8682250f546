"""Client of a schema registry: valid answers, retries, and the cache."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import LongType
from support.kafka.memory_registry import MemoryRegistry
from support.sockets.http_server import Answering, HttpServer

from txnlog_spark.formats.errors import (
    AvroSchemaError,
    RegistryError,
    RegistryUnreachable,
    UnknownSchema,
)
from txnlog_spark.formats.readers import Reader, read_avro
from txnlog_spark.formats.registry.client import PAUSES_S, PROTOBUF, Registry, registry_for
from txnlog_spark.options.registry import URL

SCHEMA = json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "int"}]})


class Scripted:
    """A registry that gives these answers in turn, then has SCHEMA as id 1 of `sales`."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry()
        self.registry.register("sales", SCHEMA)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[str] = []
        script = self

        class Handler(Answering):
            def do_GET(self) -> None:  # noqa: N802
                script.asked.append(self.path)
                if script.answers:
                    self.reply(*script.answers.pop(0))
                else:
                    self.reply(*script.registry._answer("GET", self.path, {}))

        self.server = HttpServer(Handler)
        self.url = f"http://{self.server.address}"


@pytest.fixture
def script() -> Iterator[Scripted]:
    made = Scripted()
    with made.server:
        yield made


@pytest.fixture
def other() -> Iterator[Scripted]:
    made = Scripted()
    with made.server:
        yield made


Made = Callable[..., Registry]


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def client(slept: list[float]) -> Made:
    def make(*urls: str, **more: str) -> Registry:
        return Registry({"schema.registry.url": ",".join(urls)} | more, slept.append)

    return make


def closed_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


# What is an answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_404_with_a_registrys_code_says_that_there_is_no_such_schema(
    script: Scripted, client: Made, code: int
) -> None:
    script.answers = [(404, {"error_code": code, "message": "Schema not found"})]
    with pytest.raises(UnknownSchema, match=rf"Schema not found \({code}\)"):
        client(script.url).schema(7)
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"default backend - 404",
        {"message": "no Route matched with those values"},
        {"error_code": 404, "message": "HTTP 404 Not Found"},
        {"error_code": 0, "message": "Could not find resource for full path"},
        [40403],
    ],
    ids=str,
)
def test_a_404_of_a_proxy_is_no_answer_and_no_unknown_schema(
    script: Scripted, client: Made, answer: Any
) -> None:
    script.answers = [(404, answer)] * 3
    with pytest.raises(RegistryUnreachable, match="HTTP 404, which is not a schema registry's"):
        client(script.url).schema(1)
    script.answers = [(404, answer)]
    assert client(script.url).schema(1) == SCHEMA


# Asking again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_registry_that_is_busy_is_asked_again_after_growing_pauses(
    script: Scripted, client: Made, slept: list[float], status: int
) -> None:
    busy = (status, {"error_code": status, "message": "busy"})
    script.answers = [busy, busy]
    assert client(script.url).schema(1) == SCHEMA
    assert slept == list(PAUSES_S) == sorted(set(PAUSES_S))
    script.answers = [busy] * 10
    with pytest.raises(RegistryUnreachable, match=f"HTTP {status}: busy"):
        client(script.url).schema(1)
    assert len(script.answers) == 7


def test_another_address_is_asked_before_there_is_a_pause(
    script: Scripted, other: Scripted, client: Made, slept: list[float]
) -> None:
    script.answers = [(429, {"error_code": 42901, "message": "too many requests"})]
    assert client(closed_url(), script.url, other.url).schema(1) == SCHEMA
    assert slept == []
    assert len(other.asked) == 1


def test_an_address_that_refuses_connections_is_asked_again(
    client: Made, slept: list[float]
) -> None:
    with pytest.raises(RegistryUnreachable, match="ConnectionRefusedError") as caught:
        client(closed_url()).schema(1)
    assert slept == list(PAUSES_S)
    assert caught.value.text.count("ConnectionRefusedError") == 1


def test_an_address_that_was_silent_for_its_timeout_is_not_waited_for_again(
    client: Made, slept: list[float]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryUnreachable, match=r"http\.connect\.timeout\.ms"):
            client(url, **{"http.connect.timeout.ms": "20"}).schema(1)
    assert slept == []


@pytest.mark.parametrize("status", [400, 409, 422])
def test_what_a_registry_refuses_is_not_asked_again(
    script: Scripted, client: Made, slept: list[float], status: int
) -> None:
    script.answers = [(status, {"error_code": status, "message": "no"})]
    with pytest.raises(RegistryError, match=f"refused the schema id 1 with HTTP {status}"):
        client(script.url).schema(1)
    assert (len(script.asked), slept) == (1, [])


def test_a_process_keeps_one_client_of_a_registry_for_the_same_options() -> None:
    first = registry_for({URL: "http://127.0.0.1:1"})
    assert registry_for({URL: "http://127.0.0.1:1"}) is first
    assert registry_for({URL: "http://127.0.0.1:2"}) is not first


def test_a_schema_that_cannot_be_read_is_named_by_its_id_and_one_condition(
    script: Scripted,
) -> None:
    reader = Reader(LongType(), read_avro, (('"long"', None), ((URL, script.url),), 1), True)
    with pytest.raises(AvroSchemaError) as caught:
        reader.decoder(1, b"")
    assert caught.value.text.startswith("[TXNLOG_AVRO.SCHEMA] schema id 1: ")
    assert caught.value.text.count("TXNLOG_AVRO") == 1


# Who we are -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "abc"},
            "see bearer.auth.token",
        ),
        (
            {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "u:abc"},
            "see basic.auth.user.info",
        ),
        ({"user": "u:abc@"}, "see the user in schema.registry.url"),
        (
            {},
            "see basic.auth.credentials.source and bearer.auth.credentials.source, which are not "
            "set",
        ),
    ],
    ids=["bearer", "basic", "url", "none"],
)
@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_option_that_says_who_we_are(
    script: Scripted, client: Made, options: dict[str, str], said: str, status: int
) -> None:
    script.answers = [(status, {"error_code": status, "message": "no"})]
    given = dict(options)
    url = script.url.replace("://", "://" + given.pop("user", ""))
    with pytest.raises(RegistryError) as caught:
        client(url, **given).schema(1)
    assert caught.value.text.endswith(f"with HTTP {status}: {said}")
    assert "abc" not in caught.value.text


# What is kept ---------------------------------------------------------------------------------


def test_a_schema_that_is_kept_is_no_schema_of_another_type(script: Scripted, client: Made) -> None:
    registry = client(script.url)
    assert registry.schema(1) == SCHEMA
    for _ in range(2):
        with pytest.raises(RegistryError, match="the schema id 1 is a schema of type AVRO, and"):
            registry.schema(1, PROTOBUF)
    assert registry.schema(1) == SCHEMA


def test_the_latest_schema_is_asked_for_once_where_it_is_to_be_kept(
    script: Scripted, client: Made
) -> None:
    registry = client(script.url)
    assert registry.latest("sales", keep=True) == (1, SCHEMA)
    newer = SCHEMA.replace("int", "long")
    script.registry.register("sales", newer)
    assert registry.latest("sales", keep=True) == (1, SCHEMA)
    assert len(script.asked) == 1
    assert registry.latest("sales") == (2, newer)
    assert registry.latest("sales", keep=True) == (2, newer), "what was asked last is kept"
    assert len(script.asked) == 2
