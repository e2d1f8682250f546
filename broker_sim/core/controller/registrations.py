"""What the metadata says of a broker and of a partition: Kafka's `BrokerRegistration` and
`PartitionRegistration`.

A broker that has no registry leads every partition, as its only replica: nothing of that is
recorded, and `alone` says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from broker_sim.core.endpoint import Endpoint

NO_LEADER = -1
"""As the leader of a partition: no replica that has everything is up."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker that is up. `epoch` is another one at each of its registrations, and rises."""

    broker_id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]
    """Where clients find it, by listener."""
    rack: str | None = None
    in_controlled_shutdown: bool = False
    """It hands over what it leads, and gets nothing more until it is started again (KIP-841)."""

    def record_fields(self) -> dict[str, Any]:
        """As a metadata record has it."""
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
    """Of `replicas`, those that a reassignment adds and that are not all in the ISR yet."""
    removing: tuple[int, ...] = ()
    """Of `replicas`, those that go when all that are added are in the ISR (KIP-455)."""

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
        """As a metadata record has it: all of it, so that it can be read without the one before."""
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
        """Of a new partition, empty everywhere: led by the first replica of the ISR."""
        return cls(replicas, isr, isr[0] if isr else NO_LEADER, 0, 0)


def alone(broker_id: int, leader_epoch: int) -> PartitionRegistration:
    """The one replica of a partition, on the one broker."""
    return PartitionRegistration((broker_id,), (broker_id,), broker_id, leader_epoch, 0)
