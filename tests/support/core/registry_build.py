"""A registry on a disk in memory, asked as a client asks it; time stands still unless moved."""

from __future__ import annotations

from random import Random
from typing import Any

from broker_sim.apis import OWN_APIS, RegistryApiKey
from broker_sim.apis.registry import NO_SESSION, NodeChange, RegistryError
from broker_sim.core.effects import (
    CancelTimer,
    Close,
    Disconnected,
    Input,
    Request,
    Respond,
    SetTimer,
    Start,
    Step,
    TimerFired,
    TimerKey,
)
from broker_sim.core.flush_order import FlushOrder
from broker_sim.registry.config import RegistryConfig
from broker_sim.registry.registry import Registry
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.messages import ApiKey

CONFIG = RegistryConfig(
    session_timeout_min_ms=1_000, session_timeout_max_ms=9_000, journal_bytes_max=1_000
)
CONNECTION = 1
K = RegistryApiKey


class RegistryHost:
    """Drives a registry as a host does, flushes and timers included."""

    def __init__(
        self, disk: SimDisk | None = None, config: RegistryConfig = CONFIG, seed: str = "registry"
    ) -> None:
        self.disk = SimDisk() if disk is None else disk
        self.monotonic_ms = 0
        self.timers: dict[TimerKey, int] = {}
        self.operations: list[Any] = []
        """All storage operations so far, as they were carried out."""
        self.answers: list[Respond | Close] = []
        self.rounds_end = True
        """Each step is a round; without it steps share their flushes until `end_round`."""
        self._order = FlushOrder()
        self._correlation_id = 0
        self._registry = Registry(config, self.disk, Random(seed))
        self.step(Start())

    def step(self, item: Input) -> Step:
        step = self._registry.step(item, 0, self.monotonic_ms)
        for each in step.storage:
            for operation in self._order.admit(each):
                self._carry_out(operation)
        if self.rounds_end:
            self.end_round()
        for change in step.timers:
            self.timers.pop(change.key, None)
            if isinstance(change, SetTimer):
                self.timers[change.key] = change.deadline_ms
            else:
                assert isinstance(change, CancelTimer)
        self.answers += step.responses
        return step

    def end_round(self) -> None:
        """What was answered since the last one is flushed."""
        for operation in self._order.drain():
            self._carry_out(operation)

    def _carry_out(self, operation: Any) -> None:
        self.operations.append(operation)
        self.disk.apply(operation)

    def request(self, key: RegistryApiKey | ApiKey, message: Any, connection: int) -> Request:
        self._correlation_id += 1
        return Request(connection, self._correlation_id, key, 0, "test", "127.0.0.1", message)

    def send(self, key: RegistryApiKey, connection: int = CONNECTION, **fields: Any) -> Any:
        """The answer's message, None when there is none yet."""
        request = self.request(key, OWN_APIS[key].request(**fields), connection)
        for response in self.step(request).responses:
            if response.connection_id == connection:
                assert isinstance(response, Respond)
                assert response.correlation_id == request.correlation_id
                return response.message
        return None

    def open(self, timeout_ms: int = 5_000, session_id: int = NO_SESSION) -> Any:
        return self.send(K.REGISTRY_OPEN_SESSION, session_id=session_id, timeout_ms=timeout_ms)

    def heartbeat(self, session_id: int) -> RegistryError:
        return error_of(self.send(K.REGISTRY_HEARTBEAT, session_id=session_id))

    def multi(self, session_id: int, *operations: NodeChange) -> Any:
        made = OWN_APIS[K.REGISTRY_MULTI].request.Operation
        return self.send(
            K.REGISTRY_MULTI,
            session_id=session_id,
            operations=[
                made(type=o.type, path=o.path, data=o.data, expected_version=o.version)
                for o in operations
            ],
        )

    def nodes(self, prefix: str | None = "/", paths: tuple[str, ...] = ()) -> dict[str, Any]:
        answer = self.send(
            K.REGISTRY_GET_NODES, session_id=NO_SESSION, paths=list(paths), prefix=prefix
        )
        return {n.path: (n.data, n.node_version, n.owner_session_id) for n in answer.nodes}

    def append(self, session_id: int, epoch: int, offset: int, *records: bytes) -> Any:
        return self.send(
            K.REGISTRY_APPEND,
            session_id=session_id,
            controller_epoch=epoch,
            expected_end_offset=offset,
            records=list(records),
        )

    def read(self, offset: int, max_bytes: int = 1 << 30) -> Any:
        return self.send(
            K.REGISTRY_READ, session_id=NO_SESSION, from_offset=offset, max_bytes=max_bytes
        )

    def write_snapshot(
        self, session_id: int, epoch: int, end_offset: int, position: int, *records: bytes,
        is_last: bool = True,
    ) -> Any:  # fmt: skip
        return self.send(
            K.REGISTRY_WRITE_SNAPSHOT,
            session_id=session_id,
            controller_epoch=epoch,
            end_offset=end_offset,
            position=position,
            is_last=is_last,
            records=list(records),
        )

    def read_snapshot(
        self, end_offset: int = -1, position: int = 0, max_bytes: int = 1 << 30
    ) -> Any:
        return self.send(
            K.REGISTRY_READ_SNAPSHOT,
            session_id=NO_SESSION,
            end_offset=end_offset,
            position=position,
            max_bytes=max_bytes,
        )

    def wait(
        self, session_id: int, zxid: int, end: int, *, max_wait_ms: int = 500, connection: int = 7
    ) -> Any:
        return self.send(
            K.REGISTRY_WAIT,
            connection,
            session_id=session_id,
            zxid_seen=zxid,
            log_end_offset_seen=end,
            max_wait_ms=max_wait_ms,
        )

    def advance(self, by_ms: int) -> None:
        """Time goes on, and timers fire in their order."""
        end_ms = self.monotonic_ms + by_ms
        while due := sorted((at, key) for key, at in self.timers.items() if at <= end_ms):
            at, key = due[0]
            self.monotonic_ms = max(self.monotonic_ms, at)
            del self.timers[key]
            self.step(TimerFired(key))
        self.monotonic_ms = end_ms

    def disconnect(self, connection: int) -> None:
        self.step(Disconnected(connection))

    def restarted(self) -> RegistryHost:
        """Another process on the same files, whose clock begins elsewhere."""
        return RegistryHost(self.disk)


def error_of(message: Any) -> RegistryError:
    """The code of an answer, or of an operation's result."""
    return RegistryError(message.error_code)
