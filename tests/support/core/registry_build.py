"""A registry on a disk in memory, asked as a client asks it."""

from __future__ import annotations

from random import Random
from typing import Any

from support.core.core_process import CoreProcess

from broker_sim.apis import OWN_APIS, RegistryApiKey
from broker_sim.apis.registry_codes import NO_SESSION, NodeChange, RegistryError
from broker_sim.core.effects import Start
from broker_sim.registry.config import RegistryConfig
from broker_sim.registry.registry import Registry
from simulation.hosts.disk import SimDisk

CONFIG = RegistryConfig(
    session_timeout_min_ms=1_000, session_timeout_max_ms=9_000, journal_bytes_max=1_000
)
K = RegistryApiKey


class RegistryHost(CoreProcess):
    """A registry; whoever asks it has a connection for each peer id that it uses."""

    core: Registry

    def __init__(
        self, disk: SimDisk | None = None, config: RegistryConfig = CONFIG, seed: str = "registry"
    ) -> None:
        super().__init__(disk, now_ms=0, monotonic_ms=0)
        self.boot(Registry(config, self.disk, Random(seed)), Start())

    def call(self, key: RegistryApiKey, connection: int = 1, **fields: Any) -> Any:
        """Send a request; return the message of the answer, None if there is no answer yet."""
        asked = self.send(OWN_APIS[key].request(**fields), connection_id=connection)
        return self.asked.answers.get(asked)

    def open(self, timeout_ms: int = 5_000, session_id: int = NO_SESSION) -> Any:
        return self.call(K.REGISTRY_OPEN_SESSION, session_id=session_id, timeout_ms=timeout_ms)

    def heartbeat(self, session_id: int) -> RegistryError:
        return error_of(self.call(K.REGISTRY_HEARTBEAT, session_id=session_id))

    def multi(self, session_id: int, *operations: NodeChange) -> Any:
        made = OWN_APIS[K.REGISTRY_MULTI].request.Operation
        changes = [
            made(type=o.type, path=o.path, data=o.data, expected_version=o.version)
            for o in operations
        ]
        return self.call(K.REGISTRY_MULTI, session_id=session_id, operations=changes)

    def nodes(self, prefix: str | None = "/", paths: tuple[str, ...] = ()) -> dict[str, Any]:
        answer = self.call(
            K.REGISTRY_GET_NODES, session_id=NO_SESSION, paths=list(paths), prefix=prefix
        )
        return {n.path: (n.data, n.node_version, n.owner_session_id) for n in answer.nodes}

    def append(self, session_id: int, epoch: int, offset: int, *records: bytes) -> Any:
        return self.call(
            K.REGISTRY_APPEND, session_id=session_id, controller_epoch=epoch,
            expected_end_offset=offset, records=list(records),
        )  # fmt: skip

    def read(self, offset: int, max_bytes: int = 1 << 30) -> Any:
        return self.call(
            K.REGISTRY_READ, session_id=NO_SESSION, from_offset=offset, max_bytes=max_bytes
        )

    def write_snapshot(
        self, session_id: int, epoch: int, end_offset: int, position: int, *records: bytes,
        is_last: bool = True,
    ) -> Any:  # fmt: skip
        return self.call(
            K.REGISTRY_WRITE_SNAPSHOT, session_id=session_id, controller_epoch=epoch,
            end_offset=end_offset, position=position, is_last=is_last, records=list(records),
        )  # fmt: skip

    def read_snapshot(
        self, end_offset: int = -1, position: int = 0, max_bytes: int = 1 << 30
    ) -> Any:
        return self.call(
            K.REGISTRY_READ_SNAPSHOT, session_id=NO_SESSION, end_offset=end_offset,
            position=position, max_bytes=max_bytes,
        )  # fmt: skip

    def wait(
        self, session_id: int, zxid: int, end: int, *, max_wait_ms: int = 500, connection: int = 7
    ) -> Any:
        return self.call(
            K.REGISTRY_WAIT, connection, session_id=session_id, zxid_seen=zxid,
            log_end_offset_seen=end, max_wait_ms=max_wait_ms,
        )  # fmt: skip

    def restarted(self) -> RegistryHost:
        """Another process on the same files, whose clock begins elsewhere."""
        return RegistryHost(self.disk)


def error_of(message: Any) -> RegistryError:
    """The code of an answer, or of an operation's result."""
    return RegistryError(message.error_code)
