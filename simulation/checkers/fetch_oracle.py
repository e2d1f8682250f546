"""A witness of Fetch answers: their last stable offset, and the aborted transactions they name.

It knows the log from `LogOracle`, by the naive list of all transactions that it has followed. It
looks at an answer after the step that made it, when the files have what the step has appended.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from broker_sim.core.broker import Broker
from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.effects import Respond, Step
from simulation.checkers.batches import decode_batches
from simulation.checkers.log_oracle import (
    COMPACTED_PREFIX,
    EndedTransaction,
    LogOracle,
    PartitionHistory,
)
from simulation.hosts.disk import SimDisk
from simulation.violation import violated
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey, Message


class FetchOracle:
    """Watches what one broker answers to Fetch."""

    def __init__(self, disk: SimDisk, oracle: LogOracle) -> None:
        self._disk = disk
        self._oracle = oracle
        self._core: Broker | None = None
        self._loaded: dict[str, int] = {}
        """By folder, the end of the log when the process began: of transactions that have ended
        before it, it does not know which markers are replicated."""

    def on_step(self, core: Broker, step: Step) -> None:
        """After each step of the broker. Raises Violation (26, 27)."""
        if core is not self._core:
            self._core, self._loaded = core, self._oracle.log_ends()
        for answer in step.responses:
            if not isinstance(answer, Respond) or answer.api_key is not ApiKey.FETCH:
                continue
            returned = {id(field.target): field.slices for field in answer.records}
            for directory, part in answered_parts(answer.message, core.parts.image):
                history = self._oracle.history(directory)
                if history is None:
                    continue
                if not self._is_loading(directory, part):
                    check_last_stable_offset(directory, history, part)
                slices = returned.get(id(part), ())
                if part.aborted_transactions is not None:
                    data = b"".join(
                        self._disk.read(each.path, each.position, each.length) for each in slices
                    )
                    check_aborted(directory, history, part, data)

    def _is_loading(self, directory: str, part: Message) -> bool:
        """True if the broker answers that nothing is stable, because it is still loading."""
        is_behind = part.high_watermark < self._loaded.get(directory, 0)
        return bool(is_behind and part.last_stable_offset == part.log_start_offset)


def answered_parts(message: Message, image: ClusterImage) -> Iterator[tuple[str, Message]]:
    """The folder and the answer of each partition that was read."""
    for topic in message.responses:
        known = image.topic_of_id(topic.topic_id)
        name = topic.topic if known is None else known.name
        for part in topic.partitions:
            if part.error_code == ErrorCode.NONE:
                yield f"{name}-{part.partition_index}", part


def _ended_since(history: PartitionHistory, offset: int) -> Iterator[EndedTransaction]:
    """Yield the transactions whose marker is at or after the offset, newest first."""
    return takewhile(lambda ended: ended.marker_offset >= offset, reversed(history.ended))


def check_last_stable_offset(directory: str, history: PartitionHistory, part: Message) -> None:
    """Check the last stable offset. Raises Violation (26).

    It is the start of the oldest transaction without a marker below the high watermark, and
    otherwise the high watermark.
    """
    high_watermark = part.high_watermark
    undecided = [p.open_since for p in history.producers.values() if p.open_since is not None]
    undecided += [t.first_offset for t in _ended_since(history, high_watermark)]
    expected = min([high_watermark, *undecided])
    if part.last_stable_offset != expected:
        violated(26, "the last stable offset is another one", directory=directory,
                 found=part.last_stable_offset, expected=expected,
                 high_watermark=high_watermark)  # fmt: skip


def check_aborted(directory: str, history: PartitionHistory, part: Message, data: bytes) -> None:
    """Check that each aborted transaction that overlaps the returned data is named.

    No other transaction may be named, if it does not exist or has ended before. Raises Violation
    (27).
    """
    headers = [batch.header for batch in decode_batches(data)]
    named = {(each.producer_id, each.first_offset) for each in part.aborted_transactions}
    if not headers:
        return
    begin, end = headers[0].base_offset, headers[-1].next_offset
    aborted = [t for t in _ended_since(history, begin) if not t.is_committed]
    wanted = {(t.producer_id, t.first_offset) for t in aborted if t.first_offset < end}
    known = {(t.producer_id, t.first_offset) for t in aborted}
    is_whole = not directory.startswith(COMPACTED_PREFIX) and history.start_offset == 0
    if is_whole and not (wanted <= named <= known):
        violated(27, "a fetch names other aborted transactions", directory=directory,
                 returned=(begin, end), missing=sorted(wanted - named),
                 foreign=sorted(named - known))  # fmt: skip
