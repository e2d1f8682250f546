"""What may be lost of the unsafe topic in a cluster, and nothing else.

An unclean election loses what the new leader has not. When all machines lose power, what is not on
all disks of the ISR may be lost, whichever of them leads then: so it is what one of them had not
flushed. Elections count as explained only when a broker that was up has reported them.
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
    """Of one run."""

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
        """What a broker tells."""
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
        """All machines have lost power; `had` are the `holders` of before."""
        brokers = {*had, *(f"broker-{number}" for number in held.isr)}
        self._lose(directory, sorted(brokers), held.leader_epoch)

    def _lose(self, directory: str, brokers: Sequence[str], until_epoch: int) -> None:
        """Of what is committed the part is left that all of these have."""
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
        """Whether a batch may be missing: all that have appended it did so before a loss."""
        epochs = self._logs.epochs_of(directory, crc)
        return bool(epochs) and max(epochs) <= self._until.get(directory, -1)

    def lost_power_within(self, begun_us: int | None, asked_us: int | None) -> bool:
        """Whether all machines lost power while a transaction was open: it was begun, and nobody
        had asked to commit it."""
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
        """It happens now."""
        self.blackouts_us.append(self._now_us())
