"""Records that a read_committed query cannot read yet, because a transaction before them is open.

By the last stable offset, where the transaction begins, such a query is not even behind: the
records are the range from there to the high watermark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.source.planning import OffsetRange

HANGING_MS = 60_000
"""Wait that is logged as a warning: by default a transaction of Java's producers is shorter."""
PARTITIONS_SHOWN_MAX = 5


Since = Mapping[tuple[TopicPartition, int], float]
"""Time when each partition was first seen to be held up at one offset, in ms."""


def find_lasting(
    since: Since, found: Sequence[OffsetRange], now_ms: float
) -> tuple[list[OffsetRange], Since]:
    """Return the ranges that are held up for too long, each once, and the start of every wait."""
    held_up = {each[:2]: since.get(each[:2], now_ms) for each in found}
    lasting = [each for each in found if now_ms - held_up[each[:2]] >= HANGING_MS]
    return lasting, held_up | {each[:2]: math.inf for each in lasting}


def explain(found: Sequence[OffsetRange], bootstrap_servers: str) -> str:
    """Say where records are held up, and how to find the transaction; one line."""
    shown = ", ".join(
        f"{p} (last stable offset {stable}, high watermark {high})"
        for p, stable, high in found[:PARTITIONS_SHOWN_MAX]
    )
    if len(found) > PARTITIONS_SHOWN_MAX:
        shown += f" and {len(found) - PARTITIONS_SHOWN_MAX} others"
    (topic, partition), first_offset, _ = found[0]
    command = f"kafka-transactions.sh --bootstrap-server {bootstrap_servers}"
    where = f"--topic {topic} --partition {partition}"
    return (
        f"{shown}. `{command} describe-producers {where}` shows its producer, with "
        f"CurrentTransactionStartOffset {first_offset}. That producer ends it, or its coordinator "
        "after transaction.timeout.ms. If no coordinator knows it, then 15 minutes after its last "
        f"record `{command} find-hanging {where}` shows it, and `abort` ends it"
    )
