"""Time zone of JSON's timestamps, and the error where no zone is known."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from txnlog_spark.errors import OptionError
from txnlog_spark.formats import time_zone as module
from txnlog_spark.formats.ddl import parse_ddl
from txnlog_spark.formats.json.encode import json_encoder
from txnlog_spark.formats.read_formats import read_formats
from txnlog_spark.formats.time_zone import driver_zone, time_zone
from txnlog_spark.formats.write_formats import write_formats
from txnlog_spark.formats.writers import Writer
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options

SQL = {"spark.sql.execution.id": "7"}
SESSION = {"spark.sql.session.timeZone": "Asia/Tokyo"}
JAVA = "spark.driver.extraJavaOptions"
DEFAULT_JAVA = "spark.driver.defaultJavaOptions"
TIMES = parse_ddl("at timestamp")


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch):
    """The time zone in a task with these local properties, on a driver in Nairobi."""

    def found(properties: dict[str, str], option: str | None = None, type_: Any = TIMES) -> str:
        class Task:
            getLocalProperty = staticmethod(properties.get)  # noqa: N815  Java's name

        monkeypatch.setenv("TZ", "Africa/Nairobi")
        monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Task))
        return time_zone(option, type_).in_task()

    return found


@pytest.mark.parametrize(
    ("properties", "zone"),
    [
        (SQL | SESSION | {JAVA: "-Duser.timezone=America/Lima"}, "Asia/Tokyo"),
        (SQL | {JAVA: "-Xmx1g -Duser.timezone='America/Lima' -ea"}, "America/Lima"),
        (SQL | {JAVA: "-Duser.timezone=UTC -Duser.timezone=America/Lima"}, "America/Lima"),
        (SQL | {DEFAULT_JAVA: "-Duser.timezone=UTC", JAVA: "-ea"}, "UTC"),
        (SQL | {JAVA: "-ea"}, "Africa/Nairobi"),
    ],
)
def test_a_read_has_the_sessions_zone_or_the_default_of_the_drivers_jvm(
    in_task, properties: dict[str, str], zone: str
) -> None:
    assert in_task(properties) == zone
    assert in_task(properties, option="Europe/Paris") == "Europe/Paris"


@pytest.mark.parametrize(
    "ddl",
    ["at timestamp", "a struct<at: timestamp>", "a array<timestamp>", "map<string,timestamp>"],
)
def test_timestamps_outside_of_an_sql_execution_need_the_option(in_task, ddl: str) -> None:
    with pytest.raises(OptionError, match=r"option timeZone: set it to the session's time zone"):
        in_task({}, type_=parse_ddl(ddl))
    assert in_task({}, option="Asia/Tokyo", type_=parse_ddl(ddl)) == "Asia/Tokyo"


@pytest.mark.parametrize("ddl", ["id int", "at timestamp_ntz, day date", "array<string>"])
def test_what_has_no_zone_is_read_anywhere(in_task, ddl: str) -> None:
    assert in_task({}, type_=parse_ddl(ddl)) == "UTC"


@pytest.mark.parametrize("option", [None, "UTC"])
def test_a_write_has_the_zone_of_its_columns_or_that_of_the_option(option: str | None) -> None:
    noon = datetime(2026, 1, 1, 3, tzinfo=UTC)
    times = pa.array([[noon]], pa.list_(pa.timestamp("us", tz="Asia/Tokyo")))
    column = pa.StructArray.from_arrays([times], names=["at"])
    made = Writer(json_encoder, (parse_ddl("at array<timestamp>"), option, "")).encode(column)
    said = "2026-01-01T12:00:00.000+09:00" if option is None else "2026-01-01T03:00:00.000Z"
    assert made.to_pylist() == [f'{{"at":["{said}"]}}'.encode()]


@pytest.mark.parametrize(
    ("environment", "zone"),
    [
        ({"TZ": "America/Lima", "JAVA_TOOL_OPTIONS": "-Duser.timezone=UTC"}, "UTC"),
        ({"TZ": "America/Lima"}, "America/Lima"),
        ({"TZ": ":America/Lima"}, "America/Lima"),
        ({"TZ": ""}, "Asia/Kathmandu"),
        ({}, "Asia/Kathmandu"),
    ],
)
def test_the_drivers_zone_is_found_where_a_jvm_finds_it(
    environment: dict[str, str], zone: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "localtime"
    file.symlink_to("/usr/share/zoneinfo/Asia/Kathmandu")
    monkeypatch.setattr(module, "LOCAL_TIME", file)
    assert driver_zone(environment) == zone


def test_a_copy_of_a_zones_file_is_that_zone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zones = tmp_path / "zones"
    monkeypatch.setattr(module.zoneinfo, "TZPATH", (str(zones),))
    monkeypatch.setattr(module.zoneinfo, "available_timezones", lambda: {"Mars/Base", "Mars/Sea"})
    (zones / "Mars").mkdir(parents=True)
    for name in ("Base", "Sea"):
        (zones / "Mars" / name).write_text(f"rules of {name}")
    copied = shutil.copy(zones / "Mars" / "Sea", tmp_path / "localtime")
    monkeypatch.setattr(module, "LOCAL_TIME", Path(copied))
    assert driver_zone({}) == "Mars/Sea"
    for path, text in (("other", "other rules"), ("missing", None)):
        if text:
            (tmp_path / path).write_text(text)
        monkeypatch.setattr(module, "LOCAL_TIME", tmp_path / path)
        assert driver_zone({}) == "UTC"


@pytest.mark.parametrize("use", [Use.READ_BATCH, Use.WRITE_BATCH])
def test_a_time_zone_that_is_refused_is_refused_when_the_query_plans(use: Use) -> None:
    options = {"path": "p", "value.format": "json", "timeZone": "PST"}
    with pytest.raises(OptionError, match=r"PST.*is not a time zone of JSON"):
        if use is Use.READ_BATCH:
            schema = {"subscribe": "t", "value.schema": "at timestamp"}
            read_formats(parse_options(options | schema, use))
        else:
            made = write_formats(parse_options(options | {"topic": "t"}, use))
            made["value"].writer(parse_ddl("at timestamp"), "t")
