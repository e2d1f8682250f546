"""Answers of a schema registry to `to_avro`, and the errors that describe them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.sockets.http_server import Answering, HttpServer

from txnlog_spark.formats.avro_functions import to_avro
from txnlog_spark.formats.errors import MalformedAvro, RegistryError, UnknownSchema

SCHEMA = json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "int"}]})


class Registry:
    """Answers each request alike, with a header Location."""

    def __init__(self, status: int, location: str = "") -> None:
        self.asked: list[str] = []
        registry = self

        class Handler(Answering):
            def do_GET(self) -> None:  # noqa: N802
                self.body()
                registry.asked.append(self.path)
                answer = {"error_code": 40403, "message": "Schema not found"}
                self.reply(status, answer, Location=location)

            do_POST = do_GET  # noqa: N815

        self.server = HttpServer(Handler)
        self.url = f"http://{self.server.address}"


@pytest.fixture
def other() -> Iterator[Registry]:
    made = Registry(200)
    with made.server:
        yield made


@pytest.fixture
def registry(request: pytest.FixtureRequest, other: Registry) -> Iterator[Registry]:
    made = Registry(request.param, other.url)
    with made.server:
        yield made


def write_to(registry: Registry, schema: str = SCHEMA, **more: str) -> None:
    options = {"schema.registry.url": registry.url, "topic": "sales"}
    to_avro("value", schema, options | {n.replace("_", "."): v for n, v in more.items()})


@pytest.mark.parametrize("registry", [404], indirect=True)
def test_a_schema_that_is_not_registered_names_the_option_that_registers_it(
    registry: Registry,
) -> None:
    with pytest.raises(UnknownSchema) as caught:
        write_to(registry)
    assert caught.value.text == (
        f"[TXNLOG_SCHEMA_REGISTRY.UNKNOWN_SCHEMA] the schema registry {registry.url} does not have "
        "this schema under the subject sales-value: Schema not found (40403). Register it, or set "
        "the option auto.register.schemas=true"
    )
    with pytest.raises(UnknownSchema) as registering:
        write_to(registry, auto_register_schemas="true")
    with pytest.raises(UnknownSchema) as latest:
        write_to(registry, "", use_latest_version="true")
    for each in (registering, latest):
        assert "auto.register.schemas" not in str(each.value)


@pytest.mark.parametrize("registry", [301, 302, 307, 308], indirect=True)
def test_no_redirect_takes_the_password_to_another_host(
    registry: Registry, other: Registry
) -> None:
    login = {
        "basic_auth_credentials_source": "USER_INFO",
        "basic_auth_user_info": "user:a-password",
    }
    with pytest.raises(RegistryError, match=r"refused this schema .* with HTTP 30") as caught:
        write_to(registry, **login)
    assert registry.asked
    assert other.asked == []
    assert "a-password" not in str(caught.value)


def test_a_malformed_value_says_how_its_record_is_found() -> None:
    text = str(MalformedAvro(3, "20 bytes are left"))
    assert "row 3 of an Arrow batch: 20 bytes are left" in text
    assert "mode=PERMISSIVE" in text
    assert "topic, partition and offset" in text
