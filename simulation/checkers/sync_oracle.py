"""A witness of acks=all: what is answered then was on min.insync.replicas replicas (11).

A leader's high watermark passes a batch while the ISR is large enough, and moves at no other time
(KAFKA-15583). The answer may leave later, when all other partitions of the request are done, and a
smaller ISR or another min.insync.replicas does not count any more then. All producers of the
simulation ask for acks=all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from broker_sim.core.controller import Topic
from broker_sim.core.effects import Respond, Step, TraceEvent
from broker_sim.core.parts import BrokerParts
from simulation.checkers.metadata_oracle import METADATA_TRACE
from simulation.violation import violated
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey, Message

MIN_INSYNC = "min.insync.replicas"
HIGH_WATERMARK_TRACE = "high-watermark"
RESTORED_TRACE = "metadata-restored"
_CONFIGURING = ("topic-changed", "broker-configs")
"""Metadata records that may hold another min.insync.replicas."""

_Place = tuple[str, int]
"""A topic's id, so that one that is created again is another one, and a partition."""


class SyncOracle:
    """Answers of all leaders of a cluster, and the offsets that enough replicas had."""

    def __init__(self, default: int) -> None:
        """`default` holds for topics that say nothing of min.insync.replicas."""
        self._default = default
        self._safe: dict[_Place, int] = {}
        """The highest high watermark that moved while the ISR was large enough, or in a step that
        reads other metadata behind the move, which hides how large it had to be."""

    def on_step(self, broker: str, parts: BrokerParts, step: Step) -> None:
        """After each step of a broker. Raises Violation (11)."""
        for at, trace in enumerate(step.traces):
            if trace.kind == HIGH_WATERMARK_TRACE:
                name, _, partition = str(trace.fields["log"]).rpartition("-")
                topic = parts.image.topics.get(name)
                if topic is None:
                    continue
                missing = self._missing(parts, step, topic, int(partition))
                if missing is None or _may_change(step.traces[at:], topic, int(partition)):
                    place = str(topic.topic_id), int(partition)
                    self._safe[place] = max(self._safe.get(place, 0), int(trace.fields["hw"]))
                else:
                    isr, needed = missing
                    violated(11, "a high watermark moved with too few replicas in sync",
                             broker=broker, log=trace.fields["log"], isr=isr,
                             needed=needed)  # fmt: skip
        for topic, part in _acknowledged(parts, step):
            number, base_offset = int(part.index), int(part.base_offset)
            if base_offset < self._safe.get((str(topic.topic_id), number), 0):
                continue
            missing = self._missing(parts, step, topic, number)
            if missing is not None:
                isr, needed = missing
                violated(11, "acks=all is answered with too few replicas in sync", broker=broker,
                         partition=f"{topic.name}-{number}", isr=isr, needed=needed)  # fmt: skip

    def _missing(
        self, parts: BrokerParts, step: Step, topic: Topic, number: int
    ) -> tuple[tuple[int, ...], int] | None:
        """The ISR and how many it has to be, where it is smaller, as the broker leads it now."""
        found = parts.replicas.lookup(topic.name, number)
        leader = None if isinstance(found, ErrorCode) else found.leader
        if leader is None or _changes(step)[str(topic.topic_id), number] > 1:
            return None  # of several ISRs in one step, which one counted is not seen here
        held = leader.registration
        needed = min(int(topic.configs.get(MIN_INSYNC) or self._default), len(held.replicas))
        return (held.isr, needed) if len(held.isr) < needed else None


def _may_change(traces: Sequence[TraceEvent], topic: Topic, number: int) -> bool:
    """True if these traces may change the ISR, or its required size."""
    place = str(topic.topic_id), number
    records = [each.fields for each in traces if each.kind == METADATA_TRACE]
    return (
        any(each.kind == RESTORED_TRACE for each in traces)
        or any(record["type"] in _CONFIGURING for record in records)
        or any(place == (r.get("topic_id"), r.get("partition")) for r in records)
    )


def _acknowledged(parts: BrokerParts, step: Step) -> Iterator[tuple[Topic, Message]]:
    """The partitions whose batches are answered with success, of topics that there are."""
    for answer in step.responses:
        if not isinstance(answer, Respond) or answer.api_key is not ApiKey.PRODUCE:
            continue
        for entry in answer.message.responses:
            topic = parts.image.topic_of_id(entry.topic_id) or parts.image.topics.get(entry.name)
            if topic is None:
                continue
            for part in entry.partition_responses:
                if part.error_code == ErrorCode.NONE:
                    yield topic, part


def _changes(step: Step) -> Counter[_Place]:
    """Count the changes of each partition."""
    records = (trace.fields for trace in step.traces if trace.kind == METADATA_TRACE)
    return Counter(
        (record["topic_id"], record["partition"])
        for record in records
        if record["type"] == "partition-changed"
    )
