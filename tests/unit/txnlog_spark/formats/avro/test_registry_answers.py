"""Answers of a schema registry to `to_avro`, and the errors that describe them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from txnlog_spark.formats.avro_functions import to_avro
from txnlog_spark.formats.errors import MalformedAvro, RegistryError, UnknownSchema

SCHEMA = json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "int"}]})


class Answering:
    """Answers each request alike, with a header Location."""

    def __init__(self, status: int, location: str) -> None:
        self.asked: list[str] = []
        body = json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()
        answering = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self) -> None:
                answering.asked.append(self.path)
                self.send_response(status)
                self.send_header("Location", location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing to the terminal."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def other() -> Iterator[Answering]:
    made = Answering(200, "")
    yield made
    made.end()


@pytest.fixture
def registry(request: pytest.FixtureRequest, other: Answering) -> Iterator[Answering]:
    made = Answering(request.param, other.url)
    yield made
    made.end()


def write_to(registry: Answering, schema: str = SCHEMA, **more: str) -> None:
    options = {"schema.registry.url": registry.url, "topic": "sales"}
    to_avro("value", schema, options | {n.replace("_", "."): v for n, v in more.items()})


@pytest.mark.parametrize("registry", [404], indirect=True)
def test_a_schema_that_is_not_registered_names_the_option_that_registers_it(
    registry: Answering,
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
    registry: Answering, other: Answering
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
