"""Lag of a source, from the two offsets that Spark reports of it.

Spark's own Kafka source reports minOffsetsBehindLatest, maxOffsetsBehindLatest and
avgOffsetsBehindLatest as metrics of its own; a Python source cannot. But for both sources Spark
shows the answer of `reportLatestOffset`, and the figures are its difference to the batch's end. Our
source reports the high watermark: records behind an open transaction count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import from_json_value, is_source_offset


def offsets_behind_latest(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics of one of `query.lastProgress["sources"]`, named and written as Spark's.

    Return {} for a source that is neither Kafka's nor ours, and before the first batch.
    """
    behind = list(lag_of(source).values())
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }


def lag_of(source: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return the offsets, by partition, that existed at planning and are not in the batch."""
    end, latest = (_offsets(source[name]) for name in ("endOffset", "latestOffset"))
    return {p: latest[p] - end[p] for p in sorted(latest) if p in end}


def _offsets(shown: Any) -> dict[TopicPartition, int]:
    if shown is None:
        return {}
    try:
        value = json.loads(shown) if isinstance(shown, str) else shown
    except ValueError:
        return {}  # of another kind of source
    return from_json_value(value) if is_source_offset(value) else {}
