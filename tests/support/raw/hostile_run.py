"""Hostile clients against a broker process for a time, while a transactional producer goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from support.brokers.probe import wait_until
from support.brokers.sim_broker import SimBroker
from support.clients.librdkafka import TIMEOUT_S, create_topic, read_topic, transactional, values_of
from support.core.broker_build import produce_request, request
from support.raw.hostile import FUZZ_TOPIC, Hostile, bombs, good_batch, state_digest
from support.raw.raw import Connection, RawProducer, fetch_offsets
from support.raw.swarm import open_descriptors, resident_bytes

from txnlog_kafka.wire.messages import ApiKey

WORKERS = 8
PRODUCER_IDS_BURNT = 1000
"""Number of producer ids to use up, so that no hostile number is the good producer's id."""
PROTECTED = {"safe", "still", FUZZ_TOPIC, "__consumer_offsets", "__transaction_state"}
CONFIG = {
    "auto.create.topics.enable": "false",
    "group.max.size": "100",
    "group.max.session.timeout.ms": "10000",
    "producer.id.expiration.ms": "60000",
    "queued.max.request.bytes": str(32 * 1024 * 1024),
    "log.retention.ms": "-1",
}


@dataclass
class Figures:
    """Counts of a run, and the memory of the broker process in bytes."""

    frames: int = 0
    connections: int = 0
    answers: int = 0
    transactions: int = 0
    resident: list[int] = field(default_factory=list)
    descriptors_before: int = 0
    descriptors_after: int = 0

    @property
    def growth_bytes(self) -> int:
        """Growth from the first fifth of the run to its end, by the least memory seen in each."""
        start = self.resident[: max(1, len(self.resident) // 5)]
        end = self.resident[-max(1, len(self.resident) // 10) :]
        return min(end) - max(start)

    def __str__(self) -> str:
        mib = [round(each / 2**20, 1) for each in (self.resident[0], max(self.resident),
                                                    self.resident[-1])]  # fmt: skip
        return (
            f"{self.frames} frames on {self.connections} connections, {self.answers} answered; "
            f"{self.transactions} transactions; resident MiB first, most, last: {mib}; "
            f"descriptors {self.descriptors_before} -> {self.descriptors_after}"
        )


class GoodProducer(threading.Thread):
    """librdkafka: three records and a group's offset in each transaction, until told to stop."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.committed = 0
        self.failure: BaseException | None = None
        self._servers = bootstrap
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as failure:
            self.failure = failure

    def _work(self) -> None:
        producer = transactional(self._servers, "safe")
        group = Consumer({"bootstrap.servers": self._servers, "group.id": "safe"})
        while not self._stopping.is_set():
            producer.begin_transaction()
            for number in range(3):
                value = f"{self.committed}/{number}".encode()
                producer.produce("safe", value, partition=number % 2)
            producer.send_offsets_to_transaction(
                [TopicPartition("safe", 0, self.committed)], group.consumer_group_metadata()
            )
            producer.commit_transaction(TIMEOUT_S)
            self.committed += 1
        group.close()

    def finish(self) -> None:
        """Return after the last commit. Raises what went wrong."""
        self._stopping.set()
        self.join(2 * TIMEOUT_S)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive()


async def _attack(port: int, hostile: Hostile, figures: Figures) -> None:
    """Attack with one connection: send some frames, whole or in pieces, read the answers or not,
    close somehow."""
    rng = hostile.rng
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    figures.connections += 1
    with suppress(ConnectionError, TimeoutError):
        for _ in range(rng.choice((1, 5, 30))):
            data = hostile.frame()
            figures.frames += 1
            cut = rng.randrange(len(data)) if rng.random() < 0.1 else 0
            for part in (data[:cut], data[cut:]):
                writer.write(part)
                await writer.drain()
            if rng.random() < 0.05:
                break
        if rng.random() < 0.8:
            async with asyncio.timeout(0.05):
                while data := await reader.read(65536):
                    figures.answers += len(data) > 4
    writer.transport.abort()


async def _attack_for(port: int, seconds: float, seed: int, figures: Figures, pid: int) -> None:
    ends = time.monotonic() + seconds
    broken: list[BaseException] = []

    async def worker(number: int) -> None:
        hostile = Hostile(f"{seed}/{number}")
        while time.monotonic() < ends and not broken:
            try:
                await _attack(port, hostile, figures)
            except OSError as refused:
                broken.append(refused)

    async def watch() -> None:
        while time.monotonic() < ends and not broken:
            figures.resident.append(resident_bytes(pid))
            await asyncio.to_thread(_clean, port)
            await asyncio.sleep(min(2.0, seconds / 20))

    await asyncio.gather(watch(), *(worker(number) for number in range(WORKERS)))
    if broken:
        raise broken[0]


def _clean(port: int) -> None:
    with Connection(port) as connection:
        topics = connection.ask(request(ApiKey.METADATA, topics=None), 5).topics
        names = [topic.name for topic in topics if topic.name not in PROTECTED]
        connection.ask(request(ApiKey.DELETE_TOPICS, topic_names=names, timeout_ms=1000), 5)
        groups = connection.ask(request(ApiKey.LIST_GROUPS), 2).groups
        names = [group.group_id for group in groups if group.group_id not in PROTECTED]
        connection.ask(request(ApiKey.DELETE_GROUPS, groups_names=names), 2)


def _prepare(broker: SimBroker) -> None:
    """Write what must not change: records, a committed and an open transaction, a group's
    offset."""
    for name in ("safe", "still"):
        create_topic(broker.bootstrap_servers, name, 2)
    create_topic(broker.bootstrap_servers, FUZZ_TOPIC)
    with Connection(broker.port) as connection:
        init = request(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1000)
        for _ in range(PRODUCER_IDS_BURNT):
            connection.ask(init, 1)
        still = RawProducer(connection, "still")
        steps = [still.find_coordinator(), still.find_coordinator("still", 0), still.init(900_000)]
        for commit in (True, None):
            steps += [still.add_partitions("still", 0), still.produce("still", 0, "a", "b")]
            steps += [still.add_offsets("still"), still.commit_offset("still", "still", 0, 2)]
            steps += [still.end(commit=True)] if commit else []
        assert set(steps) == {"NONE"}, steps
        for batch in bombs().values():
            connection.ask(produce_request({(FUZZ_TOPIC, 0): batch}), 9)
        connection.ask(produce_request({(FUZZ_TOPIC, 0): bytes(good_batch("x"))}), 9)


def run_hostile(broker: SimBroker, pid: int, seconds: float, seed: int) -> Figures:
    """Attack for `seconds`; raises AssertionError for whatever the broker did wrong."""
    _prepare(broker)
    figures = Figures(descriptors_before=open_descriptors(pid))
    before = _digest(broker.port)
    good = GoodProducer(broker.bootstrap_servers)
    good.start()
    asyncio.run(_attack_for(broker.port, seconds, seed, figures, pid))
    good.finish()
    figures.transactions = good.committed
    figures.resident.append(resident_bytes(pid))
    assert broker.alive
    after = _digest(broker.port)
    assert after == before, f"before: {before}\nafter: {after}"
    wanted = sorted(f"{t}/{n}" for t in range(good.committed) for n in range(3))
    assert values_of(read_topic(broker.bootstrap_servers, "safe")) == wanted
    with Connection(broker.port) as connection:
        _, offsets = fetch_offsets(connection, "safe")
    assert offsets["safe", 0][0] == good.committed - 1
    _wait_for_descriptors(pid, figures)
    log = Path(broker.folder / "broker-0.log").read_text(errors="replace")
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
    return figures


def _wait_for_descriptors(pid: int, figures: Figures) -> None:
    """Return when the sockets are gone; log files of the good producer may stay open."""
    allowed = figures.descriptors_before + 40

    def are_gone() -> bool:
        figures.descriptors_after = open_descriptors(pid)
        return figures.descriptors_after <= allowed

    wait_until(are_gone, f"at most {allowed} descriptors", timeout_s=10)


def _digest(port: int) -> object:
    with Connection(port) as connection:
        return state_digest(connection.ask, ["still"], ["still"], ["still"])
