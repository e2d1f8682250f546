"""A model of the staging server beside a driver, which may end, stand still and give other bytes.

What it is asked for it has from tasks; what a task has staged is known by its commit message
alone, so the driver checks what it is given (`StagedPiece.check`). When the server ends, all that
it had is gone, and the next batch finds a new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_sim.sim.trace import Trace
from txnlog_spark.protocol.effects import FileFailed
from txnlog_spark.protocol.values import StagedPiece
from txnlog_spark.wire.invariants import InvariantViolation

STALL_MS = (10, 20_000)


@dataclass(slots=True)
class StagingServer:
    """One driver's server, or the ones after it."""

    staged: list[bytes] = field(default_factory=list)
    life: int = 0

    def put(self, data: bytes) -> tuple[int, int]:
        """A task stages; gives what the driver asks for it by."""
        self.staged.append(data)
        return self.life, len(self.staged) - 1

    def read(self, piece: StagedPiece) -> bytes | FileFailed:
        """What was staged, if the server that has it still lives."""
        life, number = _place(piece)
        return self.staged[number] if life == self.life else FileFailed("the server has ended")

    def end(self) -> None:
        """The process dies, and another one takes its place."""
        self.staged.clear()
        self.life += 1


def read_with_a_fault(
    server: StagingServer,
    piece: StagedPiece,
    faults: random.Random,
    trace: Trace,
    stall: Callable[[int], None],
) -> bytes | FileFailed:
    """What a server that fails now answers. `stall` lets the driver wait for so many ms."""
    kind = faults.choice(("ends", "stalls", "tears", "lies", "mistakes"))
    trace.fault("staging fault")
    trace.count(f"staging server {kind}")
    if kind == "ends":
        server.end()
    if kind == "stalls":
        stall(faults.randint(*STALL_MS))
    data = server.read(piece)
    if isinstance(data, FileFailed):
        return data
    if kind == "tears":
        return data[: faults.randrange(len(data))]
    if kind == "lies":
        changed = bytearray(data)
        changed[faults.randrange(len(data))] ^= 1 << faults.randrange(8)
        return bytes(changed)
    if kind == "mistakes":
        alike = [other for other in server.staged if len(other) == len(data)]
        return faults.choice(alike)
    return data


def _place(piece: StagedPiece) -> tuple[int, int]:
    if not isinstance(piece.source, tuple):
        raise InvariantViolation("a simulated task stages in the driver's server")
    life, number = piece.source
    return life, number
