"""Whether a log ends before a position that was read from it, or one broker alone says so."""

from __future__ import annotations

from collections.abc import Mapping

from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.metadata import UNKNOWN_TOPIC_PATIENCE_MS
from txnlog_spark.protocol.most_brokers import find_leaders
from txnlog_spark.protocol.offsets import LATEST_TIMESTAMP, list_offsets
from txnlog_spark.protocol.session import Session
from txnlog_spark.wire.topics import TopicPartition


def confirm_log_ends(
    session: Session, positions: Mapping[TopicPartition, int], said: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, int]]:
    """The high watermarks of logs of which it was `said` that they end before these positions.

    A former leader ends its log early. So where there are several brokers, most of them are asked
    who leads, and that one where its log ends, again and again for a while as long as it lies
    before the position. Raises UnknownTopic, DeadlineExceeded.
    """
    if len(session.cluster.nodes) < 2:
        return dict(said)
    deadline = session.deadline()
    since_ms = session.monotonic_ms()
    specs = dict.fromkeys(positions, LATEST_TIMESTAMP)
    while True:
        yield from find_leaders(session, positions, deadline=deadline)
        listed = yield from list_offsets(session, specs, read_committed=False)
        ends = {partition: each.offset for partition, each in listed.items()}
        short = [p for p, end in sorted(ends.items()) if end < positions[p]]
        waited_ms = session.monotonic_ms() - since_ms
        if not short or waited_ms >= UNKNOWN_TOPIC_PATIENCE_MS:
            return ends
        topic, number = short[0]
        yield from deadline.backoff(
            f"making sure that {topic}-{number} ends before offset {positions[short[0]]}",
            f"its leader says {ends[short[0]]}",
        )
