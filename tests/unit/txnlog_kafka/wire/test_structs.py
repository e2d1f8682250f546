"""Structs: slots, defaults, equality; and the definitions that they are made from."""

from __future__ import annotations

from typing import Any

import pytest

from txnlog_kafka.wire.decoder import decode_message
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.schema import NEVER, parse_versions, schema_of
from txnlog_kafka.wire.structs import message_class

FETCH = APIS[ApiKey.FETCH].request


def test_a_field_that_there_is_not_is_refused_at_once() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        FETCH(no_such=1)
    with pytest.raises(AttributeError, match="FetchRequest has no field 'no_such'"):
        FETCH().no_such  # noqa: B018


def test_an_empty_list_by_default_is_nobody_elses() -> None:
    message = FETCH()
    message.topics.append("not kept")
    assert (message.topics, FETCH().topics) == ([], [])


def test_structs_are_equal_by_what_they_have() -> None:
    assert FETCH(max_wait_ms=1) == FETCH(max_wait_ms=1, rack_id="")
    assert FETCH(max_wait_ms=1) != FETCH(max_wait_ms=2)
    assert FETCH.FetchTopic() != FETCH()
    with pytest.raises(TypeError, match="unhashable"):
        hash(FETCH())


def test_a_struct_shows_its_fields() -> None:
    topic = APIS[ApiKey.METADATA].request.MetadataRequestTopic(name="t")
    assert repr(topic) == "MetadataRequestTopic(topic_id=None, name='t')"


@pytest.mark.parametrize(
    ("text", "versions"),
    [("3+", (3, 32_767)), ("1-4", (1, 4)), ("2", (2, 2)), ("none", NEVER), (None, NEVER)],
)
def test_versions_are_read(text: str | None, versions: tuple[int, int]) -> None:
    assert parse_versions(text) == versions


def test_a_definition_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="NoSuchRequest"):
        message_class("NoSuchRequest")


DEFINITION: dict[str, Any] = {
    "type": "data", "name": "Thing", "validVersions": "0-1", "flexibleVersions": "1+",
    "commonStructs": [{"name": "Part", "fields": [
        {"name": "Size", "type": "int32", "versions": "0+", "default": "0x10"}]}],
    "fields": [
        {"name": "IsNew", "type": "bool", "versions": "0+", "default": "true"},
        {"name": "Whole", "type": "Part", "versions": "1+", "nullableVersions": "1+",
         "default": "null"},
        {"name": "Parts", "type": "[]Part", "versions": "0+"},
        {"name": "Share", "type": "float64", "versions": "1+", "taggedVersions": "1+", "tag": 3,
         "default": "0.5"},
    ],
}  # fmt: skip


def test_common_structs_defaults_and_tags_of_a_definition() -> None:
    struct = schema_of(DEFINITION).struct
    fields = {field.name: field for field in struct.fields}
    assert {name: field.default for name, field in fields.items()} == {
        "is_new": True, "whole": None, "parts": [], "share": 0.5,
    }  # fmt: skip
    assert fields["parts"].struct == fields["whole"].struct
    assert [each.default for each in fields["parts"].struct.fields] == [16]
    assert (list(struct.tagged(1)), list(struct.tagged(0))) == ([3], [])
    assert [field.name for field in struct.untagged(0)] == ["is_new", "parts"]


def test_a_version_that_there_is_not_is_refused() -> None:
    first, last = FETCH.SCHEMA.versions
    for version in (first - 1, last + 1):
        with pytest.raises(ValueError, match=f"no version {version}"):
            encode_message(FETCH(), version)
        with pytest.raises(ValueError, match=f"no version {version}"):
            decode_message(FETCH, version, memoryview(b""), elements_max=1)
