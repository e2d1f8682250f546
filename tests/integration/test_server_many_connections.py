"""Many connections on one broker: idle ones, busy ones, floods, and peers that misbehave."""

from __future__ import annotations

import asyncio
import socket

import pytest
from support.brokers.probe import wait_until
from support.brokers.sim_broker import SimBroker
from support.core.broker_build import fetch_request, produce_request, request
from support.raw.raw import Connection
from support.raw.swarm import Peer, connect, open_descriptors, resident_bytes

from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

IDLE = 1000
BUSY = 200
ROUNDS = 10
BYTES_PER_IDLE_CONNECTION_MAX = 16 * 1024
PIPELINED = 8_000
MEBIBYTE = 1024 * 1024


@pytest.fixture
def start(tmp_path):
    """Starts brokers of ours with a test's own configuration."""
    started: list[SimBroker] = []

    def start_one(**config: str) -> SimBroker:
        options = {name.replace("_", "."): value for name, value in config.items()}
        started.append(SimBroker(tmp_path / f"broker-{len(started)}", options))
        started[-1].start()
        return started[-1]

    yield start_one
    for each in started:
        each.stop()


def pid_of(broker: SimBroker) -> int:
    return broker.cluster.pid(0)


def versions_request():
    return request(ApiKey.API_VERSIONS, client_software_name="s", client_software_version="1")


def batch(size_bytes: int = 10) -> bytes:
    return encode_batch([Record(None, b"v" * size_bytes, 1_700_000_000_000)])


def produce(topic: str, size_bytes: int = 10):
    return produce_request({(topic, 0): batch(size_bytes)})


def fill(broker: SimBroker, topic: str, count: int, size_bytes: int) -> None:
    """A topic with that many batches of that size."""
    with Connection(broker.port) as connection:
        connection.ask(request(ApiKey.METADATA, topics=[topic_entry(topic)],
                               allow_auto_topic_creation=True), 8)  # fmt: skip
        for _ in range(count):
            answer = connection.ask(produce(topic, size_bytes), 11)
            assert answer.responses[0].partition_responses[0].error_code == 0


def topic_entry(name: str):
    cls = request(ApiKey.METADATA, topics=[]).MetadataRequestTopic
    return cls(name=name)


async def busy_work(peer: Peer, topic: str, number: int) -> int:
    """Produce, fetch, ask: how many right answers came back."""
    good = 0
    for turn in range(ROUNDS):
        answer = await peer.ask(produce(topic), 11)
        good += answer.responses[0].partition_responses[0].error_code == 0
        answer = await peer.ask(fetch_request(topic, (number + turn) % 50, max_wait_ms=0), 11)
        good += answer.responses[0].partitions[0].error_code == 0
        good += (await peer.ask(versions_request(), 3)).error_code == 0
    return good


@pytest.mark.weekly
def test_a_thousand_idle_and_two_hundred_busy_connections_are_served(start):
    broker = start()
    fill(broker, "orders", 50, 10)
    pid = pid_of(broker)
    files_before = open_descriptors(pid)

    async def scenario() -> tuple[int, int, int]:
        before = resident_bytes(pid)
        idle = await connect(broker.port, IDLE)
        for peer in idle:
            await peer.ask(versions_request(), 3)
        held = resident_bytes(pid) - before
        busy = await connect(broker.port, BUSY)
        good = sum(await asyncio.gather(*(busy_work(p, "orders", n) for n, p in enumerate(busy))))
        alive = [await peer.ask(versions_request(), 3) for peer in idle]
        for peer in idle + busy:
            peer.close()
        return held, good, len(alive)

    held, good, alive = asyncio.run(scenario())
    assert good == BUSY * ROUNDS * 3
    assert alive == IDLE
    assert held < IDLE * BYTES_PER_IDLE_CONNECTION_MAX
    wait_until(lambda: open_descriptors(pid) <= files_before + 2, "the sockets to be closed")


def test_a_flood_over_the_limit_closes_the_new_ones_and_never_the_others(start):
    broker = start(max_connections="50")

    async def scenario() -> None:
        members = await connect(broker.port, 50)
        for peer in members:
            await peer.ask(versions_request(), 3)
        flood = await connect(broker.port, 200)
        assert all(await asyncio.gather(*(peer.is_closed() for peer in flood)))
        for peer in members:
            await peer.ask(versions_request(), 3)
        for peer in members[:10]:
            peer.close()
        await peers_have_room(broker.port, 10)

    asyncio.run(scenario())


async def peers_have_room(port: int, count: int) -> None:
    """Return when that many more connections are served."""
    served: list[Peer] = []
    for _ in range(1000):
        (peer,) = await connect(port, 1)
        try:
            await peer.ask(versions_request(), 3)
        except (EOFError, ConnectionError):
            await asyncio.sleep(0.01)
            continue
        served.append(peer)
        if len(served) == count:
            return
    raise AssertionError(f"only {len(served)} of {count} connections are served")


def test_the_limit_for_one_address_leaves_room_for_the_others(start):
    broker = start(max_connections_per_ip="5", listeners="PLAINTEXT://0.0.0.0:0",
                   advertised_listeners="PLAINTEXT://127.0.0.1:0")  # fmt: skip

    async def scenario() -> None:
        members = await connect(broker.port, 5)
        for peer in members:
            await peer.ask(versions_request(), 3)
        (sixth,) = await connect(broker.port, 1)
        assert await sixth.is_closed()
        other = Peer(*await asyncio.open_connection(
            "127.0.0.1", broker.port, local_addr=("127.0.0.2", 0)))  # fmt: skip
        await other.ask(versions_request(), 3)
        await members[0].ask(versions_request(), 3)

    asyncio.run(scenario())


def test_fifty_slow_readers_hold_no_memory_and_a_normal_client_works_on(start):
    """Each asks for 50 MB again and again and reads nothing."""
    broker = start(fetch_max_bytes=str(60 * MEBIBYTE))
    fill(broker, "large", 60, 900_000)
    pid = pid_of(broker)
    ask = fetch_request("large", max_bytes=50 * MEBIBYTE, max_wait_ms=0)

    async def scenario() -> int:
        before = resident_bytes(pid)
        slow = []
        for _ in range(50):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", broker.port))
            sock.sendall(b"".join(bytes(encode_request(ask, 11, n, "slow")) for n in range(200)))
            slow.append(sock)
        (normal,) = await connect(broker.port, 1)
        assert await busy_work(normal, "large", 0) == ROUNDS * 3
        read = await normal.ask(ask, 11)
        records = read.responses[0].partitions[0].records
        assert len(records) > 49 * MEBIBYTE
        held = resident_bytes(pid) - before
        for sock in slow:
            sock.close()
        return held

    assert asyncio.run(scenario()) < 64 * MEBIBYTE


def test_large_frames_that_never_end_are_bounded_over_all_connections(start):
    broker = start(queued_max_request_bytes=str(8 * MEBIBYTE))
    fill(broker, "orders", 1, 10)
    pid = pid_of(broker)

    async def scenario() -> int:
        before = resident_bytes(pid)
        hostile = await connect(broker.port, 30)
        for peer in hostile:
            peer.writer.write((100 * MEBIBYTE).to_bytes(4, "big") + bytes(4 * MEBIBYTE))
        (normal,) = await connect(broker.port, 1)
        for _ in range(5):
            assert await busy_work(normal, "orders", 0) == ROUNDS * 3
        held = resident_bytes(pid) - before
        for peer in hostile:
            peer.close()
        return held

    assert asyncio.run(scenario()) < 64 * MEBIBYTE


def test_a_claim_of_a_large_frame_costs_nothing_and_one_byte_at_a_time_is_served(start):
    broker = start()
    pid = pid_of(broker)
    frame = bytes(encode_request(versions_request(), 3, 1, "slow"))

    async def scenario() -> int:
        claimants = await connect(broker.port, 100)
        before = resident_bytes(pid)
        for peer in claimants:
            peer.writer.write((100 * MEBIBYTE).to_bytes(4, "big") + b"x")
        (slow,) = await connect(broker.port, 1)
        for position in range(len(frame)):
            slow.writer.write(frame[position : position + 1])
            await slow.writer.drain()
            await asyncio.sleep(0)
        await slow.receive()
        held = resident_bytes(pid) - before
        for peer in claimants:
            peer.close()
        return held

    assert asyncio.run(scenario()) < 10 * MEBIBYTE


def test_a_flood_of_pipelined_requests_does_not_keep_others_waiting(start):
    """Nine flooders have 8,000 requests each under way; the normal one is served meanwhile."""
    broker = start()
    fill(broker, "orders", 1, 10)
    one = bytes(encode_request(versions_request(), 3, 1, "flood"))

    async def drain(peer: Peer, counts: list[int], number: int) -> None:
        for _ in range(PIPELINED):
            await peer.receive()
            counts[number] += 1

    async def scenario() -> list[int]:
        flooders = await connect(broker.port, 9)
        counts = [0] * len(flooders)
        for peer in flooders:
            peer.writer.write(one * PIPELINED)
        tasks = [asyncio.create_task(drain(p, counts, n)) for n, p in enumerate(flooders)]
        (normal,) = await connect(broker.port, 1)
        assert await busy_work(normal, "orders", 0) == ROUNDS * 3
        seen = list(counts)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in flooders:
            peer.close()
        return seen

    seen = asyncio.run(scenario())
    assert all(count < PIPELINED for count in seen), "the flood was over before the normal client"


def test_a_peer_that_is_silent_or_never_reads_is_closed_after_a_while(start):
    """The connection is half open: no FIN comes. The broker also drops its waiting requests."""
    broker = start(connections_max_idle_ms="2000")
    fill(broker, "large", 20, 900_000)
    pid = pid_of(broker)
    files_before = open_descriptors(pid)
    large = fetch_request("large", max_bytes=50 * MEBIBYTE, max_wait_ms=0)
    parked = fetch_request("large", 20, max_wait_ms=2**31 - 1)
    partial = encode_request(versions_request(), 3, 1, "half")[:-1]
    silent = []
    for data in (b"", bytes(partial), bytes(encode_request(large, 11, 1, "half")),
                 bytes(encode_request(parked, 11, 1, "half"))):  # fmt: skip
        sock = socket.create_connection(("127.0.0.1", broker.port))
        sock.sendall(data)
        silent.append(sock)
    # The last in the row: once it is answered all of them have been accepted.
    with Connection(broker.port) as normal:

        def only_the_normal_one_is_left() -> bool:
            normal.ask(versions_request(), 3)
            return open_descriptors(pid) <= files_before + 1

        wait_until(only_the_normal_one_is_left, "the silent ones to be closed")
    for sock in silent:
        sock.close()
