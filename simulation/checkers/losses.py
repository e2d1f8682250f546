"""Losses that the unsafe topic of a cluster may have; nothing else may be lost.

An unclean election loses the records that the new leader does not have. When all machines lose
power, the records that are not on all disks of the ISR may be lost, whichever of them leads then: a
leader may have lost the records that it had not flushed. Elections count as explained only when a
broker that was up has reported them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import TraceEvent
from broker_sim.core.membership.cluster_metadata import UNCLEAN_ELECTION, UNCLEAN_ELECTION_BEFORE
from simulation.checkers.replica_oracle import ReplicaLogs
from simulation.violation import violated


class Losses:
    """Losses of a run."""

    def __init__(
        self, logs: ReplicaLogs, now_us: Callable[[], int], count: Callable[[str], None]
    ) -> None:
        self.blackouts_us: list[int] = []
        """When all machines lost power."""
        self._logs = logs
        self._now_us = now_us
        self._count = count
        self._until: dict[str, int] = {}
        """By folder, the leader epoch that something was lost of, with all before it."""
        self._elections: set[tuple[str, int]] = set()
        """Folder and leader epoch of those that were unclean."""
        self._reported: set[tuple[str, int]] = set()

    # ------------------------------------------------------------------ what happens

    def on_election(self, directory: str, after: PartitionRegistration) -> None:
        """The metadata has an unclean election."""
        self._elections.add((directory, after.leader_epoch))
        self._lose(directory, [f"broker-{after.leader}"], after.leader_epoch - 1)

    def on_traces(self, traces: Iterable[TraceEvent]) -> None:
        """Note the unclean elections that a broker reports."""
        for trace in traces:
            if trace.kind in (UNCLEAN_ELECTION, UNCLEAN_ELECTION_BEFORE):
                directory = f"{trace.fields['topic']}-{trace.fields['partition']}"
                self._reported.add((directory, int(trace.fields["leader_epoch"])))

    def holders(self, directory: str) -> list[str]:
        """The brokers that have all that is committed: they may come into the ISR."""
        committed = self._logs.committed_in(directory)
        found = self._logs.oracles.items()
        return [
            name for name, oracle in found
            if oracle.held.get(directory, [])[: len(committed)] == committed
        ]  # fmt: skip

    def on_blackout(self, directory: str, held: PartitionRegistration, had: Sequence[str]) -> None:
        """Note that all machines have lost power; `had` are the `holders` of before."""
        brokers = {*had, *(f"broker-{number}" for number in held.isr)}
        self._lose(directory, sorted(brokers), held.leader_epoch)

    def _lose(self, directory: str, brokers: Sequence[str], until_epoch: int) -> None:
        """Drop the committed batches that not all of these brokers have."""
        self._until[directory] = max(until_epoch, self._until.get(directory, -1))
        committed = self._logs.committed_in(directory)
        before = len(committed)
        for name in brokers:
            held = self._logs.oracles[name].held.get(directory, [])
            pairs = zip(committed, held, strict=False)
            common = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
            del committed[len(common) :]
        if len(committed) < before:
            self._count("committed batches lost")
        for oracle in self._logs.oracles.values():
            done = oracle.compared.get(directory, 0)
            oracle.compared[directory] = min(done, len(committed))

    # ------------------------------------------------------------------ what it explains

    def explain(self, directory: str, crc: int) -> bool:
        """True if a batch may be missing: all of its appends were before a loss."""
        epochs = self._logs.epochs_of(directory, crc)
        return bool(epochs) and max(epochs) <= self._until.get(directory, -1)

    def lost_power_within(self, begun_us: int | None, asked_us: int | None) -> bool:
        """True if all machines lost power while a transaction was open.

        It is open from its begin until a commit is asked for.
        """
        if begun_us is None:
            return False
        return any(
            begun_us < at_us and (asked_us is None or at_us < asked_us)
            for at_us in self.blackouts_us
        )

    def check_reported(self) -> None:
        """Each unclean election was reported, and no other (10)."""
        if self._elections != self._reported:
            missing = sorted(self._elections - self._reported)
            foreign = sorted(self._reported - self._elections)
            violated(10, "unclean elections and reports of them differ", missing=missing,
                     foreign=foreign)  # fmt: skip

    def note_blackout(self) -> None:
        """Note a blackout at the present time."""
        self.blackouts_us.append(self._now_us())
