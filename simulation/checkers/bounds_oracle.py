"""A witness of where a replica says that its log begins and how far it may be read (5).

In one process and one leader epoch, neither the first offset, nor the last stable one, nor the high
watermark goes back, and they stand in that order. A new leader may be behind its predecessor for a
moment, as in Kafka, and says so in an epoch of its own. A follower learns of an unclean election
before it has truncated what the new leader does not have: until then it says what it said before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker_sim.core.broker import Broker
from broker_sim.core.effects import Respond, Step
from broker_sim.core.parts import BrokerParts
from broker_sim.core.replica.replication import BELOW_HIGH_WATERMARK
from simulation.checkers.fetch_oracle import answered_parts
from simulation.checkers.metadata_oracle import METADATA_TRACE
from simulation.checkers.sync_oracle import HIGH_WATERMARK_TRACE
from simulation.violation import violated
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey

NOT_SAID = -1
UNCLEAN_ENABLE = "unclean.leader.election.enable"


class Bounds(NamedTuple):
    """Start of a log, and both of its ends for consumers; -1 for an unknown value."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


NOTHING_SAID = Bounds(NOT_SAID, NOT_SAID, NOT_SAID)


class _Reign(NamedTuple):
    """A partition, known by its topic's id, in one leader epoch."""

    topic_id: str
    partition: int
    leader_epoch: int


class BoundsOracle:
    """Watches what one broker says."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._core: Broker | None = None
        self._highest: dict[_Reign, Bounds] = {}

    def on_step(self, core: Broker, step: Step) -> None:
        """After each step of the broker. Raises Violation (5)."""
        if core is not self._core:
            self._core = core
            self._highest.clear()
        # In a step that brings another epoch it is not seen here in which one was answered.
        parts = core.opened
        if parts is None or (step.traces and any(t.kind == METADATA_TRACE for t in step.traces)):
            return
        for directory, bounds in _said(parts, step):
            reign = _reign(parts, directory)
            if reign is not None:
                self.on_bounds(reign, bounds)
        for trace in step.traces:
            if trace.kind == BELOW_HIGH_WATERMARK:
                self._on_truncated(parts, str(trace.fields["log"]))

    def on_bounds(self, reign: _Reign, now: Bounds) -> None:
        """The broker says so in this leader epoch."""
        before = self._highest.get(reign, NOTHING_SAID)
        if now == before:
            return  # looked at when it was said first
        said = [(a, b) for a, b in zip(before, now, strict=True) if b != NOT_SAID]
        in_order = [bound for bound in now if bound != NOT_SAID]
        if any(b < a for a, b in said) or in_order != sorted(in_order):
            violated(5, "an end of a log goes back, or stands before its begin",
                     broker=self._broker, where=reign, before=before, now=now)  # fmt: skip
        self._highest[reign] = Bounds(*map(max, before, now))

    def _on_truncated(self, parts: BrokerParts, directory: str) -> None:
        reign = _reign(parts, directory)
        topic = None if reign is None else parts.image.topics.get(directory.rpartition("-")[0])
        if reign is not None and topic is not None and topic.configs.get(UNCLEAN_ENABLE):
            self._highest.pop(reign, None)


def _said(parts: BrokerParts, step: Step) -> Iterator[tuple[str, Bounds]]:
    """The folder of a partition, and what the step says of it; where the high watermark has moved
    to, which may be more than once, comes last, as some may have been answered before it did."""
    for answer in step.responses:
        if isinstance(answer, Respond) and answer.api_key is ApiKey.FETCH:
            for directory, part in answered_parts(answer.message, parts.image):
                ends = part.log_start_offset, part.last_stable_offset, part.high_watermark
                yield directory, Bounds(*ends)
    reached: dict[str, int] = {}
    for trace in step.traces:
        if trace.kind == HIGH_WATERMARK_TRACE:
            directory, moved = str(trace.fields["log"]), int(trace.fields["hw"])
            if moved < reached.get(directory, moved):
                violated(5, "a high watermark moves back", log=directory,
                         before=reached[directory], now=moved)  # fmt: skip
            reached[directory] = moved
    for directory, moved in reached.items():
        yield directory, Bounds(NOT_SAID, NOT_SAID, moved)


def _reign(parts: BrokerParts, directory: str) -> _Reign | None:
    name, _, number = directory.rpartition("-")
    topic, found = parts.image.topics.get(name), parts.replicas.lookup(name, int(number))
    if topic is None or isinstance(found, ErrorCode):
        return None
    epoch = 0 if found.registration is None else found.registration.leader_epoch
    return _Reign(str(topic.topic_id), int(number), epoch)
