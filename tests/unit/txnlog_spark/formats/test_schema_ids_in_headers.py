"""Records whose schema id is in a header, as Confluent's HeaderSchemaIdSerializer writes them."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fastavro
import pytest
from support.kafka.memory_registry import MemoryRegistry
from support.spark.protobuf_cases import FileOfMessages

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.codec import record_headers
from txnlog_spark.codec.decode import FetchedRange, iter_decoded
from txnlog_spark.errors import MalformedValue
from txnlog_spark.formats.errors import UnknownSchema
from txnlog_spark.formats.read_formats import read_formats
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options
from txnlog_spark.source.columns import to_arrow

KEY, VALUE = "__key_schema_id", "__value_schema_id"
LETTERS = "abcd"


def record(name: str, **fields: tuple[Any, Any]) -> dict[str, Any]:
    made = [{"name": n, "type": type_, "default": value} for n, (type_, value) in fields.items()]
    return {"type": "record", "name": name, "fields": made}


NULLS = {letter: (["null", "string"], None) for letter in LETTERS}
SALE = record("Sale", id=("long", 0), n=("string", ""))
SALE_BEHIND_NULLS = record("Sale", **NULLS, id=("long", 0), n=("string", ""))
OTHER = record("Sale", n=("string", ""))


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def url(registry: MemoryRegistry) -> Iterator[str]:
    with registry.server() as server:
        yield f"http://{server.address}"


def read(url: str, records: Sequence[Record], headers: bool = False, **options: str) -> list[Any]:
    """The rows of these records; options with `_` for a dot."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    given |= {"path": "p", "subscribe": "t", "schema.registry.url": url}
    formats = read_formats(parse_options(given, Use.READ_BATCH))
    ranges = [FetchedRange(encode_batch(list(records)), 0, 2**62, None)]
    names = formats.id_headers
    (columns,) = iter_decoded(ranges, include_headers=headers, header_names=names)
    rows: list[Any] = to_arrow(columns, [TopicPartition("t", 0)], formats).to_pylist()
    return rows


def by_id(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def by_guid(schema_id: int) -> bytes:
    return b"\1" + MemoryRegistry().guid_of(schema_id).bytes


BOTH = pytest.mark.parametrize("header", [by_id, by_guid])
Header = Callable[[int], bytes]


# Avro -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("side", ["key", "value"])
def test_the_schema_of_a_record_is_the_one_in_its_header(
    registry: MemoryRegistry, url: str, header: Header, side: str
) -> None:
    sale = registry.register(f"t-{side}", json.dumps(SALE))
    sides = {"key": b"k", "value": b"v", side: avro(SALE, {"id": 7, "n": "x"})}
    rows = [Record(**sides, headers=((f"__{side}_schema_id", header(sale)),))]
    (row,) = read(url, rows, **{f"{side}_format": "avro"})
    assert row[side] == {"id": 7, "n": "x"}


@BOTH
def test_bytes_of_a_value_are_no_schema_id_where_a_header_has_it(
    registry: MemoryRegistry, url: str, header: Header
) -> None:
    registry.register("t-value", json.dumps(OTHER))
    schema_id = registry.register("t-value", json.dumps(SALE_BEHIND_NULLS))
    wanted = dict.fromkeys(LETTERS) | {"id": 1, "n": "x"}
    value = avro(SALE_BEHIND_NULLS, wanted)
    assert value[:4] == bytes(4), "the value begins as Confluent's wire format does"
    rows = read(
        url, [Record(None, value, headers=((VALUE, header(schema_id)),))], value_format="avro"
    )
    assert rows[0]["value"] == wanted
    assert not any(path.endswith("/schemas/ids/2") for path in registry.asked[2:])


def test_prefixes_ids_and_guids_of_several_schemas_in_one_topic_stay_in_their_places(
    registry: MemoryRegistry, url: str
) -> None:
    first = registry.register("t-value", json.dumps(OTHER))
    sale = registry.register("t-value", json.dumps(SALE))
    rows, wanted = [], []
    for at in range(60):
        schema_id, schema = [(first, OTHER), (sale, SALE)][at % 2]
        value = avro(schema, {"id": at, "n": f"n{at}"})
        header = [None, by_id, by_guid][at % 3]
        noise = (("trace", b"\0\0\0\0\7"),) * (at % 4)
        if at % 10 == 9:
            rows.append(Record(None, None, headers=((VALUE, by_guid(sale)),)))
            wanted.append(None)
            continue
        if header is None:
            rows.append(Record(None, by_id(schema_id) + value, headers=noise))
        else:
            rows.append(Record(None, value, headers=(*noise, (VALUE, header(schema_id)), *noise)))
        wanted.append({"id": at if at % 2 else 0, "n": f"n{at}"})
    for few in (0, 100):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(record_headers, "FEW", few)
            found = read(url, rows, value_format="avro")
        assert [row["value"] for row in found] == wanted
    asked = [path for path in registry.asked if "/schemas/" in path]
    assert len(asked) == len(set(asked)), "each schema is asked for once"


def test_the_last_of_several_headers_counts_and_the_one_of_the_other_side_does_not(
    registry: MemoryRegistry, url: str
) -> None:
    registry.register("t-value", json.dumps(OTHER))
    sale = registry.register("t-value", json.dumps(SALE))
    value = avro(SALE, {"id": 7, "n": "x"})
    headers = ((VALUE, by_id(1)), (VALUE, by_guid(sale)), (KEY, by_id(1)))
    rows = [
        Record(None, value, headers=headers),
        Record(None, by_id(sale) + value, headers=((KEY, by_id(1)),)),
        Record(None, by_id(sale) + value, headers=((VALUE.upper(), by_id(1)), (f"{VALUE}2", b""))),
    ]
    assert [row["value"] for row in read(url, rows, value_format="avro")] == [
        {"id": 7, "n": "x"}
    ] * 3


def test_the_headers_are_a_column_as_before_where_they_are_wanted(
    registry: MemoryRegistry, url: str
) -> None:
    sale = registry.register("t-value", json.dumps(SALE))
    header = (VALUE, by_guid(sale))
    rows = [Record(None, avro(SALE, {"id": 7, "n": "x"}), headers=(header,)), Record(None, None)]
    found = read(url, rows, headers=True, value_format="avro")
    assert found[0]["headers"] == [{"key": VALUE, "value": header[1]}]
    assert (found[0]["value"]["id"], found[1]["headers"]) == (7, None)
    assert "headers" not in read(url, rows, value_format="avro")[0]


NO_ID = {
    "null": None,
    "empty": b"",
    "cut id": b"\0\0\0\1",
    "cut GUID": by_guid(1)[:-1],
    "another byte": b"\2" + bytes(16),
    "text": b"1",
}


@pytest.mark.parametrize("content", NO_ID.values(), ids=NO_ID)
def test_a_header_without_a_schema_id_is_named_and_no_prefix_is_looked_for(
    registry: MemoryRegistry, url: str, content: bytes | None
) -> None:
    schema_id = registry.register("t-value", json.dumps(SALE))
    value = by_id(schema_id) + avro(SALE, {"id": 7, "n": "x"})
    rows = [Record(None, value, headers=((VALUE, content),)), Record(None, value)]
    with pytest.raises(MalformedValue, match=f"its header {VALUE} has"):
        read(url, rows, value_format="avro")
    bad, good = read(url, rows, value_format="avro", value_mode="PERMISSIVE")
    assert (bad["value"], bad["value_bytes"], good["value"]["id"]) == (None, value, 7)
    assert VALUE in bad["value_error"]


@BOTH
def test_a_schema_in_a_header_that_the_registry_does_not_have_is_named(
    registry: MemoryRegistry, url: str, header: Header
) -> None:
    registry.register("t-value", json.dumps(SALE))
    rows = [Record(None, avro(SALE, {"id": 7, "n": "x"}), headers=((VALUE, header(9)),))]
    what = {by_id: "id 9", by_guid: f"GUID {registry.guid_of(9)}"}[header]
    with pytest.raises(UnknownSchema, match=f"the schema {what}"):
        read(url, rows, value_format="avro")
    (bad,) = read(url, rows, value_format="avro", value_mode="PERMISSIVE")
    assert f"the schema {what}" in bad["value_error"]


def test_a_name_in_a_value_alone_is_no_header(registry: MemoryRegistry, url: str) -> None:
    sale = registry.register("t-value", json.dumps(SALE))
    value = by_id(sale) + avro(SALE, {"id": 7, "n": VALUE})
    for headers in ((), (("trace", b""),)):
        (row,) = read(url, [Record(None, value, headers=headers)], value_format="avro")
        assert row["value"] == {"id": 7, "n": VALUE}


def test_without_a_registry_a_header_says_nothing_and_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txnlog_spark.codec.decode.decode_headers", None)
    values = {"path": "p", "subscribe": "t", "value.format": "json", "value.schema": "id int"}
    formats = read_formats(parse_options(values, Use.READ_BATCH))
    batch = encode_batch([Record(None, b'{"id": 7}', headers=((VALUE, by_id(1)),))])
    ranges = [FetchedRange(batch, 0, 2**62, None)]
    (columns,) = iter_decoded(ranges, header_names=formats.id_headers)
    assert to_arrow(columns, [TopicPartition("t", 0)], formats).to_pylist()[0]["value"] == {"id": 7}


def test_records_without_the_header_have_no_headers_read(
    registry: MemoryRegistry, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnlog_spark.codec.decode.decode_headers", None)
    sale = registry.register("t-value", json.dumps(SALE))
    value = by_id(sale) + avro(SALE, {"id": 7, "n": "x"})
    rows = [Record(None, value, headers=(("traceparent", b"00-1"),)), Record(None, value)]
    assert [row["value"]["id"] for row in read(url, rows, value_format="avro")] == [7, 7]


# JSON and Protobuf ----------------------------------------------------------------------------


@BOTH
def test_json_with_the_header_has_no_prefix(
    registry: MemoryRegistry, url: str, header: Header
) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    schema_id = registry.register("t-value", json.dumps(schema), "JSON")
    rows = [
        Record(None, b'{"id": 7}', headers=((VALUE, header(schema_id)),)),
        Record(None, by_id(schema_id) + b'{"id": 8}'),
        Record(None, b'{"id": 9}', headers=((VALUE, b"x"),)),
        Record(None, b'{"id": 9}'),
    ]
    found = read(url, rows, value_format="json", value_mode="PERMISSIVE")
    assert [row["value"] for row in found] == [{"id": 7}, {"id": 8}, None, None]
    assert VALUE in found[2]["value_error"]
    assert "not Confluent's wire format" in found[3]["value_error"]


@BOTH
def test_protobuf_with_the_header_has_the_indexes_of_the_message_in_it(
    registry: MemoryRegistry, url: str, header: Header
) -> None:
    file = FileOfMessages("proto3")
    file.message("Sale", "int64 id = 1")
    file.message("Other", "int64 id = 1")
    text = base64.b64encode(file.proto.SerializeToString()).decode()
    schema_id = registry.register("t-value", text, "PROTOBUF")
    content = header(schema_id)
    rows = [
        Record(None, b"\x08\x07", headers=((VALUE, content + b"\0"),)),
        Record(None, b"\x08\x08", headers=((VALUE, content + b"\2\0"),)),
        Record(None, by_id(schema_id) + b"\0\x08\x09", headers=(("other", b""),)),
        Record(None, b"\x08\x07", headers=((VALUE, content + b"\2\2"),)),
        Record(None, by_id(schema_id) + b"\0\x08\x09", headers=((VALUE, content),)),
        Record(None, b"", headers=((VALUE, content + b"\0"),)),
    ]
    found = read(url, rows, value_format="protobuf", value_mode="PERMISSIVE")
    ids = [row["value"] and row["value"]["id"] for row in found]
    assert ids == [7, 8, 9, None, None, None]
    assert found[5]["value"] == {"id": None}
    assert "it is a message shop.Other of the schema" in found[3]["value_error"]
    assert "behind the schema id, not a message" in found[4]["value_error"]
    assert struct.pack(">I", schema_id) in content or header is by_guid
