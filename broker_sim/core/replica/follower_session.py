"""A follower's side of its fetch session with one leader (KIP-227).

It knows how the leader was asked for each partition at last, and gathers what the next request must
say: all partitions when it asks for a session, later those that are asked for otherwise now, and
those to forget. Nothing here grows with the partitions that stay as they are.

Sources: Kafka's `FetchSessionHandler`, `FetchMetadata`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_sim.core.replica.fetch_session import INITIAL_EPOCH, INVALID_SESSION_ID, next_epoch
from txnlog_kafka.wire.error_codes import ErrorCode

Key = tuple[bytes, int]
"""The topic's id, and the partition's number."""


class FetchParameters(NamedTuple):
    """Parameters by which a partition is fetched."""

    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FollowerSession:
    """See the module."""

    def __init__(self) -> None:
        self.session_id = INVALID_SESSION_ID
        self.epoch = INITIAL_EPOCH
        self._asked: dict[Key, FetchParameters] = {}
        self._changes: dict[Key, FetchParameters | None] = {}
        """Changes for the next request, by partition; None: forget it."""

    @property
    def is_empty(self) -> bool:
        """Nothing is wanted."""
        changes = self._changes.items()
        forgotten = sum(position is None for _, position in changes)
        added = sum(position is not None and key not in self._asked for key, position in changes)
        return len(self._asked) + added == forgotten

    def asked(self, key: Key) -> FetchParameters | None:
        """Return the parameters by which the partition was last fetched."""
        return self._asked.get(key)

    def want(self, key: Key, position: FetchParameters) -> None:
        """From the next request on it is asked for so."""
        if self._asked.get(key) == position:
            self._changes.pop(key, None)
        else:
            self._changes[key] = position

    def forget(self, key: Key) -> None:
        """Stop fetching the partition."""
        if key in self._asked:
            self._changes[key] = None
        else:
            self._changes.pop(key, None)

    def next_request(self) -> tuple[Mapping[Key, FetchParameters], list[Key]]:
        """Return the partitions that a request sent now names, and those that it forgets."""
        changes, self._changes = self._changes, {}
        for key, position in changes.items():
            # Those that have moved come last, when all are named again.
            self._asked.pop(key, None)
            if position is not None:
                self._asked[key] = position
        if self.epoch == INITIAL_EPOCH:
            return self._asked, []
        named = {key: position for key, position in changes.items() if position is not None}
        return named, [key for key, position in changes.items() if position is None]

    def on_answer(self, session_id: int) -> None:
        """The leader has answered, and goes on with this session, or with none."""
        if session_id == INVALID_SESSION_ID:
            self.session_id, self.epoch = INVALID_SESSION_ID, INITIAL_EPOCH
        elif self.epoch == INITIAL_EPOCH:
            self.session_id, self.epoch = session_id, next_epoch(INITIAL_EPOCH)
        else:
            self.epoch = next_epoch(self.epoch)

    def on_failed(self, error: ErrorCode | None = None) -> None:
        """The leader did not answer, or with this error: the next request closes the session, if it
        is there, and asks for another one."""
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = INVALID_SESSION_ID
        self.epoch = INITIAL_EPOCH
