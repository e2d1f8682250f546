"""Registrations of brokers and partitions: Kafka's `BrokerRegistration` and
`PartitionRegistration`.

A broker without a registry leads every partition, as its only replica. Nothing of that is recorded;
`alone` answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from broker_sim.core.endpoint import Endpoint

NO_LEADER = -1
"""Leader of a partition while no replica that has all committed records is up."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker that is up. `epoch` is another one at each of its registrations, and rises."""

    broker_id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]
    """Endpoints where clients find the broker, by listener."""
    rack: str | None = None
    in_controlled_shutdown: bool = False
    """True in a controlled shutdown: it leads nothing more until its next start (KIP-841)."""

    def record_fields(self) -> dict[str, Any]:
        """Return the fields of the metadata record."""
        return {
            "broker": self.broker_id,
            "epoch": self.epoch,
            "endpoints": {name: [at.host, at.port] for name, at in self.endpoints.items()},
            "rack": self.rack,
            "in_controlled_shutdown": self.in_controlled_shutdown,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> BrokerRegistration:
        """The inverse."""
        endpoints = {name: Endpoint(*at) for name, at in record["endpoints"].items()}
        return cls(
            record["broker"],
            record["epoch"],
            endpoints,
            record["rack"],
            record["in_controlled_shutdown"],
        )


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    """The brokers that have a partition. The first of `replicas` is the preferred leader."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    """Rises with each election, when there is no leader any more (KIP-101), and when replicas are
    removed, which then cannot be taken for replicas any more."""
    partition_epoch: int
    """Rises with each change (KIP-497)."""
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment adds, until all of them are in the ISR."""
    removing: tuple[int, ...] = ()
    """Replicas that go once all added replicas are in the ISR (KIP-455)."""

    def changed(self, **fields: Any) -> PartitionRegistration:
        """With these fields, and epochs as Kafka's `PartitionChangeBuilder` raises them."""
        elected = fields.get("leader", self.leader) != self.leader
        removed = not set(self.replicas) <= set(fields.get("replicas", self.replicas))
        return replace(
            self,
            **fields,
            leader_epoch=self.leader_epoch + (elected or removed),
            partition_epoch=self.partition_epoch + 1,
        )

    def record_fields(self) -> dict[str, Any]:
        """Return all fields for the metadata record: a reader needs no earlier record."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> PartitionRegistration:
        """The inverse; JSON has no tuples."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
        }
        return cls(**fields)

    @classmethod
    def new(cls, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionRegistration:
        """Return the registration of a new, empty partition: the first replica of the ISR leads."""
        return cls(replicas, isr, isr[0] if isr else NO_LEADER, 0, 0)


def alone(broker_id: int, leader_epoch: int) -> PartitionRegistration:
    """The one replica of a partition, on the one broker."""
    return PartitionRegistration((broker_id,), (broker_id,), broker_id, leader_epoch, 0)
