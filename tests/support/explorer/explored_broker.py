"""The brokers as a finite automaton: states of the `Reference` by number, each step computed once.

A transaction is decided when EndTxn or InitProducerId is carried out; its markers are written by a
step of their own (`complete`), at any later time. Meanwhile a leader goes on taking what the
deciding epoch sends, as Kafka's does: it learns from the marker that the transaction is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from support.explorer.explored_answers import carry_out
from support.models.transactions import Reference

from txnlog_kafka.operations.effects import Call, Reply


class BrokerAutomaton:
    """States are numbers, 0 the first; `ask` and `complete` lead from one to another."""

    def __init__(self, transaction_version: int, groups: Sequence[str]) -> None:
        """The offsets of each group are on a partition of their own."""
        self.states: list[Reference] = []
        """States by number; they must not be changed."""
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, bytes], tuple[int, Reply, str]] = {}
        self._changes: dict[Any, int] = {}
        self._undecided: list[list[str]] = []
        first = Reference(transaction_version)
        first.group_place = {group: ("__consumer_offsets", n) for n, group in enumerate(groups)}
        self._number_of(first)

    def answer(self, call: Call) -> Reply:
        """To a request whose answer is the same in every state."""
        return carry_out(self.states[0].copy(), call)

    def ask(self, number: int, call: Call, key: bytes) -> tuple[int, Reply, str]:
        """Carry a request out; `key` names it. The state after it, the answer, and its name."""
        step = self._steps.get((number, key))
        if step is None:
            changed = self.states[number].copy()
            reply = carry_out(changed, call)
            step = self._steps[number, key] = (self._number_of(changed), reply, repr(reply))
        return step

    def undecided(self, number: int) -> list[str]:
        return self._undecided[number]

    def complete(self, number: int, name: str) -> int:
        return self._changed(number, name, Reference.mark)

    def time_out(self, number: int, name: str) -> int:
        """A transaction has been open for too long."""
        return self._changed(number, name, Reference.fence)

    def _changed(self, number: int, name: str, change: Callable[[Reference, str], None]) -> int:
        key = (number, name, change)
        if key not in self._changes:
            changed = self.states[number].copy()
            change(changed, name)
            self._changes[key] = self._number_of(changed)
        return self._changes[key]

    def _number_of(self, state: Reference) -> int:
        number = self._numbers.setdefault(state.key(), len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self._undecided.append(state.pending())
        return number
