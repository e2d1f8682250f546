"""Fetch sessions (KIP-227): the partitions that a client keeps fetching, and its last answers.

A request of a session names the partitions that are new to it, or are fetched from another offset
now, and those to forget. An answer names those with news: records, another high watermark or log
start, an error.

Kafka looks at all partitions of the session for each request. Here a session knows which of its
partitions may have news: named by the request, changed since they were looked at, or not fully
answered. So a partition without news costs nothing.

Sources: Kafka's `FetchSession`, `FetchManager`, `FetchSessionCacheShard`.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker_sim.core.config.key import INT32_MAX
from broker_sim.core.replica.changes import Changes
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from random import Random

SESSION_SLOTS = "max.incremental.fetch.session.cache.slots"
INVALID_SESSION_ID = 0
"""Session id of a request or an answer without a session."""
INITIAL_EPOCH = 0
"""A whole request, which asks for a session."""
FINAL_EPOCH = -1
"""A whole request, which asks for none; what session it names is closed."""
EVICTION_MS = 120_000
"""A session that was not used for longer gives way to any other, as in Kafka."""
UNKNOWN = -1

Key = tuple[str, int, int]
"""A partition as requests name it: by the name of its topic or, from Fetch 13 on, by the id, as a
number; and its own number."""


def next_epoch(epoch: int) -> int:
    """Return the epoch of the session's next request; 0 does not come back."""
    return 1 if epoch == INT32_MAX else epoch + 1


@dataclass(slots=True)
class FetchedPartition:
    """A partition that is fetched: how it was asked for at last (Kafka's `CachedPartition`)."""

    key: Key
    topic_id: uuid.UUID | None
    entry: Any
    """The FetchPartition of the request."""
    name: TopicPartition | None = None
    """By which a session hears of its changes, once that is known."""
    high_watermark: int = UNKNOWN
    """High watermark in the client's last answer, which also had the log start below."""
    log_start_offset: int = UNKNOWN

    def has_news(self, answer: Any) -> bool:
        """True if the client does not know yet what this answer says, its records aside."""
        diverging = answer.diverging_epoch
        return bool(
            answer.error_code
            or answer.preferred_read_replica >= 0
            or (diverging is not None and diverging.end_offset >= 0)
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
        )

    def on_answered(self, answer: Any) -> None:
        """The client gets this answer. After an error everything is news to it."""
        failed = answer.error_code != ErrorCode.NONE
        self.high_watermark = UNKNOWN if failed else answer.high_watermark
        self.log_start_offset = answer.log_start_offset


@dataclass(slots=True, eq=False)
class FetchSession:
    """Session of a client or of a follower."""

    session_id: int
    is_privileged: bool
    """A follower's."""
    asker: Hashable
    """The client and its wishes: after a change of it everything is looked at."""
    uses_topic_ids: bool
    created_ms: int
    partitions: dict[Key, FetchedPartition]
    epoch: int = 1
    """Epoch of the next request."""
    used_ms: int = 0
    """When the last request came, and the one before it."""
    used_before_ms: int = 0
    news: dict[Key, None] = field(default_factory=dict)
    """Partitions to look at, in this order."""
    delayed: int | None = None
    """The number of the request that waits."""

    def wanted(self) -> list[FetchedPartition]:
        """The partitions that may have news."""
        return [self.partitions[key] for key in self.news]

    def settle(self, partition: FetchedPartition) -> None:
        """Note a look at the partition: it has no news until it changes or is asked for."""
        self.news.pop(partition.key, None)

    def move_to_end(self, partition: FetchedPartition) -> None:
        """The client got records of it: next time the others come first."""
        self.news.pop(partition.key, None)
        self.news[partition.key] = None


@dataclass(slots=True)
class FetchContext:
    """Context of a request: its session, or else the partitions that it names."""

    named: dict[Key, FetchedPartition]
    session: FetchSession | None = None
    epoch: int = FINAL_EPOCH
    """Epoch of the request."""
    forgotten: list[FetchedPartition] = field(default_factory=list)
    """Partitions that the session no longer has."""

    def wanted(self) -> Iterable[FetchedPartition]:
        """Return the partitions to look at."""
        return self.named.values() if self.session is None else self.session.wanted()

    @property
    def is_overtaken(self) -> bool:
        """The session has had another request since."""
        return self.session is not None and self.session.epoch != next_epoch(self.epoch)


class FetchSessions:
    """Fetch sessions by id, and by the partitions whose changes they want to hear of."""

    def __init__(self, slots: int, rng: Random) -> None:
        self._slots = slots
        self._rng = rng
        self._by_id: dict[int, FetchSession] = {}
        self._by_partition: dict[TopicPartition, dict[int, Key]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def context(
        self,
        message: Any,
        named: dict[Key, FetchedPartition],
        forgotten: Iterable[Key],
        asker: Hashable,
        *,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext | ErrorCode:
        """Return the context of a request, or the error that explains why it is unknown."""
        epoch = message.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._remove_session(message.session_id)
            return FetchContext(named, None, epoch)
        session = self._by_id.get(message.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        gone = self._update_session(session, named, forgotten)
        if not session.partitions:
            self._remove_session(session.session_id)
            return FetchContext(named, None, FINAL_EPOCH, gone)
        session.used_before_ms, session.used_ms = session.used_ms, now_ms
        session.epoch = next_epoch(epoch)
        if session.asker != asker:
            session.asker = asker
            session.news |= dict.fromkeys(session.partitions)
        return FetchContext(named, session, epoch, gone)

    def create(
        self,
        partitions: dict[Key, FetchedPartition],
        asker: Hashable,
        *,
        is_privileged: bool,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> int:
        """The id of a new session with what a whole request has named; INVALID_SESSION_ID without
        a place for it."""
        if not self._has_place(is_privileged, len(partitions), now_ms):
            return INVALID_SESSION_ID
        session_id = self._rng.randint(1, INT32_MAX)
        while session_id in self._by_id:
            session_id = self._rng.randint(1, INT32_MAX)
        session = FetchSession(session_id, is_privileged, asker, uses_topic_ids, now_ms, partitions)
        session.used_ms = session.used_before_ms = now_ms
        session.news = dict.fromkeys(partitions)
        self._by_id[session_id] = session
        for partition in partitions.values():
            self._watch_partition(session, partition)
        return session_id

    def watch(
        self, session: FetchSession, partition: FetchedPartition, name: TopicPartition
    ) -> None:
        """Under this name the session hears of the partition's changes from here on."""
        partition.name = name
        self._watch_partition(session, partition)

    def on_changed(self, changes: Changes) -> list[FetchSession]:
        """Partitions that have changed may be news; the sessions that may read more of them."""
        found: dict[int, FetchSession] = {}
        for name in changes.all:
            for session_id, key in self._by_partition.get(name, {}).items():
                session = self._by_id[session_id]
                session.news.setdefault(key)
                if name in (
                    changes.for_replicas if session.is_privileged else changes.for_consumers
                ):
                    found[session_id] = session
        return list(found.values())

    # ------------------------------------------------------------------ details

    def _update_session(
        self,
        session: FetchSession,
        named: Mapping[Key, FetchedPartition],
        forgotten: Iterable[Key],
    ) -> list[FetchedPartition]:
        for key, partition in named.items():
            held = session.partitions.get(key)
            if held is None:
                session.partitions[key] = partition
            else:
                held.entry = partition.entry
                if session.is_privileged:
                    # It may have ignored the answer before it asked otherwise.
                    held.high_watermark = UNKNOWN
            session.news.setdefault(key)
        gone = []
        for key in forgotten:
            held = session.partitions.pop(key, None)
            if held is not None:
                session.settle(held)
                self._unwatch_partition(session, held)
                gone.append(held)
        return gone

    def _watch_partition(self, session: FetchSession, partition: FetchedPartition) -> None:
        if partition.name is not None:
            watching = self._by_partition.setdefault(partition.name, {})
            watching[session.session_id] = partition.key

    def _unwatch_partition(self, session: FetchSession, partition: FetchedPartition) -> None:
        if partition.name is None:
            return
        watching = self._by_partition.get(partition.name, {})
        # A topic that was created again has the old one's name, and another key.
        if watching.get(session.session_id) == partition.key:
            del watching[session.session_id]
            if not watching:
                del self._by_partition[partition.name]

    def _remove_session(self, session_id: int) -> None:
        session = self._by_id.pop(session_id, None)
        if session is not None:
            for partition in session.partitions.values():
                self._unwatch_partition(session, partition)

    def _has_place(self, is_privileged: bool, size: int, now_ms: int) -> bool:
        """Another session may give way: one that was not used for long; else, of those that are old
        or, where a follower asks, not a follower's, the one with the fewest partitions."""
        sessions = self._by_id.values()
        if len(sessions) < self._slots:
            return True
        oldest = min(sessions, key=lambda each: (each.used_ms, each.session_id), default=None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > EVICTION_MS:
            self._remove_session(oldest.session_id)
            return True
        ranked = [
            (each.is_privileged, len(each.partitions), each.session_id)
            for each in sessions
            if each.used_ms - each.created_ms > EVICTION_MS
            or (is_privileged and not each.is_privileged)
        ]
        if not ranked or (is_privileged, size, 0) < min(ranked):
            return False
        self._remove_session(min(ranked)[2])
        return True
