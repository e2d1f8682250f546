"""The host: what a round may show of files that change, and what connections leave behind."""

from __future__ import annotations

import asyncio
import gc
import struct

import pytest
from support.core.broker_build import fetch_request
from support.core.failing_storage import HostOnFiles, _Transport
from support.raw.hostile import Hostile

from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import (
    Append,
    Delete,
    FileSlice,
    Flush,
    PeerLost,
    RecordsField,
    Rename,
    Request,
    Respond,
    Send,
    Step,
    StorageSpace,
    TimerFired,
)
from broker_sim.server.broker_server import BrokerServer
from broker_sim.server.client_connection import ClientConnection
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage
from broker_sim.server.system import StorageFull
from txnlog_kafka.wire.framing import decode_response, encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey

LOG = "orders-0/00000000000000000000.log"
OLD, NEW = b"o" * 200_000, b"n" * 200_000
SWAP = ("swap",)


class FakeBroker:
    """Answers a Fetch with the whole log; its timer swaps the log as the cleaner does."""

    def step(self, item, _now_ms: int, _monotonic_ms: int) -> Step:
        if isinstance(item, Request):
            return Step(responses=(self._answer(item),))
        if isinstance(item, TimerFired):
            return Step((Append("new", 0, NEW), Delete(LOG), Rename("new", LOG)))
        return Step()

    def _answer(self, request: Request) -> Respond:
        response = APIS[ApiKey.FETCH].response
        topic = response.FetchableTopicResponse
        place = topic.PartitionData(partition_index=0, error_code=0, records=b"")
        message = response(responses=[topic(topic="orders", partitions=[place])])
        records = RecordsField(place, (FileSlice(LOG, 0, len(OLD)),))
        return Respond(request.connection_id, request.correlation_id, ApiKey.FETCH,
                       request.api_version, message, (records,))  # fmt: skip


async def connected(root) -> tuple[BrokerServer, _Transport]:
    storage = FileStorage(root)
    storage.perform([Append(LOG, 0, OLD)])
    config = BrokerConfig({"connections.max.idle.ms": -1})
    host = BrokerServer(FakeBroker, storage, config, SpaceGuard(root, 0))
    host.start()
    transport = _Transport()
    transport.connection = host.accept()
    transport.connection.connection_made(transport)
    transport.connection.data_received(encode_request(fetch_request("orders"), 11, 1, "c"))
    return host, transport


def swap(host: BrokerServer) -> None:
    """The timer fires in the round that is to come."""
    host._fired.add(SWAP)
    host.submit(TimerFired(SWAP))


def records_of(frame: bytes) -> bytes:
    assert struct.unpack_from(">i", frame) == (1,)
    message = decode_response(APIS[ApiKey.FETCH], 11, frame)
    return bytes(message.responses[0].partitions[0].records)


def test_an_answer_has_the_bytes_of_its_own_step_though_a_later_one_swaps_the_file(tmp_path):
    async def scenario() -> bytes:
        host, transport = await connected(tmp_path)
        swap(host)
        for _ in range(20):
            await asyncio.sleep(0)
        return transport.frames.pop()

    assert records_of(asyncio.run(scenario())) == OLD


@pytest.mark.parametrize("swapped", [True, False])
def test_an_answer_that_waits_for_its_reader_while_the_file_is_swapped_is_not_sent(
    tmp_path, swapped
):
    async def scenario() -> tuple[bytes | None, bool]:
        host, transport = await connected(tmp_path)
        connection = transport.connection
        connection.pause_writing()
        if swapped:
            swap(host)
        for _ in range(20):
            await asyncio.sleep(0)
        connection.resume_writing()
        return transport.frames.pop(), transport.closed

    frame, closed = asyncio.run(scenario())
    if swapped:
        assert (frame, closed) == (None, True)
    else:
        assert (records_of(frame), closed) == (OLD, False)


def test_requests_that_come_at_once_are_decoded_round_by_round(tmp_path, monkeypatch):
    """The server decodes the requests that fit into a round; the other requests wait as bytes."""
    request = encode_request(fetch_request("orders"), 11, 1, "c")
    monkeypatch.setattr("broker_sim.server.broker_server.ROUND_BYTES_MAX", 2 * len(request))

    async def scenario() -> tuple[int, list[bool]]:
        host, first = await connected(tmp_path)
        transports = [first]
        for _ in range(9):
            transport = _Transport()
            transport.connection = host.accept()
            transport.connection.connection_made(transport)
            transport.connection.data_received(request)
            transports.append(transport)
        decoded = len(host._inputs)
        for _ in range(20):
            await asyncio.sleep(0)
        return decoded, [transport.frames.pop() is not None for transport in transports]

    assert asyncio.run(scenario()) == (3, [True] * 10)


def held(host: BrokerServer) -> dict[str, int]:
    """Return the counts of objects and bytes that the host and the core keep for connections."""
    gc.collect()
    return {
        "connections": len(host._connections),
        "connection objects": sum(isinstance(each, ClientConnection) for each in gc.get_objects()),
        "delayed fetches": len(host._core.parts.fetches),
        "files in use": len(host._storage._in_use),
        "bytes of requests": host.request_memory.held_bytes,
        "waiting for memory": len(host.request_memory._waiting),
        "waiting inputs": len(host._inputs),
        "bytes of waiting inputs": host._round_bytes,
    }


@pytest.mark.invariant(47)
@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_connections_leave_nothing_behind(tmp_path, seed):
    hostile = Hostile(f"host/{seed}")
    rng = hostile.rng

    async def turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def scenario() -> tuple[dict[str, int], dict[str, int]]:
        host = HostOnFiles(tmp_path).host
        before = held(host)
        for _ in range(250):
            transport = _Transport()
            transport.connection = connection = host.accept()
            connection.connection_made(transport)
            for _ in range(rng.randrange(1, 12)):
                data = hostile.frame()
                cut = rng.randrange(len(data))
                for part in (data[:cut], data[cut:]):
                    if not transport.closed:
                        connection.data_received(part)
                await turns(rng.randrange(3))
                if rng.random() < 0.1 and not transport.closed:
                    connection.pause_writing()
            if not transport.closed:
                connection.connection_lost(None)
            await turns(2)
        await turns(20)
        del connection, transport
        assert not host.failed.done()
        return before, held(host)

    before, after = asyncio.run(scenario())
    assert after == before


SEND = Send(1, 0, 12, fetch_request("orders"))
TICK = ("tick",)


class AskingCore:
    """Its timer appends, flushes and asks broker 1."""

    def __init__(self) -> None:
        self.inputs: list = []

    def step(self, item, _now_ms: int, _monotonic_ms: int) -> Step:
        self.inputs.append(item)
        if not isinstance(item, TimerFired):
            return Step(sends=(SEND,) if isinstance(item, StorageSpace) else ())
        return Step((Append("a.log", 0, b"x"), Flush(("a.log",))), (SEND,))


class RecordedPeers:
    """Peer connections that record the host's calls, each with the number of flushes before it."""

    def __init__(self, host: BrokerServer) -> None:
        self.told: list = []
        self._storage = host._storage

    def send(self, request: Send) -> None:
        self.told.append((request, self._storage.flush_count))

    def close(self, *, abort: bool = False) -> None:
        self.told.append(("close", abort))


def asking_host(root, core: AskingCore, space: SpaceGuard) -> tuple[BrokerServer, RecordedPeers]:
    config = BrokerConfig({"connections.max.idle.ms": -1})
    host = BrokerServer(lambda: core, FileStorage(root), config, space)
    host.start()
    peers = host._peers = RecordedPeers(host)
    return host, peers


def test_a_request_to_a_peer_leaves_after_the_flush_of_its_step(tmp_path):
    async def scenario() -> list:
        host, peers = asking_host(tmp_path, AskingCore(), SpaceGuard(tmp_path, 0))
        host._fired.add(TICK)
        host.submit(TimerFired(TICK))
        await asyncio.sleep(0)
        assert host._storage.flush_count > 0
        return peers.told

    assert asyncio.run(scenario()) == [(SEND, 1)]


def test_what_the_core_asks_when_space_is_low_is_sent(tmp_path):
    async def scenario() -> list:
        space = SpaceGuard(tmp_path, 0)
        host, peers = asking_host(tmp_path, AskingCore(), space)
        space.is_low = lambda _now: True
        host.submit(PeerLost(2))
        await asyncio.sleep(0)
        return peers.told

    assert asyncio.run(scenario()) == [(SEND, 0)]


def test_a_new_core_after_a_full_disk_gets_no_answer_to_the_one_before(tmp_path):
    async def scenario() -> tuple[list, list]:
        core = AskingCore()
        host, peers = asking_host(tmp_path, core, SpaceGuard(tmp_path, 0))
        host.submit(PeerLost(2))
        host._start_anew(StorageFull("a.log"))
        for _ in range(3):
            await asyncio.sleep(0)
        return peers.told, [type(item).__name__ for item in core.inputs]

    told, inputs = asyncio.run(scenario())
    assert told == [("close", True)]
    assert inputs == ["Start", "Start"]
