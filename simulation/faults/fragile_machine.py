"""The machine of a cluster that has lost records which the others have.

Kafka takes the last replica left in an ISR to have everything. So nothing else happens to the
cluster until this machine is out of every ISR, or was registered once more.
"""

from __future__ import annotations

from simulation.checkers.metadata_oracle import MetadataOracle
from simulation.hosts.sim_broker import SimulatedBroker


class FragileMachine:
    """See the module; at most one machine at a time."""

    def __init__(self, metadata: MetadataOracle) -> None:
        self._metadata = metadata
        self._lost: tuple[SimulatedBroker, int] | None = None
        """Process of the machine, and its broker epoch when the machine lost its records."""

    @property
    def exists(self) -> bool:
        """True from a loss until one of the other methods has seen that it is made good."""
        return self._lost is not None

    def mark(self, process: SimulatedBroker) -> None:
        """Note that a broker's machine has lost records that others have."""
        self._lost = process, self._broker_epoch(process)

    def forget(self) -> None:
        """Forget the machine: the others have lost their records, too."""
        self._lost = None

    def has_lost(self, name: str) -> bool:
        """True if the machine lost records that others have, and is still taken to have them."""
        self._notice()
        return self._lost is not None and self._lost[0].name == name

    def may_disturb(self, process: SimulatedBroker) -> bool:
        """True if a fault of this process hits no other machine than the one that has lost."""
        self._notice()
        return self._lost is None or process is self._lost[0]

    def _notice(self) -> None:
        """Forget the machine if it is out of every ISR, or was registered once more."""
        if self._lost is None:
            return
        lost, epoch = self._lost
        number = number_of(lost)
        in_sync = any(number in held.isr for held in self._metadata.partitions.values())
        if not in_sync or self._broker_epoch(lost) not in (epoch, -1):
            self._lost = None

    def _broker_epoch(self, process: SimulatedBroker) -> int:
        return self._metadata.broker_epochs.get(number_of(process), -1)


def number_of(process: SimulatedBroker) -> int:
    """Return the id of a broker, by the name of its process."""
    return int(process.name.removeprefix("broker-"))
