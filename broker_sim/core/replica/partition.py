"""Replica of a partition: its log, its role, and the replies that wait for a commit.

A broker that is alone leads every partition as its only replica, and the log itself moves the high
watermark. In a cluster the registration says the role: the leader moves the high watermark when
the others have fetched, a follower takes it from the leader.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Collection

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Effects
from broker_sim.core.log import PartitionLog
from broker_sim.core.replica.leader import (
    REJECTED,
    AlterPartition,
    IsEligible,
    IsrProposal,
    Leader,
)
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode


class Partition:
    """An append is committed when the high watermark has passed it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.registration: PartitionRegistration | None = None
        """Registration of the partition; None: this broker is alone."""
        self.leader: Leader | None = None
        """Knowledge of the leader of several replicas; None at a follower, and alone."""
        self._waiting: deque[tuple[int, Reply[ErrorCode]]] = deque()
        self._deleting: list[tuple[int, Reply[ErrorCode]]] = []

    # ------------------------------------------------------------------ roles

    def check_leader(self, current_leader_epoch: int, *, or_follower: bool = False) -> ErrorCode:
        """Return the error, or NONE, for a request that names this leader epoch (-1: no epoch).

        With `or_follower`, any replica may answer the request.

        Sources: KIP-320; Kafka's `Partition.getLocalLog`, which looks at the epoch first.
        """
        held = self.registration
        epoch = self.log.leader_epoch if held is None else held.leader_epoch
        if current_leader_epoch not in (-1, epoch):
            older = current_leader_epoch < epoch
            return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        may_answer = or_follower or held is None or self.leader is not None
        return ErrorCode.NONE if may_answer else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def lead(self, node_id: int, registration: PartitionRegistration, effects: Effects) -> None:
        """This broker leads, or still does; what was appended and waits goes on waiting."""
        before = self.registration
        if self.leader is None or before is None or before.leader_epoch < registration.leader_epoch:
            self.log.become_leader(registration.leader_epoch)
            self.leader = Leader(node_id, registration, self.log.log_end_offset)
        self.registration = registration
        self.leader.update(registration, effects.monotonic_ms)

    def follow(self, registration: PartitionRegistration, effects: Effects) -> None:
        """Another broker leads, or none."""
        self.registration = registration
        self.leader = None
        self.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER, effects)

    @property
    def knows_what_is_committed(self) -> bool:
        """False at a new leader whose high watermark has not reached where its epoch began: what
        its predecessor had committed may be more (KIP-207)."""
        leader = self.leader
        return leader is None or self.log.high_watermark >= leader.epoch_start_offset

    # ------------------------------------------------------------------ what is committed

    def check_enough_replicas(self) -> ErrorCode:
        """Return the error, or NONE, of an append for all replicas (min.insync.replicas)."""
        enough = not self._is_under_min_isr()
        return ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS

    def advance(self, effects: Effects, lag_max_ms: int, is_eligible: IsEligible) -> bool:
        """Move the leader's high watermark to where the replicas are; whether it has moved.

        Not while fewer are in the ISR than min.insync.replicas asks for (KAFKA-15583).
        """
        if self.leader is None or self._is_under_min_isr():
            return False
        before, now_ms = self.log.high_watermark, effects.monotonic_ms
        reached = self.leader.high_watermark(
            self.log.log_end_offset, now_ms, lag_max_ms, is_eligible
        )
        self.log.advance_high_watermark(reached, effects)
        return self.log.high_watermark > before

    def when_committed(self, last_offset: int, reply: Reply[ErrorCode], effects: Effects) -> None:
        """Call `reply` once the append that ends with `last_offset` is committed, after all
        that were appended before; in this step when it is already.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND when the ISR is too small by then, NOT_LEADER_OR_FOLLOWER
        when another broker leads before.
        """
        self._waiting.append((last_offset, reply))
        self.release(effects)

    def forget(self, reply: Reply[ErrorCode]) -> None:
        """Nobody waits for this one any more."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] is not reply)
        self._deleting = [entry for entry in self._deleting if entry[1] is not reply]

    def release(self, effects: Effects) -> None:
        """The high watermark may have moved. A reply may append, and so come here again."""
        while self._waiting and self._waiting[0][0] < self.log.high_watermark:
            _, reply = self._waiting.popleft()
            reply(self._committed(), effects)

    def _committed(self) -> ErrorCode:
        leader = self.leader
        if leader is not None:
            needed = leader.min_isr(self.log.config.min_insync_replicas)
            if len(leader.maximal_isr) < needed:
                return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def _is_under_min_isr(self) -> bool:
        leader = self.leader
        if leader is None:
            return False
        needed = leader.min_isr(self.log.config.min_insync_replicas)
        return len(leader.registration.isr) < needed

    def fail(self, error: ErrorCode, effects: Effects) -> None:
        """Nobody here will learn whether what waits is committed."""
        waiting = [*self._waiting, *self._deleting]
        self._waiting.clear()
        self._deleting.clear()
        for _, reply in waiting:
            reply(error, effects)

    # ------------------------------------------------------------------ deletions

    def low_watermark(self, alive: Collection[int]) -> int:
        """No replica that is up has anything below it, as far as this leader knows."""
        followers = {} if self.leader is None else self.leader.followers
        starts = [each.log_start_offset for replica, each in followers.items() if replica in alive]
        return min([self.log.log_start_offset, *starts])

    def when_deleted(self, offset: int, reply: Reply[ErrorCode]) -> None:
        """Call `reply` once the low watermark has come to the offset: see `release_deleted`."""
        self._deleting.append((offset, reply))

    def release_deleted(self, alive: Collection[int], effects: Effects) -> None:
        """A log start may have moved."""
        if not self._deleting:
            return
        low_watermark = self.low_watermark(alive)
        for entry in [entry for entry in self._deleting if entry[0] <= low_watermark]:
            self._deleting.remove(entry)
            entry[1](ErrorCode.NONE, effects)

    # ------------------------------------------------------------------ the ISR

    def propose(self, isr: tuple[int, ...], alter: AlterPartition, effects: Effects) -> None:
        """Ask the controller for this ISR; there is one proposal at a time."""
        leader = self.leader
        if leader is None:
            return
        held = leader.registration
        leader.proposal = IsrProposal(
            uuid.UUID(bytes=self.log.topic_id),
            self.log.partition,
            held.leader_epoch,
            held.partition_epoch,
            isr,
            leader.broker_epochs(isr),
        )
        effects.trace("isr-proposed", log=self.log.directory, isr=list(isr))
        proposal = leader.proposal

        def on_answer(error: ErrorCode, effects: Effects) -> None:
            if leader.proposal is proposal and error in REJECTED:
                effects.trace("isr-not-changed", log=self.log.directory, error=error.name)
                leader.proposal = None

        alter(proposal, on_answer, effects)
