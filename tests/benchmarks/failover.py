"""Compare what clients see of a failover, on three brokers of broker_sim and of Apache Kafka.

    python tests/benchmarks/failover.py [--fault NAME]... [--library NAME]... [--repetitions 10]
        [--json FILE] [--only "broker_sim"]

Timeouts are equal on both, and one cluster runs at a time. First come the stories: four libraries
work while a broker with one part is killed, or is stopped, and is started again after twice the
session timeout. Then comes the time from the kill of a partition's leader to the next record that
all replicas acknowledge. Nothing is asserted here: tests/chaos/test_chaos_failover.py asserts what
must be equal.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.clients.failover.clients import LIBRARIES
from support.clients.failover.clusters import KINDS
from support.clients.failover.events import WORKS
from support.clients.failover.story import (
    FAULTS,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    Outcome,
    Result,
    failover_ms,
    play,
)
from support.clients.librdkafka import TIMEOUT_S, producer


def measured(kind: str, arguments: argparse.Namespace) -> dict:
    """The stories and the times of one kind of brokers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with KINDS[kind](folder / "cluster") as cluster:
            results = {}
            for fault in arguments.fault:
                results[fault] = play(cluster, fault, arguments.library, folder)
                print(f"{kind}: {fault}: played", file=sys.stderr, flush=True)
            times = []
            for _ in range(arguments.repetitions):
                times.append(repetition(cluster))
                print(f"{kind}: {times[-1]} ms", file=sys.stderr, flush=True)
    return {"results": results, "times": times}


def repetition(cluster) -> int:
    """Return the time of one failover. librdkafka retries soon, so that the time is the
    cluster's."""
    made = producer(
        cluster.bootstrap_servers, acks="all", enable_idempotence=True, linger_ms=0,
        reconnect_backoff_max_ms=100, retry_backoff_ms=20, retry_backoff_max_ms=100,
        message_timeout_ms=int(TIMEOUT_S * 1000),
    )  # fmt: skip

    def produce(topic: str) -> None:
        failed = []
        made.produce(topic, b"x", partition=0, on_delivery=lambda e, _: failed.append(e))
        if made.flush(TIMEOUT_S) or failed != [None]:
            raise RuntimeError(f"not acknowledged: {failed}")

    return failover_ms(cluster, produce)


def cell(outcome: Outcome | None) -> str:
    """An outcome in some words."""
    if outcome is None:
        return ""
    words = [f"{outcome.pause_ms / 1000:.1f} s"] if outcome.pause_ms >= 0 else []
    words += [] if outcome.went_on else ["did not go on by itself"]
    words += [f"{outcome.lost} lost"] if outcome.lost else []
    words += [f"{outcome.doubled} doubled"] if outcome.doubled else []
    return ", ".join([*words, *outcome.errors])


def print_stories(measured_of: dict[str, dict], arguments: argparse.Namespace) -> None:
    """A table for each fault."""
    for fault in arguments.fault:
        print(f"\n### {fault}\n\n| client | work | {' | '.join(measured_of)} |")
        print("|---|---|" + "---|" * len(measured_of))
        results: dict[str, Result] = {k: m["results"][fault] for k, m in measured_of.items()}
        for library in arguments.library:
            for work in WORKS:
                found = [
                    next((o for o in result.outcomes if (o.library, o.work) == (library, work)),
                         None) for result in results.values()
                ]  # fmt: skip
                print(f"| {library} | {work} | {' | '.join(map(cell, found))} |")
        for kind, result in results.items():
            for library, names in result.logged.items():
                print(f"\nlogged by {library} on {kind}: {', '.join(names) or 'no error'}", end="")
        print()


def print_times(measured_of: dict[str, dict]) -> None:
    """Median and largest."""
    print("\n| brokers | repetitions | median | largest |\n|---|---|---|---|")
    for kind, found in measured_of.items():
        times = found["times"]
        if times:
            middle = statistics.median(times) / 1000
            print(f"| {kind} | {len(times)} | {middle:.2f} s | {max(times) / 1000:.2f} s |")


def main() -> None:
    """Measure one kind after the other, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--library", action="append", choices=list(LIBRARIES))
    parser.add_argument("--only", action="append", choices=list(KINDS))
    parser.add_argument("--no-stories", action="store_true")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.fault = [] if arguments.no_stories else arguments.fault or list(FAULTS)
    arguments.library = arguments.library or list(LIBRARIES)
    found = {}
    for kind in arguments.only or KINDS:
        found[kind] = measured(kind, arguments)
        if arguments.json:
            plain = json.dumps(found, default=dataclasses.asdict, indent=1)
            arguments.json.write_text(plain + "\n")
    print(f"session timeout {SESSION_TIMEOUT_MS} ms, heartbeat {HEARTBEAT_MS} ms")
    print_stories(found, arguments)
    print_times(found)


if __name__ == "__main__":
    main()
