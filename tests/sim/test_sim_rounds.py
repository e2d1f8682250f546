"""Server and simulator are two witnesses of one contract: rounds and the order of effects."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import (
    Append,
    CancelTimer,
    Delete,
    Flush,
    Rename,
    Request,
    Respond,
    Step,
    StorageOperation,
    TimerFired,
    TimerKey,
    Truncate,
    WriteFile,
)
from broker_sim.server.broker_server import BrokerServer
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage
from broker_sim.server.system import System
from simulation.hosts.network import DecodedMessages, SimulatedConnection
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.sim_broker import Observer, SimulatedBroker
from simulation.trace import Trace
from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey

CONNECTIONS = 4
TURNS = ("step", "answer")
FILES = ("a", "a", "a", "b", "c")
KINDS = (
    "append",
    "append",
    "append",
    "flush",
    "flush",
    "flush",
    "replace",
    "cut",
    "rename",
    "delete",
)
HEARTBEAT = APIS[ApiKey.HEARTBEAT]


@dataclass(frozen=True)
class Arrival:
    """An input that arrives: a request on a connection, or a timer's; what its step is to do."""

    connection_id: int | None
    number: int
    storage: tuple[StorageOperation, ...]
    cancels: tuple[TimerKey, ...] = ()

    @property
    def key(self) -> TimerKey:
        return ("timer", str(self.number))


Round = list[Arrival]


def draw_operation(rng: random.Random, sizes: dict[str, int]) -> StorageOperation:
    """An operation that is possible on files of these sizes, which follow it."""
    path, kind = rng.choice(FILES), rng.choice(KINDS)
    if kind == "append" or path not in sizes:
        position = sizes.get(path, 0)
        sizes[path] = position + rng.randint(1, 3)
        return Append(path, position, bytes(sizes[path] - position))
    match kind:
        case "flush":
            return Flush((path, *rng.sample(sorted(sizes), rng.choice((0, 0, 1)))))
        case "replace":
            sizes[path] = 2
            return WriteFile(path, b"xy")
        case "cut":
            sizes[path] = rng.randint(0, sizes[path])
            return Truncate(path, sizes[path])
        case "rename":
            new_path = rng.choice([name for name in FILES if name != path])
            sizes[new_path] = sizes.pop(path)
            return Rename(path, new_path)
        case _:
            del sizes[path]
            return Delete(path)


def draw_rounds(rng: random.Random) -> list[Round]:
    """Draw several rounds of simultaneous arrivals; two of a round may be of one connection."""
    sizes: dict[str, int] = {}
    rounds, number = [], 0
    for _ in range(rng.randint(1, 6)):
        arrivals: Round = []
        for _ in range(rng.randint(1, 5)):
            number += 1
            connection_id = rng.choice((None, None, *range(1, CONNECTIONS + 1)))
            # It waits for the answer before it, when the files may be others; or never happens.
            waits = connection_id in {a.connection_id for a in arrivals} - {None}
            taken_back = connection_id is None and arrivals and arrivals[-1].cancels
            count = 0 if waits or taken_back else rng.randint(0, 4)
            storage = tuple(draw_operation(rng, sizes) for _ in range(count))
            cancels = (("timer", str(number + 1)),) if rng.random() < 0.3 else ()
            arrivals.append(Arrival(connection_id, number, storage, cancels))
        rounds.append(arrivals)
    return rounds


class ScriptedBroker:
    """A core that does what is in the script of each arrival."""

    def __init__(self, rounds: list[Round], story: list[str]) -> None:
        self._script = {arrival.number: arrival for arrivals in rounds for arrival in arrivals}
        self._story = story

    def step(self, item: object, _now_ms: int, _monotonic_ms: int) -> Step:
        match item:
            case TimerFired((_, number)):
                return self._step(int(number), ())
            case Request():
                message = HEARTBEAT.response(throttle_time_ms=0, error_code=0)
                answer = Respond(
                    item.connection_id, item.correlation_id, ApiKey.HEARTBEAT, 4, message
                )
                return self._step(item.correlation_id, (answer,))
            case _:
                return Step()

    def _step(self, number: int, responses: tuple[Respond, ...]) -> Step:
        self._story.append(f"step {number}")
        arrival = self._script[number]
        timers = tuple(CancelTimer(key) for key in arrival.cancels)
        return Step(storage=arrival.storage, responses=responses, timers=timers)


class NotingSystem(System):
    """Notes what changes a file, and what makes it durable."""

    def __init__(self, root: Path, story: list[str]) -> None:
        self._root, self._story = root, story

    def _note(self, call: str, path: Path | int, rest: object = "") -> None:
        if isinstance(path, int):
            path = Path(os.readlink(f"/proc/self/fd/{path}"))
        if not path.name.endswith(".tmp"):
            self._story.append(f"{call} {path.relative_to(self._root)} {rest}".rstrip())

    def write(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        self._note("append", descriptor, len(data))
        return super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        self._note("flush", descriptor)
        super().sync(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._note("cut", descriptor, size_bytes)
        super().truncate(descriptor, size_bytes)

    def rename(self, path: Path, new_path: Path) -> None:
        if path.name.endswith(".tmp"):
            self._note("replace", new_path)
        else:
            self._note("rename", path, new_path.name)
        super().rename(path, new_path)

    def remove(self, path: Path) -> None:
        self._note("delete", path)
        super().remove(path)


class Transport(asyncio.Transport):
    """The server's side of a connection; notes its answers."""

    def __init__(self, connection_id: int, story: list[str]) -> None:
        super().__init__()
        self._connection_id, self._story = connection_id, story

    def write(self, data: object) -> None:
        self._story.append(f"answer {self._connection_id}")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


def frame_of(arrival: Arrival) -> bytes:
    message = HEARTBEAT.request(
        group_id="g", generation_id=1, member_id="m", group_instance_id=None
    )
    return encode_request(message, 4, arrival.number, "c")


def told_by_server(root: Path, rounds: list[Round]) -> list[str]:
    """Return the actions of the server, in their order."""
    story: list[str] = []

    async def run() -> None:
        storage = FileStorage(root, NotingSystem(root, story))
        config = BrokerConfig({"connections.max.idle.ms": -1})
        broker = cast(Broker, ScriptedBroker(rounds, story))
        host = BrokerServer(lambda: broker, storage, config, SpaceGuard(root, 0))
        host.start()
        connections = [host.accept() for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.connection_made(Transport(connection.connection_id, story))
        for arrivals in rounds:
            for arrival in arrivals:
                if arrival.connection_id is None:
                    host._fired.add(arrival.key)
                    host.submit(TimerFired(arrival.key))
                else:
                    connections[arrival.connection_id - 1].data_received(frame_of(arrival))
            while host._round_scheduled:
                await asyncio.sleep(0)
        assert not host.failed.done()
        storage.close()
        host.failed.cancel()

    asyncio.run(run())
    return story


class SimConnection:
    """The simulator's side of a connection; notes its answers."""

    broker_open = True

    def __init__(self, connection_id: int, story: list[str]) -> None:
        self.connection_id, self._story = connection_id, story
        self.decode = DecodedMessages()

    def respond(self, frame: bytes) -> None:
        self._story.append(f"answer {self.connection_id}")


def named(operation: StorageOperation) -> str:
    """Return the storage operation as `NotingSystem` names it."""
    match operation:
        case Append(path, _, data):
            return f"append {path} {len(data)}"
        case Flush((path,)):
            return f"flush {path}"
        case WriteFile(path, _):
            return f"replace {path}"
        case Truncate(path, size_bytes):
            return f"cut {path} {size_bytes}"
        case Rename(path, new_path):
            return f"rename {path} {new_path}"
        case Delete(path):
            return f"delete {path}"
    raise AssertionError(operation)


class Files(Observer):
    """Notes what is done with files."""

    def __init__(self, story: list[str]) -> None:
        self.story = story

    def on_storage(self, process: SimulatedBroker, operation: StorageOperation) -> None:
        self.story.append(named(operation))


def told_by_simulator(rounds: list[Round], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the actions of the simulator, in their order."""
    story: list[str] = []
    script = ScriptedBroker(rounds, story)
    monkeypatch.setattr(SimulatedBroker, "_make_core", lambda *_: script)
    scheduler = Scheduler()
    host = SimulatedBroker(name="b", config=BrokerConfig({}), scheduler=scheduler,
                     trace=Trace(lambda: 0, None), seed="1", observer=Files(story))  # fmt: skip
    host.start()
    connections = [SimConnection(n + 1, story) for n in range(CONNECTIONS)]
    for arrivals in rounds:
        for arrival in arrivals:
            if arrival.connection_id is None:
                host._timers._fired.add(arrival.key)
                host.submit(TimerFired(arrival.key))
            else:
                connection = connections[arrival.connection_id - 1]
                host.on_frame(cast(SimulatedConnection, connection), frame_of(arrival)[4:])
        scheduler.run_until(lambda: False, limit_us=scheduler.now_us + 60_000_000)
    return story


def test_server_and_simulator_do_the_same_in_the_same_order(tmp_path, monkeypatch):
    shared_flushes = postponed_answers = 0
    for seed in range(150):
        rounds = draw_rounds(random.Random(seed))
        root = tmp_path / str(seed)
        root.mkdir()
        by_server = told_by_server(root, rounds)
        assert told_by_simulator(rounds, monkeypatch) == by_server, f"seed {seed}"
        operations = [op for arrivals in rounds for a in arrivals for op in a.storage]
        asked = sum(len(set(op.paths)) for op in operations if isinstance(op, Flush))
        shared_flushes += sum(line.startswith("flush") for line in by_server) < asked
        kinds = [kind for kind in (line.split()[0] for line in by_server) if kind in TURNS]
        postponed_answers += ("step", "step") in itertools.pairwise(kinds)
    assert shared_flushes > 30
    assert postponed_answers > 30
