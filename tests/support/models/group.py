"""A dumb model of one classic group, written from the protocol: no record, no log, no reply object.

Times are monotonic ms. One protocol, equal timeouts for all members. Parked requests are tokens of
the caller; `released` collects what each is answered. A load gives back `stored`, with sessions
that begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace

from txnlog_kafka.wire.error_codes import ErrorCode

E = ErrorCode
SESSION_MS = 20_000
REBALANCE_MS = 30_000
INITIAL_DELAY_MS = 3_000
NEW_MEMBER_MS = 300_000
EMPTY, PREPARING, COMPLETING, STABLE = (
    "Empty", "PreparingRebalance", "CompletingRebalance", "Stable",
)  # fmt: skip


@dataclass
class Joined:
    """An answer to JoinGroup, the part that is compared."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    leader: str = ""
    members: frozenset[str] = frozenset()
    skips: bool = False


@dataclass
class Synced:
    error: ErrorCode
    assignment: bytes = b""


@dataclass
class Participant:
    """Member of the group. Tokens belong to its parked requests; None if no request is parked."""

    member_id: str
    instance: str | None
    metadata: bytes
    is_new: bool = True
    join_token: int | None = None
    sync_token: int | None = None
    has_synced: bool = True
    """Asked for its assignment since the generation began."""
    session_end: int | None = None
    assignment: bytes = b""


@dataclass
class GroupModel:
    """The group; `exists` is false before the first join or commit."""

    now: int = 0
    exists: bool = False
    state: str = EMPTY
    generation: int = 0
    leader: str = ""
    members: dict[str, Participant] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    """Given out, never joined: when each is forgotten."""
    join_at: int | None = None
    is_initial: bool = False
    remaining: int = 0
    grew: bool = False
    sync_at: int | None = None
    stored: GroupModel | None = None
    released: dict[int, Joined | Synced] = field(default_factory=dict)

    # ------------------------------------------------------------------ requests

    def join(
        self, token: int, member_id: str, instance: str | None, metadata: bytes, new_id: str
    ) -> None:
        """JoinGroup; `new_id` is the id that a member without one is given."""
        if member_id:
            self._join_known(token, member_id, instance, metadata)
            return
        if not self.exists:
            self.exists = True
            self.store()
        old = self._holder(instance)
        if old is not None:
            self._take_over(token, old, metadata, new_id)
        elif instance is not None:
            self._add(token, new_id, instance, metadata)
        else:
            self.pending[new_id] = self.now + SESSION_MS
            self.released[token] = Joined(E.MEMBER_ID_REQUIRED, new_id)

    def _join_known(
        self, token: int, member_id: str, instance: str | None, metadata: bytes
    ) -> None:
        if member_id in self.pending:
            if instance is not None:
                self.released[token] = Joined(E.UNKNOWN_SERVER_ERROR)
            else:
                self._add(token, member_id, None, metadata)
            return
        error = self.check(member_id, instance)
        if error is not E.NONE:
            self.released[token] = Joined(error, member_id)
            return
        member = self.members[member_id]
        changed = member.metadata != metadata
        leads = self.leader == member_id
        if self.state == PREPARING or changed or (self.state == STABLE and leads):
            member.metadata = metadata
            self._park_join(member, token)
            self._rebalance()
        else:
            self.released[token] = self._joined(member)

    def sync(
        self,
        token: int,
        member_id: str,
        instance: str | None,
        generation: int,
        assignments: dict[str, bytes],
    ) -> None:
        error = self.check(member_id, instance)
        if error is E.NONE and generation != self.generation:
            error = E.ILLEGAL_GENERATION
        if error is E.NONE and self.state == PREPARING:
            error = E.REBALANCE_IN_PROGRESS
        if error is not E.NONE:
            self.released[token] = Synced(error)
            return
        member = self.members[member_id]
        member.has_synced = True
        if self.state == STABLE:
            self.released[token] = Synced(E.NONE, member.assignment)
        else:
            if member.sync_token is not None:
                self.released[member.sync_token] = Synced(E.REBALANCE_IN_PROGRESS)
            member.sync_token = token
            if self.leader == member_id:
                self._assign(assignments)
        if all(each.has_synced for each in self.members.values()):
            self.sync_at = None

    def _assign(self, assignments: dict[str, bytes]) -> None:
        self.state = STABLE
        for each in self.members.values():
            each.assignment = assignments.get(each.member_id, b"")
        self.store()
        for each in self.members.values():
            self._release_sync(each, Synced(E.NONE, each.assignment))

    def heartbeat(self, member_id: str, instance: str | None, generation: int) -> ErrorCode:
        error = self.check(member_id, instance)
        if error is E.NONE and generation != self.generation:
            error = E.ILLEGAL_GENERATION
        if error is not E.NONE:
            return error
        self.members[member_id].session_end = self.now + SESSION_MS
        return E.REBALANCE_IN_PROGRESS if self.state == PREPARING else E.NONE

    def leave(self, member_id: str, instance: str | None) -> ErrorCode:
        """LeaveGroup of one."""
        if not member_id:
            holder = self._holder(instance)
            if holder is None:
                return E.UNKNOWN_MEMBER_ID
            member_id = holder.member_id
        elif member_id in self.pending:
            del self.pending[member_id]
            self._rest_rebalances()
            return E.NONE
        else:
            error = self.check(member_id, instance)
            if error is not E.NONE:
                return error
        self._remove(member_id)
        self._rest_rebalances()
        return E.NONE

    def commit(self, member_id: str, instance: str | None, generation: int) -> ErrorCode:
        """OffsetCommit, version 9: may it be?"""
        if not self.exists:
            return E.NONE if generation < 0 else E.GROUP_ID_NOT_FOUND
        if generation < 0 and self.state == EMPTY:
            return E.NONE
        if generation < 0 and not member_id and instance is None:
            return E.UNKNOWN_MEMBER_ID
        error = self._check_committer(member_id, instance, generation)
        if error is E.NONE and self.state == COMPLETING:
            return E.REBALANCE_IN_PROGRESS
        if error is E.NONE:
            self.members[member_id].session_end = self.now + SESSION_MS
        return error

    def txn_commit(self, member_id: str, instance: str | None, generation: int) -> ErrorCode:
        """TxnOffsetCommit: may it be?"""
        if not self.exists:
            return E.NONE if generation < 0 else E.ILLEGAL_GENERATION
        names_nobody = generation < 0 and not member_id and instance is None
        if names_nobody or (generation < 0 and self.state == EMPTY):
            return E.NONE
        return self._check_committer(member_id, instance, generation)

    def _check_committer(self, member_id: str, instance: str | None, generation: int) -> ErrorCode:
        error = self.check(member_id, instance)
        return E.ILLEGAL_GENERATION if error is E.NONE and generation != self.generation else error

    # ------------------------------------------------------------------ time and loads

    def advance(self, duration: int) -> None:
        """Let time pass; what is due happens in order of time, sessions before rebalances."""
        end = self.now + duration
        while True:
            due = [(at, 0, name) for name, at in self.pending.items()]
            due += [
                (each.session_end, 0, each.member_id)
                for each in self.members.values()
                if each.session_end is not None
            ]
            due += [(self.join_at, 1, "")] if self.join_at is not None else []
            due += [(self.sync_at, 2, "")] if self.sync_at is not None else []
            if not due or min(due)[0] > end:
                break
            at, kind, name = min(due)
            self.now = max(at, self.now)
            (self._end_session, self._end_join, self._end_sync)[kind](name)
        self.now = end

    def _end_session(self, member_id: str) -> None:
        if self.pending.pop(member_id, None) is not None:
            if self.state == PREPARING and self._are_all_here():
                self._begin_generation()
            return
        member = self.members[member_id]
        member.session_end = None
        is_waiting = member.join_token is not None or member.sync_token is not None
        if is_waiting and not member.is_new:
            return
        self._remove(member_id)
        if self.state == PREPARING:
            # Other than after a LeaveGroup, this ends an initial delay as well.
            if self._are_all_here():
                self._begin_generation()
        elif self.state != EMPTY:
            self._prepare()

    def _end_join(self, _name: str) -> None:
        self.join_at = None
        if self.is_initial and self.grew and self.remaining:
            delay, self.remaining = (
                min(INITIAL_DELAY_MS, self.remaining),
                max(self.remaining - INITIAL_DELAY_MS, 0),
            )
            self.join_at, self.grew = self.now + delay, False
        else:
            self._begin_generation()

    def _end_sync(self, _name: str) -> None:
        self.sync_at = None
        for each in [m for m in self.members.values() if not m.has_synced]:
            self._drop(each.member_id)
        self._prepare()

    def store(self) -> None:
        """The group's record is written."""
        copy = replace(self, members=deepcopy(self.members), pending={}, stored=None, released={})
        copy.state = STABLE if copy.members else EMPTY
        copy.join_at = copy.sync_at = None
        for each in copy.members.values():
            each.is_new, each.join_token, each.sync_token = False, None, None
            each.has_synced = True
        self.stored = copy

    def load(self, *, has_offsets: bool) -> GroupModel:
        """Return the group as a new coordinator knows it."""
        if self.stored is None:
            return GroupModel(exists=has_offsets)
        loaded = deepcopy(self.stored)
        loaded.stored, loaded.now = self.stored, 0
        for each in loaded.members.values():
            each.session_end = SESSION_MS
        return loaded

    # ------------------------------------------------------------------ parts

    def check(self, member_id: str, instance: str | None) -> ErrorCode:
        if instance is not None:
            holder = self._holder(instance)
            if holder is None:
                return E.UNKNOWN_MEMBER_ID
            if holder.member_id != member_id:
                return E.FENCED_INSTANCE_ID
        return E.NONE if member_id in self.members else E.UNKNOWN_MEMBER_ID

    def _holder(self, instance: str | None) -> Participant | None:
        found = [m for m in self.members.values() if instance and m.instance == instance]
        return found[0] if found else None

    def _are_all_here(self) -> bool:
        return not self.pending and all(m.join_token is not None for m in self.members.values())

    def _park_join(self, member: Participant, token: int) -> None:
        if member.join_token is not None:
            self.released[member.join_token] = Joined(E.REBALANCE_IN_PROGRESS, member.member_id)
        member.join_token = token

    def _release_sync(self, member: Participant, answer: Synced) -> None:
        if member.sync_token is not None:
            self.released[member.sync_token], member.sync_token = answer, None
            if member.member_id in self.members:
                member.session_end = self.now + SESSION_MS

    def _joined(self, member: Participant, *, skips: bool = False) -> Joined:
        leads = self.leader == member.member_id
        known = frozenset(self.members) if leads else frozenset()
        return Joined(
            E.NONE, member.member_id, self.generation, self.leader, known, skips and leads
        )

    def _add(self, token: int, member_id: str, instance: str | None, metadata: bytes) -> None:
        member = Participant(member_id, instance, metadata, join_token=token)
        member.session_end = self.now + NEW_MEMBER_MS
        self.pending.pop(member_id, None)
        self.grew = self.grew or (self.state == PREPARING and self.is_initial)
        self.leader = self.leader or member_id
        self.members[member_id] = member
        self._rebalance()

    def _take_over(self, token: int, old: Participant, metadata: bytes, new_id: str) -> None:
        if old.join_token is not None:
            self.released[old.join_token] = Joined(E.FENCED_INSTANCE_ID, old.member_id)
        if old.sync_token is not None:
            self.released[old.sync_token] = Synced(E.FENCED_INSTANCE_ID)
        new = Participant(new_id, old.instance, metadata, is_new=False, join_token=token)
        new.assignment, new.session_end = old.assignment, self.now + SESSION_MS
        del self.members[old.member_id]
        self.members[new_id] = new
        self.leader = new_id if self.leader == old.member_id else self.leader
        if self.state == STABLE:
            self.store()
            new.join_token = None
            self.released[token] = self._joined(new, skips=True)
        else:
            self._rebalance(always=self.state == COMPLETING)

    def _drop(self, member_id: str) -> Participant:
        member = self.members.pop(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), "")
        return member

    def _remove(self, member_id: str) -> None:
        member = self._drop(member_id)
        if member.join_token is not None:
            self.released[member.join_token] = Joined(E.UNKNOWN_MEMBER_ID)
        self._release_sync(member, Synced(E.UNKNOWN_MEMBER_ID))

    def _rest_rebalances(self) -> None:
        if self.state in (STABLE, COMPLETING):
            self._prepare()
        elif self.state == PREPARING and not self.is_initial and self._are_all_here():
            self._begin_generation()

    def _rebalance(self, *, always: bool = False) -> None:
        if self.state != PREPARING or always:
            self._prepare()
        elif not self.is_initial and self._are_all_here():
            self._begin_generation()

    def _prepare(self) -> None:
        if self.state == COMPLETING:
            self._tell_all(self.members.values())
        self.sync_at = None
        self.is_initial = self.state == EMPTY
        self.state = PREPARING
        if self.is_initial:
            self.join_at = self.now + INITIAL_DELAY_MS
            self.remaining = max(self._rebalance_ms() - INITIAL_DELAY_MS, 0)
        elif self._are_all_here():
            self._begin_generation()
        else:
            self.join_at = self.now + self._rebalance_ms()

    def _tell_all(self, members: Iterable[Participant]) -> None:
        for each in members:
            each.assignment = b""
            self._release_sync(each, Synced(E.REBALANCE_IN_PROGRESS))

    def _rebalance_ms(self) -> int:
        return REBALANCE_MS if self.members else 0

    def _begin_generation(self) -> None:
        self.join_at = None
        for each in [*self.members.values()]:
            if each.join_token is None and each.instance is None:
                self._drop(each.member_id)
        here = [m.member_id for m in self.members.values() if m.join_token is not None]
        if self.members and not here:
            self.join_at, self.is_initial = self.now + self._rebalance_ms(), False
            return
        self.generation += 1
        self.is_initial = False
        if not self.members:
            self.state = EMPTY
            self.store()
            return
        self.leader = self.leader if self.leader in here else here[0]
        self.state = COMPLETING
        for each in self.members.values():
            if each.join_token is not None:
                self.released[each.join_token] = self._joined(each)
            each.join_token, each.is_new, each.has_synced = None, False, False
            each.session_end = self.now + SESSION_MS
        self.sync_at = self.now + REBALANCE_MS
