"""Typed streams with a schema registry: schemas at load, evolution, what is refused and where."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clients.librdkafka import TIMEOUT_S, producer
from support.kafka.memory_registry import MemoryRegistry
from support.spark.avro_cases import encoded
from support.spark.connector import error_of, finish
from support.spark.format_cases import order_file

FIRST = {"type": "record", "name": "shop.Sale", "fields": [{"name": "id", "type": "long"}]}
SECOND = FIRST | {
    "fields": [
        {"name": "note", "type": "string", "default": "none"},
        {"name": "id", "type": "long"},
    ]
}
OTHER = FIRST | {"fields": [{"name": "id", "type": "string"}]}
JSON_SCHEMA = json.dumps(
    {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
)


class Shop:
    """A pipe and a registry in memory; values go in by hand, in Confluent's wire format."""

    def __init__(self, pipe: Any, registry: MemoryRegistry, url: str) -> None:
        self.pipe = pipe
        self.registry = registry
        self.url = url

    def options(self, name: str = "avro", **more: str) -> dict[str, str]:
        given = {"value.format": name, "schema.registry.url": self.url}
        return given | {key.replace("_", "."): value for key, value in more.items()}

    def register(self, schema: dict, side: str = "input") -> int:
        topic = getattr(self.pipe, side)
        return self.registry.register(f"{topic}-value", json.dumps(schema))

    def put(self, schema_id: int, schema: dict, ids: list[Any], header: bytes = b"") -> None:
        """Write values, with the header that has the schema id instead of the id before them."""
        prefix = b"" if header else b"\0" + schema_id.to_bytes(4, "big")
        headers = [("__value_schema_id", header)] if header else []
        rows = [{"id": each, "note": f"n{each}"} for each in ids]
        rows = [{f["name"]: row[f["name"]] for f in schema["fields"]} for row in rows]
        made = producer(self.pipe.bootstrap)
        for value in encoded(rows, schema):
            made.produce(self.pipe.input, prefix + value, headers=headers)
        assert made.flush(TIMEOUT_S) == 0


@pytest.fixture
def shop(pipe) -> Iterator[Shop]:
    registry = MemoryRegistry()
    with registry.server() as server:
        yield Shop(pipe, registry, f"http://{server.address}")


@pytest.fixture
def both_shop(both_pipe) -> Iterator[Shop]:
    registry = MemoryRegistry()
    with registry.server() as server:
        yield Shop(both_pipe, registry, f"http://{server.address}")


def test_a_stream_reads_what_ids_in_headers_and_before_values_wrote_as_the_latest_at_load(
    both_shop: Shop,
) -> None:
    shop = both_shop
    first, second = shop.register(FIRST), shop.register(SECOND)
    shop.put(first, FIRST, [1, 2])
    shop.put(second, SECOND, [3])
    shop.put(first, FIRST, [0], b"\0" + first.to_bytes(4, "big"))  # a value of one zero byte
    shop.put(second, SECOND, [4], b"\1" + shop.registry.guid_of(second).bytes)
    rows = shop.pipe.stream(**shop.options())
    assert rows.schema["value"].dataType.simpleString() == "struct<note:string,id:bigint>"
    shop.register(OTHER)  # the query keeps what it found at load()
    text = rows.selectExpr("value.note || ' ' || value.id AS value")
    finish(shop.pipe.write(text).trigger(availableNow=True).start())
    assert shop.pipe.output_values() == ["n3 3", "n4 4", "none 0", "none 1", "none 2"]


def test_a_schema_id_is_looked_up_once_in_a_process(shop: Shop) -> None:
    first = shop.register(FIRST)
    for number in range(3):
        shop.put(first, FIRST, [number] * 50)
    shop.registry.asked.clear()
    assert shop.pipe.read(**shop.options()).where("value.id >= 0").count() == 150
    asked = [each for each in shop.registry.asked if "/schemas/ids/" in each]
    # Two tasks at once may each be in a worker of its own.
    assert 1 <= len(asked) <= 2


def test_a_schema_that_cannot_be_read_as_the_readers_is_named_by_its_id(shop: Shop) -> None:
    first = shop.register(FIRST)
    other = shop.registry.register("elsewhere", json.dumps(OTHER))
    shop.put(first, FIRST, [1])
    shop.put(other, OTHER, ["x"])
    said = error_of(lambda: shop.pipe.read(**shop.options()).select("value.id").collect())
    wanted = f"schema id {other}: the field id: what is written as string cannot be read as long"
    assert wanted in said
    read = shop.pipe.read(**shop.options(value_mode="PERMISSIVE"))
    (bad,) = read.where("value_error IS NOT NULL").collect()
    assert wanted in bad.value_error
    assert [row.id for row in read.select("value.id").where("id IS NOT NULL").collect()] == [1]


def test_an_id_that_is_not_there_and_bytes_without_an_id_are_malformed(shop: Shop) -> None:
    shop.register(FIRST)
    shop.put(77, FIRST, [1])
    shop.pipe.feed(["x"])
    said = error_of(lambda: shop.pipe.read(**shop.options()).select("value.id").collect())
    assert "the schema id 77" in said or "not Confluent's wire format" in said
    read = shop.pipe.read(**shop.options(value_mode="PERMISSIVE"))
    problems = sorted(row.value_error for row in read.collect())
    assert len(problems) == 2
    assert "not Confluent's wire format" in problems[1] or "not Confluent's" in problems[0]
    assert any("the schema id 77" in each for each in problems)


def test_a_registry_that_does_not_answer_stops_a_permissive_read_too(shop: Shop) -> None:
    shop.put(5, FIRST, [1])
    there = shop.options(value_mode="PERMISSIVE", value_schema=json.dumps(FIRST))
    gone = there | {"schema.registry.url": "http://127.0.0.1:1"}
    said = error_of(lambda: shop.pipe.read(**gone).collect())
    assert "[TXNLOG_SCHEMA_REGISTRY.UNREACHABLE]" in said


def test_a_read_of_several_topics_needs_a_subject_or_a_schema(shop: Shop) -> None:
    two = f"{shop.pipe.input},{shop.pipe.output}"
    said = error_of(lambda: shop.pipe.read(two, **shop.options()))
    assert "option value.subject: set it, or value.schema" in said
    shop.registry.register("sales", json.dumps(FIRST))
    rows = shop.pipe.read(two, **shop.options(value_subject="sales"))
    assert rows.schema["value"].dataType.names == ["id"]


def test_protobuf_messages_of_a_registry_are_read_by_their_numbers_and_names(
    both_shop: Shop,
) -> None:
    shop, file = both_shop, order_file()
    schema = base64.b64encode(file.SerializeToString()).decode()
    shop.registry.register(f"{shop.pipe.output}-value", schema, "PROTOBUF")
    options = shop.options("protobuf", use_latest_version="true", value_columns="id,item")
    rows = shop.pipe.spark.range(4).selectExpr("id", "concat('n', id) AS item")
    shop.pipe.save(rows, **options)
    keys = shop.options("protobuf", use_latest_version="true", value_columns="id")
    shop.pipe.save(rows.limit(1), **keys | {"value.message.name": "shop.Key"})
    raw = [bytes(row.value) for row in shop.pipe.read(shop.pipe.output).collect()]
    first, second = b"\0\0\0\0\1\0", b"\0\0\0\0\1\2\2"  # the message's place in its file
    assert sorted(value.startswith(first) for value in raw) == [False] + [True] * 4
    assert sum(value.startswith(second) for value in raw) == 1
    read = shop.pipe.read(shop.pipe.output, **shop.options("protobuf", value_mode="PERMISSIVE"))
    names = [row.item for row in read.select("value.item").where("item IS NOT NULL").collect()]
    assert sorted(names) == ["n0", "n1", "n2", "n3"]
    (bad,) = read.where("value_error IS NOT NULL").collect()
    said = "it is a message shop.Key of the schema id 1, and not shop.Order"
    assert bad.value_error == said
    said_error = error_of(
        lambda: shop.pipe.read(shop.pipe.output, **shop.options("protobuf")).collect()
    )
    assert said in said_error


def sales_file(*names: str) -> str:
    """A Protobuf file in base64 whose first message has these fields of text, numbered from 1."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto2")
    field = descriptor_pb2.FieldDescriptorProto
    sale = file.message_type.add(name="Sale")
    for number, name in enumerate(names, 1):
        kind, label = field.TYPE_STRING, field.LABEL_OPTIONAL
        sale.field.add(name=name, number=number, type=kind, label=label)
    return base64.b64encode(file.SerializeToString()).decode()


def sales_schema(*names: str) -> str:
    """A JSON Schema with these fields of text."""
    properties = {name: {"type": "string"} for name in names}
    return json.dumps({"type": "object", "properties": properties})


@pytest.mark.parametrize(("name", "schema"), [("json", sales_schema), ("protobuf", sales_file)])
def test_values_of_an_older_and_of_a_newer_schema_are_read_as_the_latest(
    both_shop: Shop, name: str, schema: Callable[..., str]
) -> None:
    shop = both_shop
    subject = f"{shop.pipe.output}-value"
    options = shop.options(name, value_columns="*", use_latest_version="true")
    for columns in (("item", "gone"), ("item", "gone", "note")):
        shop.registry.register(subject, schema(*columns), name.upper())
        row = [tuple(f"{column} {len(columns)}" for column in columns)]
        made = shop.pipe.spark.createDataFrame(row, ", ".join(f"{c} STRING" for c in columns))
        shop.pipe.save(made, **options)
    shop.registry.register(subject, schema("item", "gone", "note", "new"), name.upper())
    wanted = shop.options(name, value_fields="item,note,new")
    rows = shop.pipe.stream(subscribe=shop.pipe.output, **wanted)
    text = rows.selectExpr("concat_ws('|', value.item, value.note, value.new) AS value")
    query = shop.pipe.write(text, topic=shop.pipe.input)
    finish(query.trigger(availableNow=True).start())
    found = sorted(bytes(row.value).decode() for row in shop.pipe.read().collect())
    assert found == ["item 2", "item 3|note 3"]


# Writing --------------------------------------------------------------------------------------


def sales(shop: Shop) -> Any:
    return shop.pipe.spark.range(4).selectExpr("id", "concat('n', id) AS note")


def test_a_write_registers_when_asked_and_a_read_finds_it(both_shop: Shop) -> None:
    shop = both_shop
    columns = {"value.columns": "*"}
    said = error_of(lambda: shop.pipe.save(sales(shop), **shop.options(), **columns))
    assert "[TXNLOG_SCHEMA_REGISTRY.UNKNOWN_SCHEMA]" in said
    assert "auto.register.schemas=true" in said
    shop.pipe.save(sales(shop), **shop.options(auto_register_schemas="true"), **columns)
    read = shop.pipe.read(shop.pipe.output, **shop.options())
    assert sorted(row.note for row in read.select("value.note").collect()) == [
        "n0",
        "n1",
        "n2",
        "n3",
    ]


def test_a_write_takes_the_latest_schema_and_says_what_does_not_fit_it(shop: Shop) -> None:
    shop.register(SECOND, "output")
    options = shop.options(use_latest_version="true", value_columns="id,note")
    shop.pipe.save(sales(shop), **options)
    assert shop.pipe.read(shop.pipe.output, **shop.options()).count() == 4
    odd = sales(shop).selectExpr("id", "array(note) AS note")
    said = error_of(lambda: shop.pipe.save(odd, **options))
    assert "the column note" in said
    assert "cannot be written as Avro string" in said
    more = sales(shop).selectExpr("id", "note", "1 AS extra")
    said = error_of(lambda: shop.pipe.save(more, **options | {"value.columns": "*"}))
    assert "the column extra has no field in the Avro record shop.Sale" in said
    empty = sales(shop).selectExpr("id", "nullif(note, 'n2') AS note")
    said = error_of(lambda: shop.pipe.save(empty, **options))
    assert "the column note is null, which its Avro type does not have" in said
    assert shop.pipe.read(shop.pipe.output).count() == 4, "nothing of the others"


def test_the_micro_batches_of_a_query_ask_for_the_latest_schema_once(shop: Shop) -> None:
    shop.register(FIRST, "output")
    for number in range(3):
        shop.pipe.feed([number])
    rows = shop.pipe.stream(maxOffsetsPerTrigger="1").selectExpr("offset AS id")
    write = shop.pipe.write(rows, **shop.options(use_latest_version="true", value_columns="id"))
    query = write.trigger(availableNow=True).start()
    finish(query)
    assert len(query.recentProgress) >= 3
    assert len(shop.registry.asked) == 1


def test_the_subject_is_named_by_the_strategy_or_by_the_option(shop: Shop) -> None:
    shop.registry.register("shop.Sale", json.dumps(SECOND))
    options = shop.options(value_schema=json.dumps(SECOND), value_columns="id,note")
    by_record = {"value.subject.name.strategy": "io.confluent.RecordNameStrategy"}
    shop.pipe.save(sales(shop), **options, **by_record)
    said = error_of(lambda: shop.pipe.save(sales(shop), **options))
    assert f"this schema under the subject {shop.pipe.output}-value" in said
    shop.pipe.save(sales(shop), **options, **{"value.subject": "shop.Sale"})
    read = shop.pipe.read(shop.pipe.output, **shop.options(value_subject="shop.Sale"))
    assert read.count() == 8


def test_a_schema_that_the_registry_refuses_is_one_line(shop: Shop) -> None:
    shop.register(SECOND, "output")
    shop.registry.closed.add(f"{shop.pipe.output}-value")
    options = shop.options(auto_register_schemas="true", value_columns="*")
    said = error_of(lambda: shop.pipe.save(sales(shop), **options))
    assert "with HTTP 409: Schema being registered is incompatible (409)" in said


def test_json_with_a_json_schema_of_the_registry_goes_round(both_shop: Shop) -> None:
    shop = both_shop
    shop.registry.register(f"{shop.pipe.output}-value", JSON_SCHEMA, "JSON")
    options = shop.options("json", value_columns="*", use_latest_version="true")
    shop.pipe.save(sales(shop), **options)
    raw = shop.pipe.read(shop.pipe.output).collect()
    assert {bytes(row.value)[:5] for row in raw} == {b"\0\0\0\0\1"}
    read = shop.pipe.read(shop.pipe.output, **shop.options("json"))
    assert read.schema["value"].dataType.simpleString() == "struct<id:bigint,note:string>"
    assert sorted(row.id for row in read.select("value.id").collect()) == [0, 1, 2, 3]
    odd = sales(shop).selectExpr("id", "note AS remark")
    said = error_of(lambda: shop.pipe.save(odd, **options))
    assert "option column remark='string': one of the fields of the schema: id, note" in said
    stray = shop.options("avro")
    said = error_of(lambda: shop.pipe.read(shop.pipe.output, **stray))
    assert "is a schema of type JSON, and not AVRO" in said
