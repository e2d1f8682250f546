"""Options of a read as one typed value, with the rules between options checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txnlog_spark.client_cache import ConnectionSettings
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.read_formats import ReadFormats, read_formats
from txnlog_spark.offsets import EARLIEST_OFFSET, LATEST_OFFSET
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options, settings_of
from txnlog_spark.source.positions import check_order
from txnlog_spark.source.selection import COMMITTED_WORDS, PlanSettings, PositionRequest, Selection


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
    """Time that a task waits for records, in ms; None: the API timeout."""
    filter_pushdown: bool
    formats: ReadFormats


def read_source_settings(
    options: Mapping[str, str], *, streaming: bool, formats: ReadFormats | None = None
) -> SourceSettings:
    """Read the settings of a `readStream` or a `read`; with the `formats` that `load()` found, a
    registry is not asked twice. Raises OptionError."""
    values = parse_options(options, Use.READ_STREAM if streaming else Use.READ_BATCH)
    is_latest = values["startingOffsetsByTimestampStrategy"] == "latest"
    starting = _request(values, "starting", "latest" if streaming else "earliest", is_latest)
    ending = PositionRequest(word="latest")
    if not streaming:
        ending = _request(values, "ending", "latest", latest_if_none=True)
        _check_batch(starting, ending)
    if starting.word in COMMITTED_WORDS and values["kafka.group.id"] is None:
        needed = f"set it: startingOffsets={starting.word} needs a group"
        raise OptionError("kafka.group.id", None, needed)
    _check_trigger_limits(values)
    return SourceSettings(
        connection=ConnectionSettings.from_values(values),
        selection=_selection(values),
        starting=starting,
        ending=ending,
        formats=read_formats(values) if formats is None else formats,
        **settings_of(values, "read"),
    )


def _request(
    values: Mapping[str, Any], side: str, default: str, latest_if_none: bool
) -> PositionRequest:
    """Read the options of one side, `starting` or `ending`."""
    given = default if (offsets := values[f"{side}Offsets"]) is None else offsets
    timestamp_ms = values[f"{side}Timestamp"]
    by_partition = values[f"{side}OffsetsByTimestamp"]
    return PositionRequest(
        word=given if isinstance(given, str) else None,
        offsets=None if isinstance(given, str) else given,
        timestamps_ms=by_partition if timestamp_ms is None else timestamp_ms,
        latest_if_none=latest_if_none,
        option=f"{side}Offsets",
    )


def _check_batch(starting: PositionRequest, ending: PositionRequest) -> None:
    if starting.word == "latest":
        raise OptionError("startingOffsets", "latest", "earliest: a batch from the end is empty")
    if LATEST_OFFSET in (starting.offsets or {}).values():
        raise OptionError("startingOffsets", None, "offsets or -2: a batch cannot start at -1")
    if EARLIEST_OFFSET in (ending.offsets or {}).values():
        raise OptionError("endingOffsets", None, "offsets or -1: a batch cannot end at -2")
    timed = starting.timestamps_ms is not None or ending.timestamps_ms is not None
    start, end = (each.timestamps_ms if timed else each.offsets for each in (starting, ending))
    if isinstance(start, Mapping) and isinstance(end, Mapping):
        check_order(start, end, f"startingOffsets{'ByTimestamp' * timed}")


def _check_trigger_limits(values: Mapping[str, Any]) -> None:
    low, high = values.get("minOffsetsPerTrigger"), values.get("maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise OptionError("minOffsetsPerTrigger", low, f"at most maxOffsetsPerTrigger={high}")


def _selection(values: Mapping[str, Any]) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if values[name] is not None]
    if not given:
        raise OptionError("subscribe", None, "set it to a topic (or subscribePattern, assign)")
    if len(given) > 1:
        raise OptionError(given[1], None, f"remove it or {given[0]}: only one of them can be set")
    return Selection(values["subscribe"] or (), values["subscribePattern"], values["assign"] or ())
