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
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_setup import revision
from broker_load import (
    TOPIC,
    Running,
    commit_milliseconds,
    consume,
    create_topics,
    idle_percent,
    more_load,
    produce,
    produce_transactions,
    quantile,
    requests_a_second,
    running,
    spread,
)

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
