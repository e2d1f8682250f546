"""kafka-python as the oracle: every message in every version, both ways, and every default."""

from __future__ import annotations

import importlib
import json
import pkgutil
import random
from functools import cache
from typing import Any

import kafka.protocol
import pytest
from kafka.protocol.api_data import ApiData
from kafka.protocol.data_container import DataContainer
from support.core.message_build import fill
from support.core.plain_messages import plain

from broker_sim import schemas
from broker_sim.apis import DEFINED_APIS
from txnlog_kafka.wire.decoder import decode_message
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey
from txnlog_kafka.wire.structs import MessageValue, message_class

REMOVED = {"max_num_offsets", "old_style_offsets", "commit_timestamp", "is_default"}
"""Fields of request versions that Kafka 4 has removed."""
KAFKA_PYTHONS_OWN = {("ListOffsetsRequest", "replica_id"), ("CreatePartitionsTopic", "assignments")}
"""Defaults that Kafka's definitions do not have."""
VERSION_IS_A_FIELD = "ConsumerGroupRegularExpressionValue"
"""kafka-python's classes have no field of this name; `test_consumer_records` has its bytes."""
OWN_RECORDS = [
    each for each in vars(schemas).values()
    if isinstance(each, type) and issubclass(each, MessageValue)
    and each.__name__ != VERSION_IS_A_FIELD
]  # fmt: skip
NOT_IN_KAFKA_PYTHON = (
    ApiKey.API_VERSIONS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DELETE_GROUPS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.SHARE_GROUP_HEARTBEAT,
)
"""Messages that kafka-python lacks, or of which it lacks the newest version."""
IN_KAFKA_PYTHON = [key for key in KNOWN_APIS if key not in NOT_IN_KAFKA_PYTHON]
OWN_MESSAGES = [
    each
    for own in (*DEFINED_APIS.values(), *(KNOWN_APIS[key] for key in NOT_IN_KAFKA_PYTHON))
    for each in (own.request, own.response)
]
"""Messages that kafka-python has only by our definitions."""


@cache
def kafka_pythons() -> dict[str, Any]:
    """Its message classes by Kafka's names."""
    found: dict[str, Any] = {}
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" in module.name or "generate" in module.name:
            continue
        found |= {name: each for name, each in vars(importlib.import_module(module.name)).items()
                  if name.endswith(("Request", "Response")) and isinstance(each, type)}  # fmt: skip
    return found


def is_compared(name: str, kind: str) -> bool:
    """Operations are a set in kafka-python, some by another name."""
    return kind != "bitfield" and not name.endswith("authorized_operations") and name not in REMOVED


def of_kafka_python(value: Any) -> Any:
    """A struct of it as a dict."""
    if isinstance(value, list):
        return [of_kafka_python(each) for each in value]
    if not isinstance(value, DataContainer):
        return value
    return {
        name: of_kafka_python(getattr(value, name))
        for name, field in value.fields.items()
        if is_compared(name, field.type_str)
    }


def of_ours(value: Any) -> Any:
    """The same of ours, which is a dict already."""
    if isinstance(value, list):
        return [of_ours(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: of_ours(each) for name, each in value.items() if is_compared(name, "")}


@pytest.mark.parametrize("key", IN_KAFKA_PYTHON, ids=lambda key: key.name)
def test_every_message_in_every_version_is_read_and_written_as_kafka_python_does(
    key: ApiKey,
) -> None:
    api = KNOWN_APIS[key]
    for ours in (api.request, api.response):
        theirs = kafka_pythons()[ours.__name__]
        for version in range(api.version_min, api.version_max + 1):
            rng = random.Random(f"wire/{ours.__name__}/{version}")
            for _ in range(10):
                data = encode_message(fill(ours, version, rng), version)
                flexible = theirs.flexible_version_q(version)
                read = theirs._struct.compiled_decode_from(
                    version, compact=flexible, tagged=flexible, data_class=theirs
                )
                found = read(memoryview(data), 0)[0]
                found._header = found._min_version = found._max_version = None
                assert bytes(found.encode(version=version)) == data
                again = decode_message(ours, version, memoryview(data), elements_max=10_000)
                assert of_ours(plain(again)) == of_kafka_python(found)
                assert encode_message(again, version) == data


@pytest.mark.parametrize("ours", OWN_RECORDS + OWN_MESSAGES, ids=lambda made: made.__name__)
def test_a_definition_of_ours_is_read_and_written_as_kafka_python_does(ours: Any) -> None:
    theirs = own_definition(ours.__name__, _package(ours))
    first, last = ours.SCHEMA.versions
    for version in range(first, last + 1):
        rng = random.Random(f"wire/{ours.__name__}/{version}")
        for _ in range(10):
            data = encode_message(fill(ours, version, rng), version)
            found = theirs.decode(data, version=version, header=False)
            assert found.encode(version=version, header=False) == data
            again = decode_message(ours, version, memoryview(data), elements_max=10_000)
            assert of_ours(plain(again)) == of_kafka_python(found)


def _package(ours: Any) -> str:
    if vars(schemas).get(ours.__name__) is ours:
        return "broker_sim.schemas"
    is_kafkas = ours.API_KEY in NOT_IN_KAFKA_PYTHON
    return "txnlog_kafka.wire.schemas" if is_kafkas else "broker_sim.apis"


def own_definition(name: str, package: str) -> Any:
    """A class of kafka-python's, made from a definition of ours as if it were a record's."""
    if name.startswith("ConsumerProtocol"):
        return type(name, (ApiData,), {})
    definition = json.loads(pkgutil.get_data(package, f"{name}.json") or b"")
    patch = staticmethod(lambda _metaclass, _json: definition | {"type": "data"})
    return type(name, (ApiData,), {"json_patch": patch}, load_json=package)


@pytest.mark.parametrize("key", IN_KAFKA_PYTHON, ids=lambda key: key.name)
def test_what_was_not_given_reads_as_with_kafka_python(key: ApiKey) -> None:
    pairs = [
        (ours(), kafka_pythons()[ours.__name__]())
        for ours in (KNOWN_APIS[key].request, KNOWN_APIS[key].response)
    ]
    while pairs:
        ours, theirs = pairs.pop()
        for field in ours.STRUCT.fields:
            if not is_compared(field.name, field.kind):
                continue
            if field.struct is not None:
                kinds = [getattr(type(each), field.kind) for each in (ours, theirs)]
                pairs.append((kinds[0](), kinds[1]()))
                if not field.is_array:
                    continue
            if (ours.STRUCT.name, field.name) not in KAFKA_PYTHONS_OWN:
                assert getattr(ours, field.name) == getattr(theirs, field.name), field.name


def test_a_messages_class_is_made_once() -> None:
    assert message_class("FetchRequest") is KNOWN_APIS[ApiKey.FETCH].request
