"""The time zone of JSON's timestamps without one, and of those that are written: the session's."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyspark import TaskContext

SESSION_TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, slots=True)
class TimeZone:
    """`option` is the option timeZone, if it is set, `driver` the time zone of the driver."""

    option: str | None
    driver: str

    def in_task(self) -> str:
        """Its name. Spark tells a task its session's configuration where that was set."""
        if self.option is not None:
            return self.option
        task = TaskContext.get()
        return (task and task.getLocalProperty(SESSION_TIME_ZONE)) or self.driver


def time_zone(option: str | None) -> TimeZone:
    """Made on the driver, whose time zone is a session's that has none set."""
    zone = os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    return TimeZone(option, zone.removeprefix(":") or "UTC")
