"""Whether a log ends before a position that was read from it, or one broker alone says so."""

from __future__ import annotations

from collections.abc import Mapping

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.majority import find_leaders, find_missing
from txnlog_kafka.operations.metadata import UNKNOWN_TOPIC_PATIENCE_MS, require_leaders
from txnlog_kafka.operations.offsets import LATEST_TIMESTAMP, ask_leaders
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition


def confirm_log_ends(
    session: Session, positions: Mapping[TopicPartition, int], said: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, int]]:
    """The high watermarks of logs of which it was `said` that they end before these positions.

    A former leader ends its log early. So where there are several brokers, most of them are asked
    for the leader, and that one alone where its log ends, again and again for a while as long as it
    lies before the position. Raises UnknownTopic, and DeadlineExceeded when it does not answer.
    """
    if len(session.cluster.nodes) < 2:
        return dict(said)
    deadline = session.deadline()
    until_ms = session.monotonic_ms() + deadline.patience_ms(UNKNOWN_TOPIC_PATIENCE_MS)
    specs = dict.fromkeys(positions, LATEST_TIMESTAMP)
    yield from require_leaders(session, positions, deadline=deadline)
    while True:
        yield from find_leaders(session, positions, deadline=deadline)
        listed, errors = yield from ask_leaders(
            session, specs, read_committed=False, deadline=deadline
        )
        ends = {partition: each.offset for partition, each in listed.items()}
        short = [p for p, end in sorted(ends.items()) if end < positions[p]]
        is_soon = session.monotonic_ms() < until_ms
        if not errors and not (short and is_soon):
            return ends
        unsaid = [p for p in positions if p not in ends]
        if unsaid and not is_soon:
            gone = yield from find_missing(session, unsaid, deadline=deadline)
            yield from require_leaders(session, gone, deadline=deadline)
        first = (unsaid or short)[0]
        yield from deadline.backoff(
            f"making sure that {first[0]}-{first[1]} ends before offset {positions[first]}",
            errors[0] if errors else f"its leader says {ends[first]}",
        )
