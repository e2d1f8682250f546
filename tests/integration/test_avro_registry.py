"""`txnlog_spark.avro` with a schema registry: Apicurio, by Confluent's REST interface."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from support.brokers.probe import free_ports
from support.harness.availability import available
from support.kafka.apicurio import Apicurio, PasswordProxy, apicurio_home, make_certificate
from support.spark.avro_cases import encoded

from txnlog_spark.avro import from_avro, to_avro
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.errors import (
    RegistryError,
    RegistryUnreachable,
    UnknownSchema,
)

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

URL = "schema.registry.url"
SECRET = "bob:hunter-two"
FIRST = {"type": "record", "name": "shop.Sale", "fields": [{"name": "id", "type": "long"}]}
SECOND = FIRST | {
    "fields": [
        {"name": "note", "type": "string", "default": "none"},
        {"name": "id", "type": "long"},
    ]
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Iterator[Apicurio]:
    available(apicurio_home)
    with Apicurio(tmp_path_factory.mktemp("apicurio")) as started:
        yield started


@pytest.fixture
def proxy(registry) -> Iterator[PasswordProxy]:
    with PasswordProxy(registry.port, SECRET) as started:
        yield started


@pytest.fixture
def frame(connector_spark):
    def made(values: list[bytes | None]) -> DataFrame:
        return connector_spark.createDataFrame([(value,) for value in values], "value binary")

    return made


@pytest.fixture
def sales(connector_spark) -> DataFrame:
    return connector_spark.range(4).selectExpr("named_struct('id', id) AS value")


def wire(schema_id: int, values: list[dict], schema: dict) -> list[bytes]:
    """Confluent's wire format."""
    return [b"\0" + schema_id.to_bytes(4, "big") + value for value in encoded(values, schema)]


def decoded(rows: DataFrame, schema: str = "", **options: str) -> list[Row | None]:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return [
        row.made for row in rows.select(from_avro("value", schema, given).alias("made")).collect()
    ]


def test_what_is_registered_when_asked_is_read_by_the_subjects_latest(
    registry, sales, unique
) -> None:
    topic = unique("sales")
    options = {URL: registry.url, "topic": topic, "auto.register.schemas": "true"}
    written = sales.select(to_avro("value", json.dumps(FIRST), options).alias("value"))
    schema_id = registry.register(f"{topic}-value", FIRST)  # the same again: no other version
    assert [bytes(row.value) for row in written.collect()] == wire(
        schema_id, [{"id": n} for n in range(4)], FIRST
    )
    assert decoded(written, schema_registry_url=registry.url, topic=topic) == [
        Row(id=n) for n in range(4)
    ]


def test_the_schema_of_the_columns_type_is_registered_as_well(registry, sales, unique) -> None:
    topic = unique("sales")
    options = {URL: registry.url, "topic": topic, "auto.register.schemas": "true", "isKey": "true"}
    written = sales.select(to_avro("value", options=options).alias("value"))
    assert len(written.collect()) == 4
    assert decoded(written, schema_registry_url=registry.url, topic=topic, isKey="true") == [
        Row(id=n) for n in range(4)
    ]
    assert f"{topic}-key" in registry.subjects()


def test_nothing_is_registered_unasked(registry, sales, unique) -> None:
    topic = unique("sales")
    options = {URL: registry.url, "topic": topic}
    with pytest.raises(UnknownSchema, match=f"this schema under the subject {topic}-value"):
        to_avro("value", json.dumps(FIRST), options)
    with pytest.raises(PySparkException, match="UNKNOWN_SCHEMA"):
        sales.select(to_avro("value", options=options)).collect()
    assert f"{topic}-value" not in registry.subjects()


def test_the_latest_version_is_written_when_asked(registry, connector_spark, unique) -> None:
    topic = unique("sales")
    registry.register(f"{topic}-value", FIRST)
    latest = registry.register(f"{topic}-value", SECOND)
    rows = connector_spark.sql("SELECT named_struct('id', 7L, 'note', 'n') AS value")
    options = {URL: registry.url, "topic": topic, "use.latest.version": "true"}
    made = rows.select(to_avro("value", "", options).alias("value")).collect()
    assert [bytes(row.value) for row in made] == wire(latest, [{"id": 7, "note": "n"}], SECOND)


def test_a_query_writes_avro_into_a_topic_which_a_read_decodes(registry, pipe) -> None:
    options = {URL: registry.url, "topic": pipe.output, "auto.register.schemas": "true"}
    pipe.feed(range(40))
    sale = "struct(CAST(CAST(value AS STRING) AS LONG) AS id) AS sale"
    value = to_avro("sale", json.dumps(FIRST), options).alias("value")
    pipe.copy(transform=lambda rows: rows.selectExpr("key", sale).select("key", value))
    rows = decoded(pipe.read(pipe.output), schema_registry_url=registry.url, topic=pipe.output)
    assert sorted(row.id for row in rows) == list(range(40))


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "shop.Sale"),
        ("TopicRecordNameStrategy", "sales-shop.Sale"),
    ],
)
def test_the_subject_is_named_by_the_strategy(registry, sales, strategy, subject) -> None:
    options = {URL: registry.url, "topic": "sales", "auto.register.schemas": "true"}
    options["value.subject.name.strategy"] = strategy
    assert sales.select(to_avro("value", json.dumps(FIRST), options)).count() == 4
    assert subject in registry.subjects()


def test_each_value_is_read_with_the_schema_it_names(registry, frame, unique) -> None:
    subject = unique("sales") + "-value"
    first, second = registry.register(subject, FIRST), registry.register(subject, SECOND)
    old = wire(first, [{"id": n} for n in range(50)], FIRST)
    new = wire(second, [{"id": n, "note": str(n)} for n in range(50)], SECOND)
    values = [value for pair in zip(old, new, strict=True) for value in pair]
    rows = decoded(frame([None, *values]), json.dumps(SECOND), schema_registry_url=registry.url)
    expected = [row for n in range(50) for row in (Row(note="none", id=n), Row(note=str(n), id=n))]
    assert rows == [None, *expected]


def test_an_unknown_id_and_another_format_are_refused_or_null(registry, frame, unique) -> None:
    schema_id = registry.register(unique("sales") + "-value", FIRST)
    good = wire(schema_id, [{"id": 1}], FIRST)
    unknown, foreign = wire(999_999, [{"id": 1}], FIRST), [b"{}", b"", b"\x01" + good[0][1:]]
    given = {"schema_registry_url": registry.url}
    with pytest.raises(PySparkException, match="does not have the schema id 999999"):
        decoded(frame(good + unknown), json.dumps(FIRST), **given)
    with pytest.raises(PySparkException, match="not Confluent's wire format"):
        decoded(frame(good + foreign), json.dumps(FIRST), **given)
    rows = decoded(
        frame([*unknown, *foreign, *good, good[0][:5]]),
        json.dumps(FIRST),
        mode="PERMISSIVE",
        **given,
    )
    assert rows == [Row(id=None)] * 4 + [Row(id=1), Row(id=None)]


def test_an_unreachable_registry_is_an_error_in_every_mode(frame) -> None:
    address = f"http://{SECRET}@127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(RegistryUnreachable, match=rf"option {URL} .*http://127.*refused") as error:
        to_avro("value", json.dumps(FIRST), {URL: address, "topic": "sales"})
    assert "hunter" not in str(error.value)
    rows = frame(wire(1, [{"id": 1}], FIRST))
    with pytest.raises(PySparkException, match="UNREACHABLE") as failed:
        decoded(rows, json.dumps(FIRST), mode="PERMISSIVE", schema_registry_url=address)
    assert "hunter" not in str(failed.value)


def test_the_next_address_is_asked_when_the_first_is_down(registry, frame, unique) -> None:
    schema_id = registry.register(unique("sales") + "-value", FIRST)
    down = f"http://127.0.0.1:{free_ports(1)[0]}"
    rows = frame(wire(schema_id, [{"id": 1}], FIRST))
    given = {"schema_registry_url": f"{down}, {registry.url}"}
    assert decoded(rows, json.dumps(FIRST), **given) == [Row(id=1)]


def test_tls_with_the_authority_that_is_named(registry, frame, unique, tmp_path) -> None:
    topic = unique("sales")
    registry.register(f"{topic}-value", FIRST)
    options = {URL: registry.tls_url, "topic": topic}
    ssl = "schema.registry.ssl."
    for trusted in (
        {f"{ssl}truststore.location": str(registry.certificate)},
        {f"{ssl}truststore.certificates": registry.certificate.read_text()},
    ):
        from_avro("value", "", options | trusted)
    other = tmp_path / "other.pem"
    make_certificate(tmp_path / "other.p12", other)
    for untrusted in ({}, {f"{ssl}truststore.location": str(other)}):
        with pytest.raises(RegistryUnreachable, match=r"not trusted .*truststore\.location"):
            from_avro("value", "", options | untrusted)
    trusted = {f"{ssl}truststore.location": str(registry.certificate)}
    by_name = {URL: registry.tls_url.replace("127.0.0.1", "localhost")}
    with pytest.raises(RegistryUnreachable, match=r"[Hh]ostname mismatch"):
        from_avro("value", "", options | by_name | trusted)
    unchecked = {f"{ssl}endpoint.identification.algorithm": ""}
    from_avro("value", "", options | by_name | trusted | unchecked)
    with pytest.raises(OptionError, match=r"truststore\.location.*cannot be read"):
        from_avro("value", "", options | {f"{ssl}truststore.location": str(tmp_path / "none")})


def test_a_user_and_a_password_which_nobody_sees(registry, proxy, frame, capfd, unique) -> None:
    topic = unique("sales")
    schema_id = registry.register(f"{topic}-value", FIRST)
    rows = frame(wire(schema_id, [{"id": n} for n in range(500)], FIRST)).coalesce(1)
    given = {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": SECRET}
    options = {URL: f"http://{proxy.address}"} | given
    made = rows.select(from_avro("value", json.dumps(FIRST), options).alias("made"))
    assert [row.made.id for row in made.collect()] == list(range(500))
    assert proxy.asked == [f"/schemas/ids/{schema_id}"], "asked once, and then remembered"
    made.explain("extended")
    assert "hunter" not in "".join(capfd.readouterr())

    from_url = {URL: f"http://{SECRET}@{proxy.address}", "basic.auth.credentials.source": "URL"}
    from_avro("value", "", from_url | {"topic": topic})
    wrong = options | {"basic.auth.user.info": "bob:hunter-three", "topic": topic}
    with pytest.raises(RegistryError, match=r"HTTP 401: see .*basic\.auth\.user\.info") as error:
        from_avro("value", "", wrong)
    assert "hunter" not in str(error.value)
