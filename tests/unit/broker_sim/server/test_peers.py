"""Requests to other processes, over real sockets: answers, their order, and every kind of loss."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from support.core.broker_build import fetch_request, request

from broker_sim.apis import BROKER_APIS, OWN_APIS, RegistryApiKey
from broker_sim.apis.frames import decode_request, encode_response
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import PeerAnswer, PeerLost, Send
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.registry_client import REGISTRY_PEER
from broker_sim.server import peer_connections as peers_module
from broker_sim.server.peer_connections import PeerConnections
from txnlog_kafka.wire.framing import FrameDecoder
from txnlog_kafka.wire.messages import APIS, ApiKey

PEER = 7
WAIT_SECONDS = 20
HEARTBEAT = request(ApiKey.HEARTBEAT, group_id="g", generation_id=1, member_id="m")


class Owner:
    """A host for peer connections: it knows addresses, and keeps the inputs that come."""

    def __init__(self) -> None:
        self.endpoints: dict[int, Endpoint] = {}
        self.asked = 0
        self._items: asyncio.Queue = asyncio.Queue()

    def peer_endpoint(self, peer: int) -> Endpoint | None:
        self.asked += 1
        return self.endpoints.get(peer)

    def submit(self, item: PeerAnswer | PeerLost, size_bytes: int = 0) -> None:
        assert isinstance(item, PeerLost) or size_bytes > 0
        self._items.put_nowait(item)

    async def next(self) -> PeerAnswer | PeerLost:
        return await asyncio.wait_for(self._items.get(), WAIT_SECONDS)

    @property
    def is_empty(self) -> bool:
        return self._items.empty()


class Remote:
    """A peer's listener: `react(number of the connection, header, writer)` for each request."""

    def __init__(self, react) -> None:
        self.react = react
        self.connections = 0
        self.headers: list = []
        self.closed: asyncio.Queue[int] = asyncio.Queue()

    async def __aenter__(self) -> Remote:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = Endpoint(*self.server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, frames = self.connections, FrameDecoder()
        self.connections += 1
        try:
            while data := await reader.read(65_536):
                for frame in frames.feed(data):
                    header, _ = decode_request(frame)
                    self.headers.append((number, header))
                    if await self.react(number, header, writer) == "close":
                        writer.close()
                        return
        except ConnectionError:
            pass
        finally:
            self.closed.put_nowait(number)
            writer.close()


def answer_bytes(header, **fields) -> bytes:
    own = OWN_APIS.get(header.api_key)
    made = (own or APIS[header.api_key]).response(**fields)
    return encode_response(header.api_key, header.api_version, header.correlation_id, made)


async def answering(number: int, header, writer: asyncio.StreamWriter) -> None:
    del number
    writer.write(answer_bytes(header))


async def silent(number: int, header, writer: asyncio.StreamWriter) -> None:
    """Stays silent."""


def heartbeat(correlation_id: int, peer: int = PEER) -> Send:
    return Send(peer, correlation_id, 4, HEARTBEAT)


def run(
    react, scenario: Callable[[Owner, PeerConnections, Remote], Awaitable[None]], **options: object
) -> None:
    """The scenario with a peer that reacts so."""

    async def everything() -> None:
        owner = Owner()
        config = BrokerConfig(
            {"node.id": 3, **{k.replace("_", "."): v for k, v in options.items()}}
        )
        peers = PeerConnections(owner.submit, owner.peer_endpoint, config)
        async with Remote(react) as remote:
            owner.endpoints[PEER] = remote.endpoint
            await scenario(owner, peers, remote)
            peers.close()

    asyncio.run(asyncio.wait_for(everything(), 3 * WAIT_SECONDS))


def test_answers_come_in_the_order_of_the_requests_over_one_connection() -> None:
    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        for number in range(50):
            peers.send(heartbeat(number))
        answers = [await owner.next() for _ in range(50)]
        assert [(a.peer, a.correlation_id) for a in answers] == [(PEER, n) for n in range(50)]
        assert {a.message.error_code for a in answers} == {0}
        assert remote.connections == owner.asked == 1
        assert {header.client_id for _, header in remote.headers} == {"broker-3"}

    run(answering, scenario)


def test_a_request_to_the_registry_is_framed_as_ours_and_its_answer_decoded() -> None:
    async def react(number: int, header, writer: asyncio.StreamWriter) -> None:
        del number
        writer.write(answer_bytes(header, error_code=0, session_id=12, timeout_ms=900))

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        owner.endpoints[REGISTRY_PEER] = remote.endpoint
        own = OWN_APIS[RegistryApiKey.REGISTRY_OPEN_SESSION]
        peers.send(Send(REGISTRY_PEER, 5, 0, own.request(session_id=-1, timeout_ms=900)))
        answer = await owner.next()
        assert (answer.peer, answer.correlation_id) == (REGISTRY_PEER, 5)
        assert (answer.message.session_id, answer.message.timeout_ms) == (12, 900)

    run(react, scenario)


def test_what_waits_at_the_peer_holds_up_no_request_of_another_kind() -> None:
    waiting = {
        ApiKey.FETCH: Send(PEER, 0, 12, fetch_request("orders")),
        ApiKey.WRITE_TXN_MARKERS: Send(PEER, 1, 1, request(ApiKey.WRITE_TXN_MARKERS, markers=[])),
        **{
            own.key: Send(PEER, number, own.version, own.request())
            for number, own in enumerate(BROKER_APIS.values(), 2)
        },
    }

    async def react(number: int, header, writer: asyncio.StreamWriter) -> None:
        if header.api_key not in waiting:
            await answering(number, header, writer)

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        for send in waiting.values():
            peers.send(send)
        peers.send(heartbeat(9))
        assert (await owner.next()).correlation_id == 9
        while len(remote.headers) <= len(waiting):
            await asyncio.sleep(0)
        by_key = {header.api_key: number for number, header in remote.headers}
        assert len({by_key[key] for key in BROKER_APIS}) == 1
        assert remote.connections == len(set(by_key.values())) == 4

    run(react, scenario)


@pytest.mark.parametrize("sent", [2, 9])
def test_a_connection_that_ends_within_a_frame_loses_the_peer_once(sent: int) -> None:
    async def react(number: int, header, writer: asyncio.StreamWriter) -> str | None:
        if header.correlation_id == 0:
            return await answering(number, header, writer)
        writer.write(answer_bytes(header, error_code=0)[:sent])
        return "close"

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        for number in range(4):
            peers.send(heartbeat(number))
        assert (await owner.next()).correlation_id == 0
        assert await owner.next() == PeerLost(PEER)
        assert await remote.closed.get() == 0
        assert owner.is_empty

    run(react, scenario)


def test_a_loss_of_one_connection_of_a_peer_ends_the_other_and_is_told_once() -> None:
    async def react(number: int, header, writer: asyncio.StreamWriter) -> str | None:
        del number, writer
        return None if header.api_key is ApiKey.FETCH else "close"

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        peers.send(Send(PEER, 0, 12, fetch_request("orders")))
        peers.send(heartbeat(1))
        assert await owner.next() == PeerLost(PEER)
        assert {await remote.closed.get(), await remote.closed.get()} == {0, 1}
        assert owner.is_empty

    run(react, scenario)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x06\x00\x00\x00\x63\x00\x00",  # an answer to another request
        b"\x00\x00\x00\x05\x00\x00\x00\x00\xff",  # no heartbeat's answer
        b"\xff\xff\xff\xff",  # no length
    ],
)
def test_bytes_that_are_no_answer_lose_the_peer(garbage: bytes) -> None:
    async def react(number: int, header, writer: asyncio.StreamWriter) -> None:
        del number, header
        writer.write(garbage)

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        peers.send(heartbeat(0))
        assert await owner.next() == PeerLost(PEER)
        assert await remote.closed.get() == 0

    run(react, scenario)


def test_a_refused_connection_loses_the_peer_and_the_next_request_connects_again() -> None:
    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        there = owner.endpoints[PEER]
        with socket.create_server(("127.0.0.1", 0)) as unused:
            owner.endpoints[PEER] = Endpoint(*unused.getsockname()[:2])
        peers.send(heartbeat(0))
        peers.send(heartbeat(1))
        assert await owner.next() == PeerLost(PEER)
        owner.endpoints[PEER] = there
        peers.send(heartbeat(2))
        assert (await owner.next()).correlation_id == 2
        assert [header.correlation_id for _, header in remote.headers] == [2]

    run(answering, scenario)


def test_a_peer_without_an_address_is_lost_and_asked_for_again_after_a_pause_only() -> None:
    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        del remote
        loop = asyncio.get_running_loop()
        owner.endpoints.clear()
        began = loop.time()
        for number in range(4):
            peers.send(heartbeat(number))
            assert await owner.next() == PeerLost(PEER)
        assert loop.time() - began >= 3 * peers_module.RECONNECT_SECONDS
        assert owner.asked == 4

    run(answering, scenario)


def test_a_connection_that_does_not_come_about_is_given_up_after_its_time() -> None:
    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        del remote
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            address = full.getsockname()[:2]
            # The kernel drops what does not fit into the backlog, and the client tries on.
            clients = [socket.socket() for _ in range(3)]
            for client in clients:
                client.setblocking(False)
                client.connect_ex(address)
            owner.endpoints[PEER] = Endpoint(*address)
            peers.send(heartbeat(0))
            assert await owner.next() == PeerLost(PEER)
            for client in clients:
                client.close()

    run(answering, scenario, socket_connection_setup_timeout_ms=50)


def test_an_answer_that_stays_away_loses_the_peer_after_its_time() -> None:
    async def react(number: int, header, writer: asyncio.StreamWriter) -> None:
        if header.correlation_id == 0:
            await answering(number, header, writer)

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        peers.send(heartbeat(0))
        assert (await owner.next()).correlation_id == 0
        peers.send(heartbeat(1))
        assert await owner.next() == PeerLost(PEER)
        assert await remote.closed.get() == 0

    run(react, scenario, replica_socket_timeout_ms=100)


def test_an_idle_connection_that_the_peer_closes_is_no_loss_and_is_made_again() -> None:
    async def react(number: int, header, writer: asyncio.StreamWriter) -> str:
        await answering(number, header, writer)
        return "close"

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        for number in range(3):
            peers.send(heartbeat(number))
            assert (await owner.next()).correlation_id == number
            assert await remote.closed.get() == number
            while peers._peers[PEER]._links:
                await asyncio.sleep(0)
        assert remote.connections == 3
        assert owner.is_empty

    run(react, scenario)


def test_an_answer_of_many_megabytes_comes_whole_whatever_its_pieces() -> None:
    records = bytes(range(256)) * 32_768  # 8 MB

    async def react(number: int, header, writer: asyncio.StreamWriter) -> None:
        del number
        response = APIS[ApiKey.FETCH].response
        topic = response.FetchableTopicResponse
        place = topic.PartitionData(partition_index=0, error_code=0, records=records)
        made = topic(topic="orders", partitions=[place])
        frame = answer_bytes(header, responses=[made])
        writer.write(frame[:3])
        await writer.drain()
        writer.write(frame[3:])

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        del remote
        peers.send(Send(PEER, 0, 12, fetch_request("orders")))
        answer = await owner.next()
        assert bytes(answer.message.responses[0].partitions[0].records) == records

    run(react, scenario)


def test_requests_to_a_peer_that_does_not_read_wait_outside_the_socket_and_all_arrive() -> None:
    count, large = 400, request(ApiKey.HEARTBEAT, group_id="g" * 30_000, member_id="m")
    reads = asyncio.Event()

    async def react(number: int, header, writer: asyncio.StreamWriter) -> None:
        await reads.wait()
        await answering(number, header, writer)

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        for number in range(count):
            peers.send(Send(PEER, number, 3, large))
        (link,) = peers._peers[PEER]._links.values()
        while link._writable or not link._unsent:
            await asyncio.sleep(0)
        buffered = link._transport.get_write_buffer_size()
        assert buffered <= peers_module.WRITE_BUFFER_HIGH_BYTES + 31_000
        assert len(link._unsent) > count // 10
        reads.set()
        assert [(await owner.next()).correlation_id for _ in range(count)] == list(range(count))
        assert remote.connections == 1

    run(react, scenario)


def test_more_requests_than_a_peer_may_hold_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "REQUESTS_MAX", 5)

    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        del remote
        for number in range(6):
            peers.send(heartbeat(number))
        assert await owner.next() == PeerLost(PEER)
        assert owner.is_empty

    run(silent, scenario)


def test_closed_peers_tell_nobody_and_drop_their_connections() -> None:
    async def scenario(owner: Owner, peers: PeerConnections, remote: Remote) -> None:
        peers.send(heartbeat(0))
        while not remote.headers:
            await asyncio.sleep(0)
        peers.close(abort=True)
        assert await remote.closed.get() == 0
        assert owner.is_empty

    run(silent, scenario)
