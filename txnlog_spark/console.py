"""Lines for the person at the driver's console: the start of a run, each batch, the end of a run.

Spark's Python workers have no logging configured, so their INFO lines are lost. So the first line
of a worker adds a handler to this module's logger, unless logging is already configured.
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
"""Environment variable with a level of Python's logging. WARNING in the driver's environment
switches these lines off."""
FORMAT = "%(asctime)s %(levelname)s txnlog_spark: %(message)s"
"""Format of the lines; conf/log4j2.properties sets the same format for Spark's own lines."""
NAMED_MAX = 3
"""Most topics that a line names; a line with more topics has their number."""
SECONDS_FROM_MS = 10_000

logger = logging.getLogger(__name__)


def tell(text: str) -> None:
    """Log the line at INFO. Never raises: the batch may be committed."""
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
    """Return the topics' names, or their number if they are many."""
    if len(topics) > NAMED_MAX:
        return counted(len(topics), "topic")
    return ", ".join(sorted(topics))


def lasting(duration_ms: float) -> str:
    """Return `31 ms`, and from ten seconds on `12.3 s`."""
    if duration_ms < SECONDS_FROM_MS:
        return f"{duration_ms:.0f} ms"
    return f"{duration_ms / 1000:.1f} s"


class SourceRun:
    """Run of a source, for its lines; has plain values only.

    The sink does not know the trigger, and Spark kills the source's worker without a last call. But
    after all batches are done, Spark asks the source once more for a batch.
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
        """Log the offsets to read when the run starts, and once that the run is at its end.

        The records before `start` are processed. `target` is the end of the run, None if it has no
        end. `latest` has the high watermarks when the run began: later records did not exist then.
        """
        done = from_json_value(start)
        if self._first is None:
            self._first = done
            self._tell_start(done, from_json_value(latest or {}))
        if target is None or self._is_reported:
            return
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

    def _tell_start(
        self, start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Say what comes next: Spark shows nothing while it starts Python for the first batch."""
        behind = sum(max(end - start.get(partition, 0), 0) for partition, end in ends.items())
        topics = named({partition.topic for partition in {**start, **ends}})
        if behind:
            tell(f"{topics}: {counted(behind, 'offset')} to read, the first batch starts")
        else:
            tell(f"{topics}: nothing to read yet")
