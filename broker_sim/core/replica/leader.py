"""Leader's knowledge of the other replicas: how far they are, and which are in sync.

The ISR is the controller's, and the leader proposes another one. Until the answer is in the
metadata log, the *maximal* ISR counts: the present members, and also the proposed members
(KIP-497). So the high watermark is right whatever the controller decides.

Sources: Kafka's `Partition`, `Replica`, `PartitionState`. Times are of the monotonic clock, in ms.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Effects
from broker_sim.core.replica.fetch_session import UNKNOWN, FetchSession
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode

NEVER_MS = -(2**62)

IsEligible = Callable[[int, int], bool]
"""(broker id, broker epoch of its fetches) may be in an ISR: it is up in this epoch (KIP-903)."""


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """An ISR that the leader asks the controller for, as AlterPartition does (KIP-497).

    It holds for the leader epoch and the partition epoch only that the leader knew of.
    """

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    """Broker epochs of the fetches, in the order of `isr`; UNKNOWN without a fetch.

    A broker that has restarted since must not come in by what it had before (KIP-903).
    """


AlterPartition = Callable[[IsrProposal, Reply[ErrorCode], Effects], None]
"""Brings a proposal to the controller, as often as that takes. The answer is one of DECIDED: NONE
when the change is in the metadata log; it holds here when this broker has read it there."""

REJECTED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""The controller has refused the proposal, and it will not come to hold."""
OVERTAKEN = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The metadata log says, or soon will, what holds instead."""
DECIDED = REJECTED | OVERTAKEN
"""After any other error the controller is asked again (Kafka's `handleAlterPartitionError`)."""


class FetchPosition(NamedTuple):
    """Position of a follower's fetch: the end and the start of its log."""

    fetch_offset: int
    log_start_offset: int


@dataclass(slots=True)
class Follower:
    """Another replica, as its fetches show it (Kafka's `Replica`)."""

    log_end_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    caught_up_ms: int = NEVER_MS
    """Time at which the follower was last caught up, by its fetches to this leader."""
    last_fetch_ms: int = NEVER_MS
    last_fetch_leader_end: int = 2**63 - 1
    """The leader's log end at its last fetch."""
    log_start_offset: int = UNKNOWN
    session: FetchSession | None = None
    """By which it fetches: while there is no news here, later fetches of it do not come here."""

    @property
    def last_caught_up_ms(self) -> int:
        """Latest time at which it had all that the leader had then."""
        if self.session is not None and self.log_end_offset >= self.last_fetch_leader_end:
            return max(self.caught_up_ms, self.session.used_ms)
        return self.caught_up_ms

    def expect_until(self, now_ms: int) -> None:
        """Give a replica in the ISR its time from now on to fetch."""
        if self.caught_up_ms == NEVER_MS:
            self.caught_up_ms = now_ms

    def forget_session(self) -> None:
        """Its session goes on without this partition."""
        self.caught_up_ms, self.session = self.last_caught_up_ms, None

    def on_fetch(
        self,
        at: FetchPosition,
        broker_epoch: int,
        leader_end: int,
        now_ms: int,
        session: FetchSession | None = None,
    ) -> None:
        """Note a fetch: the follower has all records below the offset that it fetches from.

        A follower that fetches from the log end of its fetch before had everything then, though the
        log has grown meanwhile. Without that rule, a busy log's followers would never count as
        caught up.
        """
        fetch_offset, before_ms = at.fetch_offset, self.last_fetch_ms
        if session is not None and session is self.session:
            before_ms = session.used_before_ms
        if fetch_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end:
            self.caught_up_ms = max(self.caught_up_ms, before_ms)
        self.session = session
        self.log_end_offset, self.log_start_offset = at
        self.broker_epoch = broker_epoch
        self.last_fetch_leader_end = leader_end
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """True if the follower has everything, or had it at most replica.lag.time.max.ms ago."""
        has_all = self.log_end_offset == leader_end
        return has_all or now_ms - self.last_caught_up_ms <= lag_max_ms


_NO_FETCH = Follower()


@dataclass(slots=True)
class Leader:
    """The leader's view of one partition, in one leader epoch."""

    node_id: int
    registration: PartitionRegistration
    epoch_start_offset: int
    """The log end when the epoch began."""
    followers: dict[int, Follower] = field(default_factory=dict)
    proposal: IsrProposal | None = None
    """The one that is not decided yet."""

    def update(self, registration: PartitionRegistration, now_ms: int) -> None:
        """Take the present registration; a replica in the ISR gets its time from now to fetch."""
        proposal = self.proposal
        if proposal is not None and registration.partition_epoch > proposal.partition_epoch:
            self.proposal = None
        self.registration = registration
        others = [each for each in registration.replicas if each != self.node_id]
        self.followers = {each: self.followers.get(each, Follower()) for each in others}
        for each in registration.isr:
            follower = self.followers.get(each)
            if follower is not None:
                follower.expect_until(now_ms)

    def broker_epochs(self, isr: Iterable[int]) -> tuple[int, ...]:
        """By which brokers have fetched; this one's own is not known here."""
        return tuple(self.followers.get(each, _NO_FETCH).broker_epoch for each in isr)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Replicas that may be in the ISR, as far as this leader can know."""
        proposed = () if self.proposal is None else self.proposal.isr
        return frozenset((*self.registration.isr, *proposed))

    @property
    def is_alone_in_isr(self) -> bool:
        """True if committed records are on this broker only."""
        alone = (self.node_id,)
        return self.registration.isr == alone and (
            self.proposal is None or self.proposal.isr == alone
        )

    def min_isr(self, min_insync_replicas: int) -> int:
        """Return the number of replicas that must be in the ISR: at most as many as there are."""
        return min(min_insync_replicas, len(self.followers) + 1)

    def high_watermark(
        self, end_offset: int, now_ms: int, lag_max_ms: int, is_eligible: IsEligible
    ) -> int:
        """Below it every replica of the maximal ISR has everything.

        One that is about to come into the ISR is waited for, too: where appends never pause it
        could not reach the high watermark otherwise.
        """
        isr, lowest = self.maximal_isr, end_offset
        for replica_id, follower in self.followers.items():
            if follower.log_end_offset < lowest and (
                replica_id in isr
                or (
                    follower.is_caught_up(end_offset, now_ms, lag_max_ms)
                    and is_eligible(replica_id, follower.broker_epoch)
                )
            ):
                lowest = follower.log_end_offset
        return lowest

    def expanded_isr(
        self, replica_id: int, high_watermark: int, is_eligible: IsEligible
    ) -> tuple[int, ...] | None:
        """The ISR with a follower that has just fetched; None where it may not come in.

        It must have what is committed, and also what was in the log when this leader began: of that
        the high watermark may not tell yet (KAFKA-7128).
        """
        follower = self.followers[replica_id]
        if self.proposal is not None or replica_id in self.registration.isr:
            return None
        if follower.log_end_offset < max(high_watermark, self.epoch_start_offset):
            return None
        if not is_eligible(replica_id, follower.broker_epoch):
            return None
        return (*self.registration.isr, replica_id)

    def shrunk_isr(self, end_offset: int, now_ms: int, lag_max_ms: int) -> tuple[int, ...] | None:
        """The ISR without those that lag; None where nobody does, or a proposal is under way."""
        if self.proposal is not None:
            return None
        kept = tuple(
            each
            for each in self.registration.isr
            if each not in self.followers
            or self.followers[each].is_caught_up(end_offset, now_ms, lag_max_ms)
        )
        return None if kept == self.registration.isr else kept
