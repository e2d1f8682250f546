"""What the options of a read say, as one typed value, with the rules between options checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txnlog_spark.client_cache import ConnectionSettings
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.read_formats import ReadFormats, read_formats
from txnlog_spark.offsets import EARLIEST_OFFSET, LATEST_OFFSET
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options, settings_of
from txnlog_spark.source.selection import (
    COMMITTED_WORDS,
    PlanSettings,
    PositionRequest,
    Selection,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings(PlanSettings):
    """A read's options, checked."""

    connection: ConnectionSettings
    ending: PositionRequest
    include_headers: bool
    max_offsets_per_trigger: int | None
    fetch_bytes_max: int
    partition_fetch_bytes_max: int
    poll_timeout_ms: int | None
    """How long a task waits for records; None: the API timeout."""
    filter_pushdown: bool
    formats: ReadFormats


def read_source_settings(
    options: Mapping[str, str], *, streaming: bool, formats: ReadFormats | None = None
) -> SourceSettings:
    """The settings of a `readStream` or a `read`. Raises OptionError.

    `formats` are those that `load()` found for these options: a registry is not asked twice.
    """
    values = parse_options(options, Use.READ_STREAM if streaming else Use.READ_BATCH)
    starting = _starting(values, "latest" if streaming else "earliest")
    if not streaming and starting.word == "latest":
        raise OptionError("startingOffsets", "latest", "earliest: a batch from the end is empty")
    if not streaming and LATEST_OFFSET in (starting.offsets or {}).values():
        raise OptionError(
            "startingOffsets",
            None,
            f"offsets or {EARLIEST_OFFSET} (earliest): a batch cannot start at {LATEST_OFFSET}",
        )
    if starting.word in COMMITTED_WORDS and values["kafka.group.id"] is None:
        needed = f"set it: startingOffsets={starting.word} needs a group"
        raise OptionError("kafka.group.id", None, needed)
    _check_trigger_limits(values)
    return SourceSettings(
        connection=ConnectionSettings.from_values(values),
        selection=_selection(values),
        starting=starting,
        ending=PositionRequest(word="latest") if streaming else _ending(values),
        formats=read_formats(values) if formats is None else formats,
        **settings_of(values, "read"),
    )


def _check_trigger_limits(values: Mapping[str, Any]) -> None:
    low, high = values.get("minOffsetsPerTrigger"), values.get("maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise OptionError(
            "minOffsetsPerTrigger", low, f"at most maxOffsetsPerTrigger, which is {high}"
        )


def _selection(values: Mapping[str, Any]) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if values[name] is not None]
    if not given:
        raise OptionError(
            "subscribe", None, "set it to the topic to read (or subscribePattern, or assign)"
        )
    if len(given) > 1:
        raise OptionError(given[1], None, f"remove it or {given[0]}: only one of them can be set")
    pattern = values["subscribePattern"]
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                "subscribePattern", pattern, f"a regular expression ({error})"
            ) from None
    return Selection(values["subscribe"] or (), pattern, values["assign"] or ())


def _starting(values: Mapping[str, Any], default: str) -> PositionRequest:
    given = values["startingOffsets"]
    return PositionRequest(
        word=default if given is None else given if isinstance(given, str) else None,
        offsets=None if isinstance(given, str) else given,
        timestamps_ms=values["startingOffsetsByTimestamp"],
        timestamp_ms=values["startingTimestamp"],
        latest_if_none=values["startingOffsetsByTimestampStrategy"] == "latest",
    )


def _ending(values: Mapping[str, Any]) -> PositionRequest:
    given = values["endingOffsets"]
    offsets = None if isinstance(given, str) else given
    if offsets is not None and EARLIEST_OFFSET in offsets.values():
        raise OptionError(
            "endingOffsets", None, f"offsets or {LATEST_OFFSET} (latest): a batch cannot end at -2"
        )
    return PositionRequest(
        word=given if isinstance(given, str) else None,
        offsets=offsets,
        timestamps_ms=values["endingOffsetsByTimestamp"],
        timestamp_ms=values["endingTimestamp"],
        latest_if_none=True,
        option="endingOffsets",
    )
