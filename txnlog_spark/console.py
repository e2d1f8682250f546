"""Lines for the person at the driver's console: a batch is committed, a run has reached its end.

Spark's Python workers have no logging configured, and their INFO goes nowhere. So the first line of
a worker gives the logger of this module a handler of its own, unless somebody has configured one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from typing import Any

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import from_json_value

LEVEL_VARIABLE = "LOG_LEVEL_TXNLOG"
"""A level of Python's logging; WARNING in the driver's environment switches these lines off."""
FORMAT = "%(asctime)s %(levelname)s txnlog_spark: %(message)s"
"""As conf/log4j2.properties has it for Spark's own lines."""
NAMED_MAX = 3
"""Topics that a line names; more are counted."""
SECONDS_FROM_MS = 10_000

logger = logging.getLogger(__name__)


def tell(text: str) -> None:
    """Log the line at INFO. Raises nothing: the batch may be committed."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(FORMAT, "%H:%M:%S"))
        logger.addHandler(handler)
        wanted = os.environ.get(LEVEL_VARIABLE, "").upper()
        logger.setLevel(logging.getLevelNamesMapping().get(wanted, logging.INFO))
    logger.info("%s", text)


def counted(number: int, thing: str) -> str:
    """Return `1 row`, `2 rows`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def named(topics: Collection[str]) -> str:
    """Return the topics' names, or how many they are."""
    if len(topics) > NAMED_MAX:
        return counted(len(topics), "topic")
    return ", ".join(sorted(topics))


def lasting(duration_ms: float) -> str:
    """Return `31 ms`, and from ten seconds on `12.3 s`."""
    if duration_ms < SECONDS_FROM_MS:
        return f"{duration_ms:.0f} ms"
    return f"{duration_ms / 1000:.1f} s"


class SourceRun:
    """One run of a source with the trigger availableNow; plain values.

    The sink does not know the trigger, and Spark kills the source's worker without a last call. But
    Spark asks the source once more for a batch when all batches are done.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._first: Mapping[TopicPartition, int] | None = None
        self._is_reported = False

    def look(
        self,
        start: Mapping[str, Any],
        target: Mapping[TopicPartition, int] | None,
        latest: Mapping[str, Any] | None,
    ) -> None:
        """Tell once that `start`, which is done, has reached the target; None without one.

        `latest` has the high watermarks of the run's start: records behind them were not there.
        """
        if target is None or self._is_reported:
            return
        done = from_json_value(start)
        self._first = done if self._first is None else self._first
        if any(done.get(partition, 0) < end for partition, end in target.items()):
            return
        self._is_reported = True
        offsets = sum(at - self._first.get(partition, 0) for partition, at in done.items())
        lag = sum(
            at - done.get(partition, 0) for partition, at in from_json_value(latest or {}).items()
        )
        took = lasting(1000 * (time.monotonic() - self._began_s))
        what = f"{counted(offsets, 'offset')} in {took}" if offsets else "nothing new"
        topics = named({partition.topic for partition in done})
        tell(f"{topics} is done: {what}, lag {lag} when the run began")
