"""The time zone of JSON's timestamps: the option timeZone, else the session's.

A write finds the session's zone in the type of its columns. Spark does not tell a read, but a task
of an SQL execution has the session's settings as local properties. If the zone is not set there, it
is the default of the driver's JVM. The connector looks for it where the JVM does: in the options of
Java, in the variable TZ, in /etc/localtime.
"""

from __future__ import annotations

import os
import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.types import DataType

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.types import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

SESSION_TIME_ZONE = "spark.sql.session.timeZone"
EXECUTION_ID = "spark.sql.execution.id"
"""Local property that every task of an SQL execution has, and no other task."""
JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
LOCAL_TIME = Path("/etc/localtime")
_OF_JAVA_OPTIONS = re.compile(r"""-Duser\.timezone=["']?([^\s"']+)""")


@dataclass(frozen=True, slots=True)
class TimeZone:
    """A zone: `given`, or if it is None the session's, or `driver` if the session has none set."""

    given: str | None
    driver: str

    def in_task(self) -> str:
        """Return the name of the zone, in a task of a read.

        Raises OptionError if Spark does not tell the task the session's zone.
        """
        if self.given is not None:
            return self.given
        task = TaskContext.get()
        if task is None or task.getLocalProperty(EXECUTION_ID) is None:
            raise OptionError(
                "timeZone",
                None,
                f"set it to the session's time zone, {SESSION_TIME_ZONE}: JSON is read as "
                "timestamps outside of an SQL execution, as df.rdd and df.foreachPartition do, "
                "where Spark does not tell a task what the session's is",
            )
        reported = [task.getLocalProperty(name) for name in (SESSION_TIME_ZONE, *JAVA_OPTIONS)]
        return (
            reported[0]
            or _of_java_options(reported[1])
            or _of_java_options(reported[2])
            or self.driver
        )


def time_zone(option: str | None, type_: DataType) -> TimeZone:
    """Return the zone of a read of this type, from the option timeZone. Runs on the driver."""
    if option is None and zone_of_column(arrow_type(type_)) is None:
        return TimeZone("UTC", "UTC")
    return TimeZone(option, driver_zone(os.environ))


def zone_of_column(type_: pa.DataType) -> str | None:
    """Return the session's time zone from an Arrow type of Spark; None without a timestamp."""
    fields = (type_.field(number).type for number in range(type_.num_fields))
    return getattr(type_, "tz", None) or next(filter(None, map(zone_of_column, fields)), None)


def driver_zone(environment: Mapping[str, str]) -> str:
    """Return the default time zone of a JVM here, by the rules of OpenJDK's `TimeZone_md.c`."""
    options = _of_java_options(environment.get("JAVA_TOOL_OPTIONS"))
    return options or environment.get("TZ", "").removeprefix(":") or _zone_of_file(LOCAL_TIME)


def _of_java_options(text: str | None) -> str | None:
    """Return the zone that the last -Duser.timezone sets, None without the option."""
    found = _OF_JAVA_OPTIONS.findall(text or "")
    return found[-1] if found else None


@cache
def _zone_of_file(file: Path) -> str:
    """Return the name that the file links to, else the zone with the same content, else UTC."""
    linked = os.path.realpath(file).partition("zoneinfo/")[2]
    if linked or not file.is_file():
        return linked or "UTC"
    rules = file.read_bytes()
    for name in sorted(zoneinfo.available_timezones()):
        for folder in zoneinfo.TZPATH:
            zone = Path(folder, name)
            if zone.is_file() and zone.read_bytes() == rules:
                return name
    return "UTC"
