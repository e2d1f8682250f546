"""broker_sim beside Apache Kafka: the same load in turns, in one run.

    python tests/benchmarks/bench_broker.py [--brokers 1 3] [--partitions 4 1000] [--rounds 3]
        [--records 200000] [--quick] [--all] [--json FILE]

In each round both are started anew and do the same: start, idle, bulk by Kafka's own
`kafka-producer-perf-test` and `kafka-consumer-perf-test`, transactions of 100 ms, single commits,
and requests on many connections (with `--all` up to 2,000). What counts are the ratios, a round
against its own other half; nothing is asserted. Apache Kafka runs with the options of its
`kafka-server-start.sh`. With PYTHONPATH set to another checkout its broker_sim is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bench_setup import revision
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


@dataclass(frozen=True)
class Running:
    """Brokers that serve."""

    servers: str
    pids: tuple[int, ...]
    start_seconds: float
    """Time from the start of the first process until all brokers are ready, in seconds."""

    def cpu_seconds(self) -> float:
        """CPU seconds of the brokers so far, user and system."""
        times = [psutil.Process(pid).cpu_times() for pid in self.pids]
        return sum(each.user + each.system for each in times)

    def resident_mib(self) -> float:
        """Memory of the brokers now, in MiB."""
        return sum(map(resident_bytes, self.pids)) / 2**20


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


KINDS = ("broker_sim", "apache_kafka")
CONNECTIONS = (1, 100)
CONNECTIONS_ALL = (1, 10, 100, 500, 1000, 2000)
REQUESTS = 20_000
"""Over all connections."""

Figures = dict[str, float]
"""Figures of one round, by name and unit."""
Rounds = dict[str, list[Figures]]
"""Rounds of each kind of broker."""


def measure(brokers: Running, partitions: int, args: argparse.Namespace) -> Figures:
    """Everything on one kind of brokers that have just started."""
    found = {"start, s": brokers.start_seconds}
    create_topics(brokers, partitions)
    found["idle, % of a core a broker"] = idle_percent(brokers, args.idle_seconds)
    found["memory when idle, MiB"] = brokers.resident_mib()
    produce(brokers, more_load(brokers, "warm"), args.records // 4)
    before = brokers.cpu_seconds()
    found["produce, records/s"] = produce(brokers, TOPIC, args.records)
    found["produce, CPU us/record"] = 1e6 * (brokers.cpu_seconds() - before) / args.records
    before = brokers.cpu_seconds()
    found["consume, records/s"] = consume(brokers, TOPIC, args.records)
    found["consume, CPU us/record"] = 1e6 * (brokers.cpu_seconds() - before) / args.records
    in_transactions = more_load(brokers, "transactions")
    found["transactions of 100 ms, records/s"] = produce_transactions(
        brokers, in_transactions, args.records
    )
    spent = commit_milliseconds(brokers, in_transactions, args.commits)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        found[f"commit {name}, ms"] = quantile(spent, share)
    for count in CONNECTIONS_ALL if args.all else CONNECTIONS:
        each = max(1, args.requests // count)
        found[f"{count} connections, requests/s"] = requests_a_second(brokers, count, each)
    found["memory at last, MiB"] = brokers.resident_mib()
    return found


def measure_brokers(args: argparse.Namespace) -> dict[str, Rounds]:
    """Measure all cases: the kinds in turns, and each kind first in every second round."""
    cases: dict[str, Rounds] = {}
    for count in args.brokers:
        for partitions in args.partitions:
            case = f"{count} broker{'s' * (count > 1)}, {partitions} partitions"
            rounds: Rounds = {kind: [] for kind in KINDS}
            for number in range(args.rounds):
                for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                    with (
                        tempfile.TemporaryDirectory() as name,
                        running(kind, count, Path(name) / "brokers") as brokers,
                    ):
                        rounds[kind].append(measure(brokers, partitions, args))
                    shown = {k: round(v, 2) for k, v in rounds[kind][-1].items()}
                    print(f"{case}, {kind}: {shown}", file=sys.stderr, flush=True)
            cases[case] = rounds
            if args.json is not None:
                args.json.write_text(json.dumps(_about(args) | {"cases": cases}, indent=1) + "\n")
    return cases


def brokers_table(cases: dict[str, Rounds]) -> str:
    """Markdown: medians with least and most, and the ratio of each round the same way."""
    lines = []
    for case, rounds in cases.items():
        lines += [f"\n{case}\n", "| | broker_sim | Apache Kafka | ratio |", "|---|---|---|---|"]
        ours, theirs = (rounds[kind] for kind in KINDS)
        for what in ours[0]:
            mine, other = [f[what] for f in ours], [f[what] for f in theirs]
            ratios = [a / b if b else float("nan") for a, b in zip(mine, other, strict=True)]
            lines.append(f"| {what} | {spread(mine)} | {spread(other)} | {spread(ratios)} |")
    return "\n".join(lines)


def _about(args: argparse.Namespace) -> dict[str, object]:
    return {
        "revision": revision(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "records": args.records,
        "rounds": args.rounds,
    }


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--brokers", type=int, nargs="+", choices=(1, 3), default=[1, 3])
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=200_000, help="of 1,000 bytes")
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--idle-seconds", type=float, default=30)
    parser.add_argument("--all", action="store_true", help="connections up to 2,000")
    parser.add_argument("--quick", action="store_true", help="two minutes, to see that it runs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(given)
    if args.quick:
        args.brokers, args.partitions, args.rounds = args.brokers[:1], args.partitions[:1], 1
        args.records, args.commits, args.requests = 20_000, 100, 1000
        args.idle_seconds = 5
    return args


def main() -> None:
    """Measure and print."""
    args = parse_arguments()
    cases = measure_brokers(args)
    print(brokers_table(cases))
    medians = {
        case: round(statistics.median(f["produce, records/s"] for f in rounds[KINDS[0]]))
        for case, rounds in cases.items()
    }
    print(f"\n{_about(args)}, produced a second: {medians}")


if __name__ == "__main__":
    main()
