"""Appends of the controller to the registry's metadata log: a decision at a time, in order.

A decision is planned against the image when it is its turn, so it sees all earlier decisions. Its
records are one append, with the controller's epoch and the end of the log it was planned at. When
the append is answered, the records are replayed here, and then the waiting request is answered.

If the answer to an append was lost, the same append is sent a second time, and the registry
recognises it. A refused append may have been carried out all the same, by an earlier attempt: the
log shows it. That stays true, because the registry then takes no append from an older connection of
this session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker_sim.apis.registry_codes import RegistryError
from broker_sim.core.controller.image import MetadataRecord
from broker_sim.core.controller.metadata_log import encode_record
from broker_sim.core.effects import Effects
from broker_sim.core.membership.cluster_metadata import ClusterMetadata
from broker_sim.core.membership.registry_link import RegistryLink
from broker_sim.core.membership.registry_snapshots import SnapshotWriter
from broker_sim.core.registry_client import ReadAnswer, RegistryClient
from broker_sim.core.replies import Reply

Plan = Callable[[Effects], Sequence[MetadataRecord]]
"""The records to append, none when there is nothing to change."""


@dataclass(slots=True)
class _Append:
    """The append on its way."""

    epoch: int
    offset: int
    values: tuple[bytes, ...]
    done: Reply[bool]
    is_asked: bool = False
    is_refused: bool = False
    """True if it was refused: read the log to see whether it was carried out all the same."""

    @property
    def end_offset(self) -> int:
        return self.offset + len(self.values)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.values))


class Decisions:
    """The queue of a broker, which is empty while another one is the controller."""

    def __init__(
        self,
        client: RegistryClient,
        link: RegistryLink,
        metadata: ClusterMetadata,
        snapshots: SnapshotWriter,
    ) -> None:
        self.epoch: int | None = None
        """This controller's epoch; None at any other broker."""
        self._client = client
        self._link = link
        self._metadata = metadata
        self._snapshots = snapshots
        self._queue: deque[tuple[Plan, Reply[bool]]] = deque()
        self._append: _Append | None = None
        self._over = -1
        """The last epoch that this broker has given up, or lost."""

    def submit(self, plan: Plan, done: Reply[bool], effects: Effects) -> None:
        """Call `done` with True when the records of the plan are in the log and in the image, with
        False when this broker is not the controller, or not any more: then they are not."""
        if self.epoch is None:
            return done(False, effects)
        self._queue.append((plan, done))
        return self.pump(effects)

    def begin(self, epoch: int, effects: Effects) -> None:
        """This broker has become the controller, unless it knows already that it is over."""
        if epoch <= self._over:
            return
        effects.trace("controller-elected", epoch=epoch)
        self.epoch = epoch

    def end(self, effects: Effects) -> None:
        """Another broker is the controller, or none; what is on its way is waited for."""
        if self.epoch is None:
            return
        effects.trace("controller-resigned", epoch=self.epoch)
        self._over, self.epoch = self.epoch, None
        queue, self._queue = self._queue, deque()
        for _, done in queue:
            done(False, effects)

    def pump(self, effects: Effects) -> None:
        """Go on: with the append on its way, or with the next plan once all records are read."""
        if self._append is not None:
            self._ask_registry(self._append, effects)
        while self._append is None and self._queue and self.epoch is not None:
            if not self._link.has_all_records:
                return
            plan, done = self._queue.popleft()
            values = tuple(map(encode_record, plan(effects)))
            if not values:
                done(True, effects)
                continue
            self._append = _Append(self.epoch, self._metadata.next_offset, values, done)
            self._ask_registry(self._append, effects)

    def _ask_registry(self, append: _Append, effects: Effects) -> None:
        if append.is_asked or self._link.is_paused:
            return
        append.is_asked = True
        if append.is_refused:
            self._client.read(append.offset, append.size_bytes, self._on_read, effects)
        else:
            self._client.append(
                append.epoch, append.offset, append.values, self._on_answer, effects
            )

    def _on_answer(self, answer: tuple[RegistryError, int] | None, effects: Effects) -> None:
        append = self._append
        if append is None:
            return
        append.is_asked = False
        if answer is None:
            self._link.pause(effects)
            return
        error, end_offset = answer
        if error is RegistryError.NONE:
            self._link.heard_of_end(end_offset)
            self._finish_append(append, effects, is_in_log=True)
            return
        effects.trace("append-refused", error=error.name, epoch=append.epoch)
        if error is RegistryError.STALE_CONTROLLER_EPOCH and self.epoch == append.epoch:
            self.end(effects)
        append.is_refused = True
        self._ask_registry(append, effects)

    def _on_read(self, answer: ReadAnswer | None, effects: Effects) -> None:
        append = self._append
        if append is None:
            return
        append.is_asked = False
        if answer is None or answer.error is RegistryError.SESSION_EXPIRED:
            # Its session is over; the next one may read.
            self._link.pause(effects)
            return
        self._link.heard_of_end(answer.log_end_offset)
        is_in_log = answer.record_epoch == append.epoch
        if answer.error is RegistryError.NONE:
            # The epoch may have other records there, of an append that was given up.
            is_in_log = is_in_log and answer.records[: len(append.values)] == append.values
        # Else a snapshot has taken the place of the records.
        self._finish_append(append, effects, is_in_log=is_in_log)

    def _finish_append(self, append: _Append, effects: Effects, *, is_in_log: bool) -> None:
        self._append = None
        missing = append.end_offset - self._metadata.next_offset
        if is_in_log and missing > 0:
            self._metadata.replay(append.values[-missing:], effects)
        append.done(is_in_log, effects)
        if self.epoch is not None:
            self._snapshots.on_append(self.epoch, effects)
        self._link.pump(effects)
        self.pump(effects)
