"""The options of formats: what belongs together, and what is said of what does not."""

from __future__ import annotations

import json
import pickle
import sys

import pytest
from pyspark.sql.types import StructType
from support.kafka.memory_registry import MemoryRegistry
from support.spark.format_cases import AVRO, JSON, PROTOBUF, descriptor_path

from txnlog_spark.deadletters import MARK
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.ddl import parse_ddl
from txnlog_spark.formats.errors import AvroSchemaError, UnknownSchema
from txnlog_spark.formats.read_formats import read_formats
from txnlog_spark.formats.schema_ids import header_of
from txnlog_spark.formats.write_formats import write_formats
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options
from txnlog_spark.sink.columns import check_columns
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.source.schema import source_schema

URL = "schema.registry.url"
PATH = {"path": "p"}


def formats(**options: str):
    given = {name.replace("__", "."): value for name, value in options.items()}
    return read_formats(parse_options(PATH | {"subscribe": "t"} | given, Use.READ_BATCH))


def refused(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        read_formats(parse_options(PATH | {"subscribe": "t"} | options, Use.READ_BATCH))
    return caught.value.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value.format": "xml"}, "binary or string or json or avro or protobuf"),
        ({"value.mode": "DROPMALFORMED"}, "failfast or permissive"),
        ({"value.mode": "PERMISSIVE"}, "remove it or set value.format"),
        ({"value.schema": "a int"}, "value.format=binary has none: remove it"),
        ({"key.format": "string", "key.fields": "a"}, "key.format=string has none: remove it"),
        ({"value.format": "json"}, f"set it, or {URL} to take the schema from a registry"),
        ({"value.format": "json", "value.schema": "a in"}, "a schema in DDL with a type in place"),
        ({"value.format": "json", "value.schema": '{"fields": 7}'}, "a schema in JSON"),
        ({"value.format": "json", "value.schema": '{"keyType": 7}'}, "a schema in JSON"),
        (
            {"key.format": "json", "key.schema": "INT"},
            "option key.schema: a JSON value is read as a struct, an array or a map, not as int",
        ),
        (
            {"value.format": "json", "value.schema": "a struct<b: map<int, int>>"},
            "option value.schema: the field a.b is read from JSON as a map with string keys",
        ),
        (
            {"value.format": "json", "value.schema": "MAP<INT, STRING>"},
            "option value.schema: the value is read from JSON as a map with string keys",
        ),
        ({"value.format": "json", "value.schema": "a int", "value.fields": "b"}, "a field of a"),
        ({"value.format": "protobuf", "value.schema": "/none"}, "No such file or directory"),
        ({URL: "http://r:1"}, "set value.format or key.format to avro, json or protobuf"),
        ({"value.format": "string", URL: "http://r:1"}, "remove it, or set value.format or key."),
        ({"value.format": "json", "bearer.auth.token": "x"}, f"has a meaning with {URL} only"),
        ({"value.subject.name.strategy": "Mine"}, "TopicNameStrategy or RecordNameStrategy"),
    ],
)
def test_what_does_not_belong_together_is_one_line(options: dict[str, str], said: str) -> None:
    assert said in refused(options)


def test_a_secret_of_a_registry_is_in_no_text_of_the_settings() -> None:
    options = AVRO.of_value() | {URL: "http://r:1", "basic.auth.user.info": "me:hidden"}
    made = formats(**{name.replace(".", "__"): value for name, value in options.items()})
    assert "hidden" not in repr(made)
    assert "hidden" in str(pickle.dumps(made)), "the tasks have it"
    values = parse_options(PATH | {"topic": "t"} | options, Use.WRITE_BATCH)
    assert "hidden" not in repr(write_formats(values))


@pytest.mark.parametrize("case", [JSON, AVRO, PROTOBUF], ids=lambda case: case.name)
def test_a_reader_goes_to_a_task_and_is_equal_there(case) -> None:
    options = case.of_value(fields="id", mode="PERMISSIVE") | case.of_key()
    made = formats(**{name.replace(".", "__"): value for name, value in options.items()})
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert hash(again) == hash(made)
    schema = source_schema(include_headers=False, formats=made)
    assert schema["value"].dataType.simpleString() == "struct<id:bigint>"
    assert schema.names[-3:] == ["key_bytes", "value_bytes", "value_error"]


@pytest.mark.parametrize(
    "ddl", ["array<int>", "map<string, array<int>>", "array<struct<a: map<string, int>>>"]
)
def test_a_schema_may_be_the_json_of_an_array_or_a_map_type(ddl: str) -> None:
    type_ = parse_ddl(ddl)
    for text in (type_.json(), type_.json().replace("true", "false")):
        assert formats(value__format="json", value__schema=text).type_of("value") == type_


def test_a_schema_may_be_ddl_the_json_of_a_type_or_a_json_schema() -> None:
    ddl = "id BIGINT, name STRING"
    schema = {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    type_ = parse_ddl(ddl)
    for text in (ddl, f"struct<{ddl}>", type_.json(), json.dumps(schema | {"type": "object"})):
        made = formats(value__format="json", value__schema=text)
        assert made.type_of("value") == type_
    strict = StructType.fromJson(json.loads(type_.json().replace("true", "false")))
    assert formats(value__format="json", value__schema=strict.json()).type_of("value") == type_


# Writing --------------------------------------------------------------------------------------


def columns_of(ddl: str, **options: str):
    given = {name.replace("__", "."): value for name, value in options.items()}
    settings = read_sink_settings(PATH | {"topic": "t"} | given, streaming=False)
    return check_columns(parse_ddl(ddl), settings)


@pytest.mark.parametrize(
    ("ddl", "options", "said"),
    [
        ("value struct<a:int>", {}, "cast it before the write, or set value.format"),
        ("value int", {"value__format": "string"}, "a string: cast it before the write"),
        ("a int", {"value__format": "json"}, "column value"),
        (
            "value string, at timestamp_ntz",
            {"timestampColumn": "at"},
            "a column of type timestamp: cast",
        ),
        ("a int", {"value__format": "json", "value__columns": "a,b"}, "columns of the rows: a"),
        (
            "value string",
            {"value__format": "string", "schema__registry__url": "http://r:1"},
            "remove it, or set value.format or key.format",
        ),
        ("a int", {"value__columns": "a"}, "value.format=binary has none: remove it"),
        (
            "a int, b struct<c:map<binary,int>>",
            {"value__format": "json", "value__columns": "*"},
            "option column b.c='binary': a map with keys of this type is not written as JSON",
        ),
        (
            "value string, key struct<c:map<binary,int>>",
            {"key__format": "json"},
            "option column key.c='binary': a map with keys of this type is not written as JSON",
        ),
        (
            "a int",
            {"value__format": "json", "value__columns": "*", "value__schema": "b int"},
            "column a='int': one of the fields of the schema: b",
        ),
        (
            "a int",
            {"value__format": "protobuf", "value__columns": "*"},
            "set it to the path of a descriptor set",
        ),
        (
            "value string",
            {"use__latest__version": "true", "auto__register__schemas": "true"},
            "not with auto.register.schemas=true",
        ),
    ],
)
def test_what_cannot_be_written_is_said_when_the_query_plans(
    ddl: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError) as caught:
        columns_of(ddl, **options)
    assert said in caught.value.text


def test_all_columns_without_another_meaning_are_the_fields() -> None:
    headers = "headers array<struct<key:string,value:binary>>"
    ddl = f"key string, id int, topic string, {headers}, value int"
    made = columns_of(ddl, value__format="json", value__columns="*")
    assert made.value.fields == ("id", "value")
    assert made.key is not None
    assert made.key.writer is None
    both = columns_of(
        "id int, name string",
        value__format="json",
        value__columns="*",
        key__format="json",
        key__columns="id",
    )
    assert both.value.fields == ("id", "name")
    assert both.key.fields == ("id",)


def test_all_columns_where_none_is_a_field_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        columns_of("key string", value__format="json", value__columns="*")
    assert "option value.columns='*': add a column for a field" in caught.value.text


NAMED = {"value__format": "json", "value__columns": "id"}
ALL = {"value__format": "json", "value__columns": "*"}
SAME = {"value__format": "json"}


@pytest.mark.parametrize("name", ["value_bytes", "value_error", "key_bytes", "key_error"])
@pytest.mark.parametrize("type_", ["binary", "string", "bigint"])
def test_all_columns_with_one_that_may_be_of_a_malformed_value_are_refused(
    name: str, type_: str
) -> None:
    for more in ("", ", value struct<id:int>, key string"):
        with pytest.raises(OptionError) as caught:
            columns_of(f"id int, {name} {type_}{more}", **ALL)
        assert (
            f"option value.columns='*': name the fields instead of *: the rows have a column {name}"
            in caught.value.text
        )
        assert "rename or drop the column" in caught.value.text


@pytest.mark.parametrize(
    ("ddl", "options", "type_"),
    [
        ("id int, value_bytes binary", NAMED, "binary"),
        ("id int, value_bytes bigint, value struct<id:int>", NAMED, "bigint"),
        ("value struct<id:int>, value_bytes string", SAME, "string"),
        ("value struct<id:int>, value_bytes bigint", SAME, "bigint"),
    ],
)
def test_a_column_that_cannot_be_the_bytes_of_a_malformed_value_is_refused_by_name(
    ddl: str, options: dict[str, str], type_: str
) -> None:
    with pytest.raises(OptionError) as caught:
        columns_of(ddl, **options)
    assert f"option column value_bytes='{type_}': rename or drop it" in caught.value.text


def test_bytes_of_malformed_values_are_of_dead_letters_where_keys_have_them_too() -> None:
    ddl = "id int, value struct<id:int>, value_bytes binary"
    for options in (NAMED, SAME):
        alone = columns_of(f"{ddl}, value_error string", **options)
        assert (alone.bytes_columns, alone.errors) == ([], ("value_error", "value_bytes"))
        letters = columns_of(f"{ddl}, key binary, key_bytes binary", **options)
        assert (letters.bytes_columns, letters.errors) == (["key_bytes", "value_bytes"], ())
    every = columns_of("id int, key_bytes binary, value_bytes binary", **ALL)
    assert (every.value.fields, every.bytes_columns) == (("id",), ["key_bytes", "value_bytes"])


@pytest.mark.parametrize("left_out", ["key_bytes", "value_bytes", "headers"])
@pytest.mark.parametrize("marked", ["topic", "value"])
def test_rows_of_dead_letters_that_lack_a_column_of_a_letter_are_refused(
    left_out: str, marked: str
) -> None:
    headers = "array<struct<key:string,value:binary>>"
    schema = parse_ddl(
        "topic string, value struct<id:int>, key_bytes binary, value_bytes binary, "
        f"headers {headers}"
    )
    for field in schema.fields:
        field.metadata = {MARK: True} if field.name == marked else {}
    options = {"path": "p", "checkpointLocation": "/tmp/c", "value.format": "json"}
    settings = read_sink_settings(options, streaming=True)
    assert check_columns(schema, settings).bytes_columns == ["key_bytes", "value_bytes"]
    part = StructType([field for field in schema.fields if field.name != left_out])
    with pytest.raises(OptionError, match=f"column {left_out}: select {left_out}, too"):
        check_columns(part, settings)


def test_a_column_that_is_named_as_a_field_is_one_whatever_its_name() -> None:
    ddl = "id int, value_bytes binary, value_error string"
    made = columns_of(ddl, value__format="json", value__columns="id,value_bytes,value_error")
    assert made.value.fields == ("id", "value_bytes", "value_error")
    assert (made.value.bytes_column, made.errors) == (None, ())
    both = columns_of(
        "id int, key_bytes binary, value_bytes binary",
        value__format="json",
        value__columns="id,value_bytes",
    )
    assert (both.value.fields, both.bytes_columns) == (("id", "value_bytes"), [])


def test_a_protobuf_column_that_has_no_field_is_said_when_the_query_plans() -> None:
    options = {"value__format": "protobuf", "value__schema": descriptor_path()}
    with pytest.raises(Exception, match="extra"):
        columns_of("id long, extra int", value__columns="*", **options)


# The latest schema of a registry --------------------------------------------------------------


def record(**fields: str) -> str:
    made = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return json.dumps({"type": "record", "name": "Sale", "fields": made})


def latest_of(url: str, ddl: str = "id long", **options: str) -> bytes:
    """The header, which has the schema's id, that a write puts before its values."""
    given = {"schema__registry__url": url, "use__latest__version": "true"} | options
    made = columns_of(ddl, value__format="avro", value__columns="*", **given)
    return made.value.writer.header


QUERY = {"checkpointLocation": "/tmp/c", "txnVersion": "0"}


def test_the_micro_batches_of_a_query_ask_for_the_latest_schema_once() -> None:
    registry = MemoryRegistry()
    first = registry.register("t-value", record(id="long"))
    with registry.server() as server:
        url = f"http://{server.address}"
        for _ in range(3):
            assert latest_of(url, **QUERY) == header_of(first)
        assert len(registry.asked) == 1
        second = registry.register("t-value", record(id="double"))
        assert latest_of(url, "id double", **QUERY) == header_of(second), "the first does not fit"
        assert latest_of(url, "id double", **QUERY) == header_of(second)
        assert len(registry.asked) == 2


def test_a_batch_write_takes_the_schema_that_is_the_latest_now() -> None:
    registry = MemoryRegistry()
    registry.register("t-value", record(id="long"))
    with registry.server() as server:
        url = f"http://{server.address}"
        assert latest_of(url, **QUERY) == latest_of(url) == header_of(1)
        second = registry.register("t-value", record(id="long").replace("Sale", "Sold"))
        assert latest_of(url) == header_of(second)


def test_what_fits_no_latest_schema_is_refused_and_a_lost_registry_asked_once() -> None:
    registry = MemoryRegistry()
    registry.register("t-value", record(id="long"))
    with registry.server() as server:
        url = f"http://{server.address}"
        with pytest.raises(AvroSchemaError, match="the column id of type string"):
            latest_of(url, "id string", **QUERY)
        with pytest.raises(UnknownSchema):
            latest_of(url, value__subject="none", **QUERY)
        assert len(registry.asked) == 3


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_a_package_that_is_missing_is_said_with_the_python_that_lacks_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = {"avro": "fastavro", "protobuf": "txnlog_spark.formats.protobuf.types"}[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError) as caught:
        formats(value__format=name, value__schema="x")
    assert f"which {sys.executable} does not have" in caught.value.text


@pytest.mark.parametrize(
    ("fields", "type_"),
    [
        ("`service.name`", "struct<service.name:string>"),
        ("a.`x.y`.z", "struct<a:struct<x.y:struct<z:int>>>"),
        ("items.`b.c`, `service.name`", "struct<service.name:string,items:array<struct<b.c:int>>>"),
        ("`a`.`plain`", "struct<a:struct<plain:int>>"),
        ("`tick``ed`", "struct<tick`ed:int>"),
    ],
)
def test_fields_with_dots_in_their_names_are_in_backticks(fields: str, type_: str) -> None:
    schema = (
        "`service.name` string, a struct<`x.y`: struct<z: int, w: int>, plain: int>, "
        "items array<struct<`b.c`: int, d: int>>, `tick``ed` int"
    )
    found = formats(value__format="json", value__schema=schema, value__fields=fields)
    assert found.type_of("value").simpleString() == type_


@pytest.mark.parametrize("fields", ["", " ", "`a", "a..b", ".a", "a.", "`a`b", "``"])
def test_fields_that_are_no_paths_are_refused(fields: str) -> None:
    with pytest.raises(OptionError, match=r"value\.fields"):
        formats(value__format="json", value__schema="a int", value__fields=fields)


def test_a_path_that_leads_nowhere_is_told_of_backticks() -> None:
    schema = "`a.b` int"
    with pytest.raises(OptionError, match="a name with a dot is in backticks"):
        formats(value__format="json", value__schema=schema, value__fields="a.b")
