"""Start both kinds of brokers for `bench_broker`, and put the same load on each of them."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_setup import ROOT  # noqa: F401 - it says where `support` is
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.apache_kafka import ApacheKafka, jars
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.probe import pause, ports_of, wait_until
from support.brokers.processes import START_TIMEOUT_S
from support.kafka.java_tools import CONSUMER_PERF, PRODUCER_PERF
from support.raw.requests import request
from support.raw.swarm import connect, resident_bytes

from broker_sim import LocalCluster
from txnlog_kafka.wire.messages import ApiKey

TOPIC = "load"
VALUE_BYTES = 1000
TOPICS_AT_ONCE = 200
SETTINGS = {
    # What the tests have otherwise, for their many small topics.
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "log.index.size.max.bytes": "10485760",
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}
KAFKA_OPTIONS = (
    "-Xms1g -Xmx1g -XX:TieredStopAtLevel=4 -XX:-UseSerialGC -XX:+UseG1GC "
    "-XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
)
"""Java options that `kafka-server-start.sh` sets. The brokers of tests start sooner and are slower
later."""
_HERTZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Running:
    """Brokers that serve."""

    servers: str
    pids: tuple[int, ...]
    start_seconds: float
    """Time from the start of the first process until all brokers are ready, in seconds."""

    def cpu_seconds(self) -> float:
        """CPU seconds of the brokers so far, user and system."""
        return sum(map(_cpu_seconds, self.pids))

    def resident_mib(self) -> float:
        """Memory of the brokers now, in MiB."""
        return sum(map(resident_bytes, self.pids)) / 2**20


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HERTZ


@contextlib.contextmanager
def running(kind: str, count: int, folder: Path) -> Iterator[Running]:
    """Run one broker of a kind, or three."""
    folder.mkdir(parents=True)
    if kind == "broker_sim":
        with LocalCluster(folder, brokers=count) as probe:
            pass  # the first start ever compiles the modules
        folder = folder / "measured"
        probe = LocalCluster(folder, brokers=count)
        began = time.monotonic()
        with probe as cluster:
            seconds = time.monotonic() - began
            pids = tuple(cluster.pid(number) for number in range(count))
            yield Running(cluster.bootstrap_servers, pids, seconds)
        return
    options = folder / "java-options"
    options.write_text(KAFKA_OPTIONS)
    if count == 1:
        alone = ApacheKafka(folder / "kafka", SETTINGS, java_option=f"@{options}")
        brokers = {1: alone}
    else:
        whole = KafkaCluster(folder, SETTINGS, java_option=f"@{options}")
        brokers = whole.brokers
    began = time.monotonic()
    try:
        for broker in brokers.values():
            broker.launch()
        if count == 1:
            wait_until(alone.is_up, "Apache Kafka", timeout_s=START_TIMEOUT_S)
        else:
            whole.wait_whole()
        seconds = time.monotonic() - began
        servers = ",".join(broker.bootstrap_servers for broker in brokers.values())
        yield Running(servers, tuple(each.pid for each in brokers.values()), seconds)
    finally:
        for broker in brokers.values():
            broker.kill_now()


# --------------------------------------------------------------------------- topics


def create_topics(brokers: Running, partitions: int) -> None:
    """The topic of the load with 4 partitions, and beside it idle ones, up to as many in all."""
    admin = AdminClient({"bootstrap.servers": brokers.servers, "log_level": 3})
    replicas = len(brokers.pids)
    wanted = [NewTopic(TOPIC, 4, replicas)]
    for first in range(0, partitions - 4, TOPICS_AT_ONCE):
        count = min(TOPICS_AT_ONCE, partitions - 4 - first)
        wanted.append(NewTopic(f"idle-{first}", count, replicas))
    for topic in wanted:
        for done in admin.create_topics([topic], request_timeout=60).values():
            done.result()
        pause(0.2)


def more_load(brokers: Running, name: str) -> str:
    """Create one more topic like the load's, for a load of its own."""
    admin = AdminClient({"bootstrap.servers": brokers.servers, "log_level": 3})
    for done in admin.create_topics([NewTopic(name, 4, len(brokers.pids))]).values():
        done.result()
    return name


# --------------------------------------------------------------------------- Kafka's own tools


def _tool(name: str, arguments: Sequence[str]) -> list[str]:
    command = ["java", "-Xmx256m", "-Dlog4j2.level=ERROR", "-cp", f"{jars()}/*", name, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{name} failed: {done.stdout[-500:]}{done.stderr[-1000:]}")
    return lines


def produce(brokers: Running, topic: str, records: int, *more: str) -> float:
    """Records a second of `kafka-producer-perf-test`, as fast as it can, with acks=all."""
    lines = _tool(
        PRODUCER_PERF,
        [
            "--topic", topic, "--num-records", str(records), "--record-size", str(VALUE_BYTES),
            "--throughput", "-1", "--bootstrap-server", brokers.servers, *more,
        ],
    )  # fmt: skip
    return float(lines[-1].split(",")[1].split()[0])


def produce_transactions(brokers: Running, topic: str, records: int) -> float:
    """The same in transactions of 100 ms."""
    transactions = ("--transactional-id", topic, "--transaction-duration-ms", "100")
    return produce(brokers, topic, records, *transactions)


def consume(brokers: Running, topic: str, records: int) -> float:
    """Records a second of `kafka-consumer-perf-test`, without the time to join its group."""
    lines = _tool(
        CONSUMER_PERF,
        ["--topic", topic, "--num-records", str(records), "--bootstrap-server", brokers.servers],
    )
    head, row = list(csv.reader(lines[-2:], skipinitialspace=True))
    return float(dict(zip(head, row, strict=True))["fetch.nMsg.sec"])


# --------------------------------------------------------------------------- commits


def commit_milliseconds(brokers: Running, topic: str, count: int) -> list[float]:
    """Return the time of each of `count` commits, of one record each, by librdkafka, in ms."""
    producer = Producer(
        {"bootstrap.servers": brokers.servers, "transactional.id": f"{topic}-commits",
         "linger.ms": 0, "log_level": 3}
    )  # fmt: skip
    producer.init_transactions(60)
    spent = []
    for number in range(count + count // 10):
        producer.begin_transaction()
        producer.produce(topic, b"v" * 100, partition=number % 4)
        producer.flush()
        began = time.perf_counter()
        producer.commit_transaction(60)
        spent.append((time.perf_counter() - began) * 1000)
    return spent[count // 10 :]


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile: with `share` 0.99, the value that 99 of 100 values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# --------------------------------------------------------------------------- the rest


def idle_percent(brokers: Running, seconds: float) -> float:
    """Return the share of a core that each broker uses while no client does anything, in
    percent."""
    pause(2)
    before, began = brokers.cpu_seconds(), time.monotonic()
    pause(seconds)
    spent = brokers.cpu_seconds() - before
    return 100 * spent / (time.monotonic() - began) / len(brokers.pids)


def requests_a_second(brokers: Running, connections: int, each: int) -> float:
    """Return the requests a second of so many connections, each of which asks again once
    answered."""
    return asyncio.run(_ask(ports_of(brokers.servers)[0], connections, each))


async def _ask(port: int, connections: int, each: int) -> float:
    versions: Any = request(
        ApiKey.API_VERSIONS, client_software_name="bench", client_software_version="1"
    )
    peers = await connect(port, connections)

    async def play(peer: Any, times: int) -> None:
        for _ in range(times):
            peer.send(versions, 3)
            await peer.receive()

    try:
        await asyncio.gather(*(play(peer, 1) for peer in peers))
        began = time.perf_counter()
        await asyncio.gather(*(play(peer, each) for peer in peers))
        return connections * each / (time.perf_counter() - began)
    finally:
        for peer in peers:
            peer.close()


def spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.3g} ({low:.3g} to {high:.3g})"
