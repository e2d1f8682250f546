"""A consumer group in a cluster under faults: its members live, die and stand still.

When faults have ended the group has to become stable with all of its members, and to have read and
committed everything (45); then they leave, and it is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from simulation.checkers.group_history import Committed, GroupHistory
from simulation.hosts.client import ClientProcess
from simulation.load.consumer_members import (
    ConsumerCopier,
    ConsumerHistory,
    ConsumerMember,
    describe_consumers,
)
from simulation.load.group_members import Copier, Member, describe, read_committed_offsets
from simulation.load.reader import read_bounds
from simulation.load.routing import RETRY_MS, Routing
from simulation.load.transactions import check_ended
from simulation.scenario import GroupMembers
from simulation.trace import Trace
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.records import Record
from txnlog_spark.errors import TxnLogError

COPIES_TOPIC = "copies"
LOOK_MS = 1_000
PAUSE_US = (500_000, 5_000_000)
DOWN_MS = (10, 5_000)
STABLE, GONE = "Stable", ("Empty", "Dead")
NewProcess = Callable[[str], ClientProcess]
_check_ended = partial(check_ended, "a member of a group")


class GroupLoad:
    """See the module; nothing happens where the scenario has no members."""

    def __init__(
        self,
        settings: GroupMembers,
        rng: Random,
        topic: tuple[str, int],
        new_places: Callable[[], Routing],
        trace: Trace,
        *,
        faults_are_on: Callable[[], bool],
        is_coordinator: Callable[[int], bool],
    ) -> None:
        """`topic` is read, with so many partitions. `is_coordinator` is of the group."""
        self.history = (ConsumerHistory if settings.modern else GroupHistory)(is_coordinator)
        self.is_over = settings.members == 0
        """The group was stable with nothing left to do, and is empty now."""
        self._settings = settings
        self._rng = rng
        self._topic, self._partitions = topic
        self._new_places = new_places
        self._trace = trace
        self._faults_are_on = faults_are_on
        self._processes: dict[int, ClientProcess] = {}
        self._starts = 0
        self._leaves = False
        self._running = 0

    @property
    def topics(self) -> dict[str, int]:
        """The partitions of what it needs besides."""
        return {COPIES_TOPIC: 1} if self._settings.copiers else {}

    def start(self, process: NewProcess) -> None:
        """Start the members, and the administrator that looks at them."""
        if self.is_over:
            return
        for number in range(self._settings.members):
            self._start(process, number, 0)
        process("group-observer").run(self._watch(self._new_places()), _check_ended)

    def _start(self, process: NewProcess, number: int, delay_ms: int) -> None:
        self._starts += 1
        name = f"reader-{number}"
        is_static = number < self._settings.static_members
        common: dict[str, Any] = {
            "name": name,
            "instance_id": name if is_static else None,
            "topic": self._topic,
            "partitions": self._partitions,
            "places": self._new_places(),
            "history": self.history,
            "is_over": lambda: self._leaves,
            "delay_ms": delay_ms,
            "chance": lambda: self._chance(process, number),
        }
        if self._settings.copiers:
            copier = ConsumerCopier if self._settings.modern else Copier
            member: Member = copier(**common, target=COPIES_TOPIC)
        else:
            member = (ConsumerMember if self._settings.modern else Member)(**common)
        self._running += 1
        made = self._processes[number] = process(f"{name}-{self._starts}")
        made.run(member.live(), self._on_left)

    def _on_left(self, _: object, error: TxnLogError | None) -> None:
        _check_ended(_, error)
        self._running -= 1

    def _chance(self, process: NewProcess, number: int) -> None:
        """Kill a member, or have it stand still, while faults are on."""
        rng, victim = self._rng, self._processes[number]
        if not self._faults_are_on() or rng.random() >= self._settings.member_fault:
            return
        if rng.random() < 0.6:
            self._trace.count("group member paused")
            victim.pause(rng.randint(*PAUSE_US))
        else:
            self._trace.count("group member killed")
            victim.kill()
            self._running -= 1
            self._start(process, number, rng.randint(*DOWN_MS))

    def _watch(self, places: Routing) -> Operation[None]:
        """Read the group's offsets while faults are on, then see it healed."""
        while self._faults_are_on():
            yield Sleep(LOOK_MS)
            yield from self._committed(places)
        yield from self._heal(places)

    def _heal(self, places: Routing) -> Operation[None]:
        while not (yield from self._is_healed(places)):
            yield Sleep(RETRY_MS)
        self._leaves = True
        while True:
            found = yield from self._describe(places)
            if not self._running and found is not None and found[0] in GONE:
                break
            yield Sleep(RETRY_MS)
        self._trace.count("group healed")
        self.is_over = True

    def _is_healed(self, places: Routing) -> Operation[bool]:
        """Stable, with all members and no others, all read and nothing pending."""
        if (yield from self._describe(places)) != (STABLE, self._settings.members):
            return False
        committed = yield from self._committed(places)
        if committed is None:
            return False
        for number in range(self._partitions):
            bounds = yield from read_bounds(places, self._topic, number)
            done = committed[number].offset if number in committed else 0
            if done < bounds.high_watermark:
                return False
        return True

    def _describe(self, places: Routing) -> Operation[tuple[str, int] | None]:
        return describe_consumers(places) if self._settings.modern else describe(places)

    def _committed(self, places: Routing) -> Operation[dict[int, Committed] | None]:
        return read_committed_offsets(places, self.history, self._topic, self._partitions)

    def check(self, found: Mapping[tuple[str, int], Sequence[Record]]) -> None:
        """Check that committed offsets were processed, and that copies exist once."""
        originals = {n: found[self._topic, n] for n in range(self._partitions)}
        for number, records in originals.items():
            self.history.check_processed(number, records)
        if self._settings.copiers:
            self.history.check_copied(originals, found[COPIES_TOPIC, 0])
