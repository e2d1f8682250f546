"""A witness of controllers: each epoch has one, and no epoch goes back (9).

It looks at what the registry takes and answers: a controller decides by appending to the metadata
log in its epoch, and a reader of a record is answered in which epoch it was appended.
"""

from __future__ import annotations

from broker_sim.apis import RegistryApiKey
from broker_sim.apis.registry_codes import CONTROLLER_EPOCH_PATH, RegistryError
from broker_sim.core.effects import ConnectionId, Request, Respond
from simulation.violation import violated

_K = RegistryApiKey


class ControllerOracle:
    """Controllers of a cluster, as the registry reports them."""

    def __init__(self) -> None:
        self._controllers: dict[int, str] = {}
        """By epoch, the broker that has appended in it."""
        self._records: dict[int, int] = {}
        """Epoch by the offset that somebody read from."""
        self._newest = -1
        self._asked: dict[tuple[ConnectionId, int], Request] = {}
        """Unanswered requests, by connection and correlation id."""

    def on_asked(self, request: Request) -> None:
        """The registry has a request."""
        self._asked[request.connection_id, request.correlation_id] = request

    def on_reported(self, answer: Respond) -> None:
        """An answer leaves, so what it says is kept. Raises Violation (9)."""
        request = self._asked.pop((answer.connection_id, answer.correlation_id), None)
        message = answer.message
        if request is None or message.error_code != RegistryError.NONE:
            return
        if request.api_key is _K.REGISTRY_APPEND and request.message.records:
            self.on_decided(request.client_id or "", request.message.controller_epoch)
        elif request.api_key is _K.REGISTRY_READ and message.records:
            self.on_read(request.message.from_offset, message.record_epoch)
        elif request.api_key is _K.REGISTRY_GET_NODES:
            for node in message.nodes:
                if node.path == CONTROLLER_EPOCH_PATH:
                    self._rises(node.node_version, "registry")

    def on_decided(self, broker: str, epoch: int) -> None:
        """A broker's decision was taken in this epoch."""
        first = self._controllers.setdefault(epoch, broker)
        if first != broker:
            violated(9, "two brokers decide in one controller epoch", epoch=epoch, first=first,
                     second=broker)  # fmt: skip
        self._rises(epoch, broker)

    def on_read(self, offset: int, epoch: int) -> None:
        """The record at this offset was appended in this epoch."""
        first = self._records.setdefault(offset, epoch)
        if first != epoch:
            violated(9, "a record has two controller epochs", offset=offset, first=first,
                     second=epoch)  # fmt: skip

    def _rises(self, epoch: int, who: str) -> None:
        if epoch < self._newest:
            violated(9, "a controller epoch goes back", who=who, epoch=epoch, newest=self._newest)
        self._newest = max(self._newest, epoch)
