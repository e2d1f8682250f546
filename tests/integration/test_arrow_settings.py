"""Spark's settings of Arrow: a copy has the same bytes with each as with none, in all formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType
from support.clients.librdkafka import create_topic
from support.spark import arrow_cases
from support.spark.arrow_cases import FIELDS
from support.spark.connector import PARTITIONS, Pipe

from txnlog_spark.avro import from_avro, to_avro

pytestmark = pytest.mark.slow

ARROW = "spark.sql.execution.arrow"
ZONE = "spark.sql.session.timeZone"
LARGE = {f"{ARROW}.useLargeVarTypes": "true"}
SETTINGS: dict[str, dict[str, str]] = {
    "large types": LARGE,
    "a row a batch": {f"{ARROW}.maxRecordsPerBatch": "1"},
    "a million rows a batch": {f"{ARROW}.maxRecordsPerBatch": "1000000"},
    "a byte a batch": {f"{ARROW}.maxBytesPerBatch": "1"},
    "zstd": {f"{ARROW}.compression.codec": "zstd"},
    "lz4": {f"{ARROW}.compression.codec": "lz4"},
    "checked schemas": {f"{ARROW}.pyspark.validateSchema.enabled": "true"},
    "rows into UDFs": {f"{ARROW}.pythonUDF.columnarInput.enabled": "false"},
    "another zone": {ZONE: "Asia/Kathmandu"},
    "several": LARGE
    | {
        f"{ARROW}.maxRecordsPerBatch": "2",
        f"{ARROW}.compression.codec": "zstd",
        ZONE: "America/St_Johns",
    },
}
"""The settings in `SET -v` of Spark 4.3 that change the batches of a data source or an Arrow UDF.

The other settings with arrow in their names concern toPandas, createDataFrame, R, caches and state.
A maxRecordsPerBatch of 0 (no limit of rows) stops each read of a Python data source, by an
assertion in Spark.
"""
EACH = [
    name if name == "several" else pytest.param(name, marks=pytest.mark.weekly) for name in SETTINGS
]

CASES = ["plain", "string", "json", "avro", "protobuf", "functions"]
VALUE = StructType(
    [
        *FIELDS,
        *(
            StructType()
            .add("at", "timestamp")
            .add("there", "timestamp_ntz")
            .add("day", "date")
            .add("price", "decimal(10,2)")
            .add("share", "float")
            .add("ok", "boolean")
            .add("number", "integer")
        ),
    ]
)
MOMENT = datetime(2026, 3, 29, 1, 59, 59, 123456)
SCALARS = (MOMENT, MOMENT, date(1969, 12, 31), Decimal("-1.05"), 0.1, True, -128)
HEADERS = [("h", b"a"), ("", None), ("h", b"5feceb66ffc8")]
ROWS = (
    StructType()
    .add("key", FIELDS)
    .add("value", VALUE)
    .add("partition", "integer")
    .add("timestamp", "timestamp")
    .add("headers", arrow_cases.HEADERS)
)
ALL = ["key", "value", "partition", "timestamp", "headers"]

Records = list[tuple[Any, ...]]


@contextmanager
def in_force(conf: Any, settings: dict[str, str]) -> Iterator[None]:
    """Set them for a while."""
    assert all(map(conf.isModifiable, settings)), f"Spark does not know all of {settings}"
    before = {name: conf.get(name) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    yield
    for name, value in before.items():
        conf.set(name, value)


def topics_of(pipe: Pipe, name: str) -> dict[str, str]:
    """A new topic for each case."""
    return {case: create_topic(pipe.bootstrap, f"{name}-{case}", PARTITIONS) for case in CASES}


def formats(folder: Path) -> dict[str, dict[str, str]]:
    """The options of each case, of a read and of a write alike."""
    message = {"schema": arrow_cases.write_descriptors(folder), "message.name": "Row"}
    avro = {"schema": arrow_cases.avro_schema()}, {"schema": arrow_cases.avro_schema(VALUE)}
    given: dict[str, tuple[dict[str, str], dict[str, str]]] = {
        "plain": ({}, {}),
        "string": ({}, {}),
        "json": ({"schema": FIELDS.simpleString()}, {"schema": VALUE.simpleString()}),
        "avro": avro,
        "protobuf": (message, message),
        "functions": ({}, {}),
    }
    made: dict[str, dict[str, str]] = {}
    for name, sides in given.items():
        options = {"timeZone": "UTC"}
        for side, more in zip(("key", "value"), sides, strict=True):
            if name not in ("plain", "functions"):
                options |= {f"{side}.format": name}
            options |= {f"{side}.{option}": text for option, text in more.items()}
        made[name] = options
    return made


def frame(name: str, rows: DataFrame) -> DataFrame:
    """The rows as a case writes them."""
    columns = {
        "plain": ("value.b AS key", "value.s AS value"),
        "string": ("value.s AS key", "value.s AS value"),
        "protobuf": ("key", "key AS value"),
        "functions": ("value.b AS key", "value"),
    }.get(name, ("key", "value"))
    made = rows.selectExpr(*columns, *ALL[2:])
    if name == "functions":
        made = made.withColumn("value", to_avro("value", arrow_cases.avro_schema(VALUE)))
    return made


def copied(name: str, rows: DataFrame) -> DataFrame:
    """Return what a case has read as it is written."""
    if name != "functions":
        return rows
    schema = arrow_cases.avro_schema(VALUE)
    return rows.withColumn("value", to_avro(from_avro("value", schema), schema))


def records(pipe: Pipe, topics: dict[str, str]) -> dict[str, Records]:
    """Return the records of each case, in the order of partitions and offsets."""
    read = pipe.read(subscribe=",".join(topics.values()), includeHeaders="true")
    found = read.select("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    by_topic: dict[str, Records] = {topic: [] for topic in topics.values()}
    for topic, *record in sorted(found.collect(), key=lambda row: row[:3]):
        by_topic[topic].append(tuple(record))
    return {name: by_topic[topic] for name, topic in topics.items()}


class Copies:
    """Rows in a topic of each case, and copies of these topics."""

    def __init__(self, pipe: Pipe, folder: Path, unique: Callable[[str], str]) -> None:
        made = [
            (row, (*row, *(SCALARS if row[1] else [None] * 7)), n % 2, MOMENT,
             HEADERS if n else None)
            for n, row in enumerate(arrow_cases.rows())
        ]  # fmt: skip
        self.pipe = pipe
        self.count = len(made)
        self.rows = pipe.spark.createDataFrame(made, ROWS).coalesce(1)
        self.topics = topics_of(pipe, unique("in"))
        self._unique = unique
        self._options = formats(folder)
        for name, topic in self.topics.items():
            write(pipe, frame(name, self.rows), topic, self._options[name])

    def records(self, settings: dict[str, str]) -> dict[str, Records]:
        """Copy all topics with these settings, and return the records of the copies."""
        copies = topics_of(self.pipe, self._unique("out"))
        with in_force(self.pipe.spark.conf, settings):
            for name, topic in self.topics.items():
                options = self._options[name]
                read = self.pipe.read(topic, includeHeaders="true", **options).select(*ALL)
                write(self.pipe, copied(name, read), copies[name], options)
        return records(self.pipe, copies)

    @cached_property
    def usual(self) -> dict[str, Records]:
        """Records of a copy with the default settings."""
        return self.records({})


@pytest.fixture(scope="module")
def copies(
    connector_spark: SparkSession,
    shared_brokers: Callable[[str], Any],
    tmp_path_factory: pytest.TempPathFactory,
    unique_names: Callable[[str], str],
) -> Copies:
    folder = tmp_path_factory.mktemp("arrow")
    pipe = Pipe(connector_spark, shared_brokers("broker_sim"), folder, unique_names)
    return Copies(pipe, folder, unique_names)


def test_the_json_is_that_of_sparks_to_json(copies: Copies) -> None:
    texts = [json.loads(record[4]) for record in records(copies.pipe, copies.topics)["json"]]
    theirs = copies.rows.select(sf.to_json("value", {"timeZone": "UTC"})).collect()
    assert sorted(map(str, texts)) == sorted(str(json.loads(each[0])) for each in theirs)


@pytest.mark.parametrize("setting", EACH)
def test_a_copy_has_the_same_bytes_with_a_setting_of_arrow_in_all_formats(
    copies: Copies, setting: str
) -> None:
    assert {name: len(each) for name, each in copies.usual.items()} == dict.fromkeys(
        CASES, copies.count
    )
    found = copies.records(SETTINGS[setting])
    assert [name for name in CASES if found[name] != copies.usual[name]] == []


def write(pipe: Pipe, rows: DataFrame, topic: str, options: dict[str, str]) -> None:
    pipe.save(rows, topic=topic, timestampColumn="timestamp", **options)
