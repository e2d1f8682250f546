"""A broker that has no registry: it is its own controller, and its metadata is its own log."""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.controller import Metadata, MetadataLog
from broker_sim.core.controller.image import MetadataRecord
from broker_sim.core.controller.producer_ids import ProducerIdAllocator
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.free_space import FreeSpace
from broker_sim.core.publisher import Publisher
from broker_sim.core.replica.leader import IsrProposal
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation, present
from txnlog_kafka.wire.messages import APIS


class Alone:
    """Membership without a registry: answers like `ClusterMember`, and implements `Metadata`."""

    apis = frozenset(APIS)
    """APIs that clients may use, as ApiVersions reports them."""
    registry_offset = 0
    """Up to where the registry's metadata log is in the image."""
    is_controller = True
    is_serving = True
    """True if clients are answered."""
    has_handed_over = True
    """True if this broker leads nothing that another broker could lead."""
    create_later = None
    """Asks the controller to create topics; None where that is done at once."""

    def __init__(self, log: MetadataLog, space: FreeSpace) -> None:
        self.image = log.image
        self.controller_id = log.image.node_id
        self.producer_ids = ProducerIdAllocator(log, space)
        self._log = log
        self._publisher: Publisher | None = None

    def carried_out_by(self, publisher: Publisher) -> Metadata:
        """The metadata, whose changes the publisher carries out from here on."""
        self._publisher = publisher
        return self

    def commit(self, records: Sequence[MetadataRecord], effects: Effects) -> None:
        """Commit the records: all are in the image before the first is carried out."""
        publisher = present(self._publisher, "there is no publisher for the committed records")
        for delta in self._log.commit(records, effects):
            publisher.publish(delta, effects)

    def alter_partition(
        self, proposal: IsrProposal, _reply: Reply[ErrorCode], _effects: Effects
    ) -> None:
        """Nothing has other replicas that an ISR could have."""
        raise InvariantViolation(f"a broker that is alone proposes an ISR: {proposal}")

    def begin_shutdown(self, effects: Effects) -> None:
        """There is nobody to hand anything over to."""

    def stop(self, effects: Effects) -> None:
        """There is nobody to be notified."""

    def on_timer(self, _key: TimerKey, _effects: Effects) -> bool:
        """No timer is of this module."""
        return False
