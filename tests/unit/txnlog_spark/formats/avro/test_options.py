"""The options of both functions, and what a wrong one says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pyspark.errors import PySparkTypeError

from txnlog_spark.avro import from_avro, to_avro
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.avro_functions import read_options
from txnlog_spark.formats.registry.client import Registry
from txnlog_spark.options.registry import REGISTRY_OPTIONS, URL

ADDRESS = {URL: "http://127.0.0.1:9"}
BASIC = "basic.auth.credentials.source"
USER_INFO = "basic.auth.user.info"


def test_names_of_options_in_any_case_and_with_the_prefix_of_the_registry() -> None:
    options = read_options({"MODE": "permissive", "avroschema": "int"}, reading=True)
    assert options.permissive
    assert options.avro_schema == "int"
    given = ADDRESS | {"schema.registry.basic.auth.user.info": "a:b"}
    assert read_options(given, reading=False).registry == ADDRESS | {USER_INFO: "a:b"}


def test_the_subject_of_each_strategy() -> None:
    def subject(record: str = "shop.Sale", **more: str) -> str:
        given = ADDRESS | {name.replace("_", "."): value for name, value in more.items()}
        return read_options(given, reading=True).subject(record)

    assert subject(topic="sales") == "sales-value"
    assert subject(topic="sales", isKey="true") == "sales-key"
    strategy = "value_subject_name_strategy"
    assert subject(**{strategy: "a.b.RecordNameStrategy"}) == "shop.Sale"
    assert subject(topic="sales", **{strategy: "TopicRecordNameStrategy"}) == "sales-shop.Sale"
    with pytest.raises(OptionError, match=r"option topic: TopicNameStrategy"):
        subject()
    with pytest.raises(OptionError, match=r"value\.subject\.name\.strategy.*a record's schema"):
        subject("", **{strategy: "RecordNameStrategy"})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"mode": "DROPMALFORMED"}, "mode"),
        ({"avroSchemaUrl": "file:/a"}, "avroSchemaUrl"),
        ({"datetimeRebaseMode": "LEGACY"}, "datetimeRebaseMode"),
        ({"recursiveFieldMaxDepth": "16"}, "recursiveFieldMaxDepth"),
        ({"recursiveFieldMaxDepth": "many"}, "recursiveFieldMaxDepth"),
        ({"enableStableIdentifiersForUnionType": "yes"}, "enableStableIdentifiersForUnionType"),
        ({"topic": "sales"}, "topic"),
        ({USER_INFO: "a:hunter"}, USER_INFO),
        (ADDRESS | {"basic.auth.userinfo": "a:hunter"}, "basic.auth.userinfo"),
        (ADDRESS | {"value.subject.name.strategy": "Mine"}, "value.subject.name.strategy"),
        (
            ADDRESS | {"use.latest.version": "true", "auto.register.schemas": "true"},
            "use.latest.version",
        ),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError) as error:
        read_options(given, reading=True)
    assert error.value.name == name
    assert "hunter" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({URL: "127.0.0.1:8081"}, URL),
        ({URL: "http://bob:hunter@:8081"}, URL),
        ({URL: "http://host:port"}, URL),
        ({BASIC: "SASL_INHERIT"}, BASIC),
        ({BASIC: "USER_INFO"}, USER_INFO),
        ({BASIC: "USER_INFO", USER_INFO: "hunter"}, USER_INFO),
        ({BASIC: "URL"}, BASIC),
        ({USER_INFO: "bob:hunter"}, BASIC),
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, "bearer.auth.credentials.source"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, "bearer.auth.token"),
        ({"http.connect.timeout.ms": "soon"}, "http.connect.timeout.ms"),
        (
            {URL: "https://host", "schema.registry.ssl.truststore.type": "JKS"},
            "schema.registry.ssl.truststore.type",
        ),
        (
            {URL: "https://host", "schema.registry.ssl.keystore.location": "/none"},
            "schema.registry.ssl.keystore.location",
        ),
    ],
)
def test_a_wrong_option_of_the_registry_is_named(given: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError) as error:
        Registry(ADDRESS | given)
    assert error.value.name == name
    assert "hunter" not in str(error.value)


def test_options_that_are_shown_have_no_secret() -> None:
    given = ADDRESS | {name: "hunter" for name in REGISTRY_OPTIONS if name != URL}
    assert "hunter" not in repr(read_options(given, reading=True))


@pytest.mark.parametrize(
    "arguments", [(1, '"int"'), ("value", None), ("value", '"int"', "mode=PERMISSIVE")]
)
def test_arguments_of_another_type_are_refused_as_spark_does(arguments: tuple[Any, ...]) -> None:
    for function in (from_avro, to_avro):
        with pytest.raises(PySparkTypeError, match="INVALID_TYPE"):
            function(*arguments)


def test_the_latest_version_takes_no_schema() -> None:
    options = ADDRESS | {"use.latest.version": "true", "topic": "sales"}
    with pytest.raises(OptionError, match=r"use\.latest\.version.*jsonFormatSchema"):
        to_avro("value", '"int"', options)


def test_without_fastavro_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['fastavro'] = None; import txnlog_spark.avro"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (
        "ImportError: txnlog_spark.avro needs fastavro: install txnlog_spark[avro]" in done.stderr
    )


def test_a_token_of_two_lines_is_refused_and_not_shown() -> None:
    given = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "plan\nted"}
    with pytest.raises(OptionError, match=r"bearer\.auth\.token: one line of ASCII") as error:
        Registry(ADDRESS | given)
    assert "plan" not in str(error.value)
