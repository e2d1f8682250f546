"""A registry that crashes after any storage operation recovers the state of a whole step.

When power is lost, that of a step of the last round which was answered, or of a later one.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.registry_build import K, RegistryHost

from broker_sim.apis.registry_codes import (
    CONTROLLER_EPOCH_PATH,
    NodeChange,
    OperationType,
    registry_of_session,
    session_of_registry,
)
from simulation.hosts.disk import SimDisk

PATHS = ("/a", "/b", "/c/1", "/c/2")


class Writer:
    """Draws requests, and notes the state after each together with the operations up to it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.host = RegistryHost()
        self.session_ids = [self.host.open().session_id]
        self.host.multi(
            self.session_ids[0], NodeChange(OperationType.CREATE, CONTROLLER_EPOCH_PATH)
        )
        self.states = [(len(self.host.operations), state_of(self.host))]
        """After each step: how many operations there were, and the state."""
        self.rounds = [(len(self.host.operations), 0)]
        """After each round: how many operations there were, and how many steps."""
        self.host.rounds_end = False

    def step(self) -> None:
        rng, host = self.rng, self.host
        roll, session_id = rng.random(), rng.choice(self.session_ids)
        if roll < 0.6:
            kinds = [
                NodeChange(rng.choice(list(OperationType)), rng.choice(PATHS), rng.randbytes(20))
                for _ in range(rng.randint(1, 2))
            ]
            host.multi(session_id, *kinds)
        elif roll < 0.8:
            end = host.read(0).log_end_offset
            host.append(session_id, 0, end, *(rng.randbytes(30) for _ in range(rng.randint(1, 3))))
        elif roll < 0.85:
            self.write_snapshot(session_id)
        elif roll < 0.95:
            self.session_ids.append(host.open().session_id)
        else:
            host.call(K.REGISTRY_CLOSE_SESSION, session_id=session_id)
        self.note()

    def write_snapshot(self, session_id: int) -> None:
        """Write a snapshot of the metadata log, in two parts, each in a step of its own."""
        log, rng = self.host.read(0), self.rng
        end_offset = rng.randint(log.log_start_offset, log.log_end_offset)
        given = session_id, 0, end_offset
        self.host.write_snapshot(*given, 0, rng.randbytes(50), is_last=False)
        self.note()
        self.host.write_snapshot(*given, 1, rng.randbytes(50), rng.randbytes(50))

    def note(self) -> None:
        """A step has ended, and perhaps a round."""
        host, rng = self.host, self.rng
        self.states.append((len(host.operations), state_of(host)))
        if rng.random() < 0.4:
            host.end_round()
            self.rounds.append((len(host.operations), len(self.states) - 1))


def state_of(host: RegistryHost) -> bytes:
    return host.core._state.encode()


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans())
def test_after_every_prefix_of_operations_the_state_is_that_of_a_whole_step(seed, count, power):
    rng = random.Random(seed)
    writer = Writer(rng)
    for _ in range(count):
        writer.step()
    operations = writer.host.operations
    done = 0
    for end in range(writer.states[0][0], len(operations) + 1):
        disk = SimDisk()
        for operation in operations[:end]:
            disk.apply(operation)
        if power:
            disk.lose_power(rng)
        while done + 1 < len(writer.states) and writer.states[done + 1][0] <= end:
            done += 1
        found = state_of(RegistryHost(disk))
        in_step = writer.states[done][0] < end
        answered = max(step for count, step in writer.rounds if count <= end)
        first = answered if power else done
        assert found in [state for _, state in writer.states[first : done + 1 + in_step]]
        # Whoever has read it since that start relies on it.
        disk.lose_power(rng)
        assert state_of(RegistryHost(disk)) == found


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_a_crash_while_the_first_file_is_made_leaves_an_empty_registry(seed):
    operations = RegistryHost().operations
    for end in range(len(operations) + 1):
        disk = SimDisk()
        for operation in operations[:end]:
            disk.apply(operation)
        disk.lose_power(random.Random(seed))
        host = RegistryHost(disk)
        assert host.nodes() == {}
        first = host.open().session_id
        assert first == session_of_registry(registry_of_session(first), 1)
