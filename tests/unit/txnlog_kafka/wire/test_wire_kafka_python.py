"""What is private to kafka-python and used all the same: one test for each use."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from broker_sim import schemas
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.kafka_python import (
    build,
    data_class,
    decode_at,
    password_mechanism,
    schema_of,
    tagged_fields_of,
    token_mechanism,
)
from txnlog_kafka.wire.messages import APIS, ApiKey

ROOT = Path(__file__).resolve().parents[4]
DEFINITIONS = sorted((ROOT / "broker_sim" / "schemas").glob("*.json"))
FETCH = APIS[ApiKey.FETCH]


def test_kafka_python_is_imported_in_one_module_only() -> None:
    found = set()
    for folder in ("txnlog_spark", "txnlog_kafka", "broker_sim", "simulation", "jobs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if any(name.split(".")[0] == "kafka" for name in names):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == {"txnlog_kafka/wire/kafka_python.py"}


def test_a_built_struct_equals_one_of_its_constructor() -> None:
    topic = FETCH.request.FetchTopic
    fields = {"topic": "t", "partitions": []}
    assert build(topic, **fields) == topic(**fields)


def test_a_message_is_decoded_at_the_version_asked_for() -> None:
    response = APIS[ApiKey.API_VERSIONS].response
    body = response(error_code=35, api_keys=[]).encode(version=3)
    # kafka-python's own decoder would take it for one of version 0.
    assert decode_at(response, 3, memoryview(body)).error_code == 35


def test_the_schema_tells_the_fields_of_a_version_and_its_tags() -> None:
    schema = schema_of(FETCH.request)
    assert [field.name for field in schema.untagged_fields(4)][:2] == ["replica_id", "max_wait_ms"]
    assert {tag: field.name for tag, field in tagged_fields_of(schema, 17).items()} == {
        0: "cluster_id",
        1: "replica_state",
    }


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_a_definition_of_ours_makes_a_class_whose_versions_all_round_trip(path: Path) -> None:
    made = data_class(path.stem, "broker_sim.schemas")
    assert getattr(schemas, path.stem).name == made.name == json.loads(path.read_text())["name"]
    first, last = made.valid_versions
    for version in range(first, last + 1):
        fields = {f.name: f.default for f in schema_of(made).untagged_fields(version)}
        fields |= {name: [] for name in fields if name in ("members", "transaction_partitions")}
        data = build(made, **fields)
        decoded = decode_at(made, version, memoryview(encode_message(data, version)))
        assert (decoded, type(decoded)) == (data, made)


def test_a_definition_that_kafka_python_ships_needs_no_package() -> None:
    assert data_class("ConsumerProtocolAssignment").valid_versions[0] == 0


def test_a_password_and_a_token_become_the_bytes_of_their_mechanisms() -> None:
    plain = password_mechanism("PLAIN", "u,=", "p")
    assert (plain.auth_bytes(), plain.is_done()) == (b"\0".join((b"u,=", b"u,=", b"p")), False)
    plain.receive(b"")
    assert plain.is_done()
    assert b"n,,n=u=2C=3D,r=" in password_mechanism("SCRAM-SHA-512", "u,=", "p").auth_bytes()
    bearer = token_mechanism("t", {"pool": "a"})
    assert bearer.auth_bytes() == b"n,,\x01auth=Bearer t\x01pool=a\x01\x01"
