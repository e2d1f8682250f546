"""Measure the commit of a micro-batch without Spark, in this tree and in another one beside it.

    python tests/benchmarks/bench_commit.py [--tree DIR] [--brokers KIND]... [--delay-ms 20]...
        [--rounds 4] [--batches 25] [--json FILE]

Many batches of few records are committed on one broker_sim, on one Apache Kafka (and one on
transaction version 1) and on three Apache Kafka brokers, directly and with a delay between driver
and brokers. `--tree` is another checkout, such as the commit before a change. Both trees commit in
turns on the same brokers, each in a process of its own and for a query of its own. Nothing is
asserted.

The query pauses between two batches, as a stream does: right after EndTxn a transactional id is
busy until the markers are written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_setup import ROOT
from support.brokers.apache_kafka import VERSION, ApacheKafka, Node, new_cluster_id
from support.brokers.delay_line import DelayLine
from support.brokers.kafka_cluster import NODES, REPLICATED, KafkaCluster
from support.brokers.probe import free_ports

from broker_sim import LocalCluster

PLAIN = "PLAINTEXT"
KINDS = ("broker_sim", "apache_kafka", "apache_kafka_v1", "apache_kafka_3")
"""Kinds of brokers: one broker each, but the last; `_v1` is on transaction version 1."""


@dataclass
class Doors:
    """Ways to reach the brokers: for each delay a listener, which tells the addresses behind it."""

    lines: dict[int, DelayLine]
    servers: dict[int, list[str]] = field(default_factory=dict)

    def add_broker(self, port: int) -> dict[str, str]:
        """The settings of one more broker, whose listener without a delay is on this port."""
        listeners, advertised = [f"{PLAIN}://127.0.0.1:{port}"], [f"{PLAIN}://127.0.0.1:{port}"]
        names = [PLAIN]
        self.servers.setdefault(0, []).append(f"127.0.0.1:{port}")
        for delay_ms, line in self.lines.items():
            (behind,) = free_ports(1)
            door, name = line.open(behind), f"AFTER{delay_ms}"
            names.append(name)
            listeners.append(f"{name}://127.0.0.1:{behind}")
            advertised.append(f"{name}://127.0.0.1:{door}")
            self.servers.setdefault(delay_ms, []).append(f"127.0.0.1:{door}")
        return {
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        }

    def bootstrap(self, delay_ms: int) -> str:
        """Bootstrap servers of clients with this delay."""
        return ",".join(self.servers[delay_ms])


class _Kafka(ApacheKafka):
    """Apache Kafka with the doors' listeners; its brokers reach each other without a delay."""

    def __init__(
        self, folder: Path, doors: Doors, config: dict[str, str], node: Node, version: int = 2
    ) -> None:
        self._doors = doors
        super().__init__(folder, config, transaction_version=version, version=VERSION, node=node)

    def _settings(self) -> dict[str, str]:
        found = super()._settings()
        own = self._doors.add_broker(self.port)
        controller = found["listeners"].rpartition(",")[2]
        own["listeners"] += f",{controller}"
        own["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
        return found | own | {"inter.broker.listener.name": PLAIN}


class _Cluster(KafkaCluster):
    """Three of them."""

    def __init__(self, folder: Path, doors: Doors) -> None:
        ports, controllers = free_ports(NODES), free_ports(NODES)
        cluster_id = new_cluster_id()
        by_number = dict(enumerate(controllers, 1))
        self.brokers = {
            number: _Kafka(
                folder / str(number), doors, REPLICATED, Node(number, port, by_number, cluster_id)
            )
            for number, port in enumerate(ports, 1)
        }
        self.bootstrap_servers = doors.bootstrap(0)


@contextlib.contextmanager
def running(kind: str, folder: Path, delays_ms: Sequence[int]) -> Iterator[Doors]:
    """Fresh brokers of a kind, reachable with each of these delays (0: directly)."""
    lines = {delay: DelayLine(delay) for delay in delays_ms if delay}
    doors = Doors(lines)
    try:
        with _brokers(kind, folder, doors):
            yield doors
    finally:
        for line in lines.values():
            line.close()


def _brokers(kind: str, folder: Path, doors: Doors) -> contextlib.AbstractContextManager[object]:
    if kind == "broker_sim":
        (port,) = free_ports(1)
        return LocalCluster(folder, config=doors.add_broker(port), ports=[port])
    if kind == "apache_kafka_3":
        return _Cluster(folder, doors)
    return _Kafka(folder, doors, {}, Node.alone(), version=1 if kind.endswith("_v1") else 2)


DELAYS_MS = (0, 5, 20)
WARM_BATCHES = 8
"""The first batches of a query make its progress, its connections and warm code."""
CHILD = Path(__file__).with_name("commit_child.py")


@dataclass
class Figures:
    """Figures of one tree's batches in one case."""

    rounds_ms: list[list[float]] = field(default_factory=list)
    phases_ms: list[dict[str, float]] = field(default_factory=list)
    waits: Counter[str] = field(default_factory=Counter)

    def add(self, answer: dict) -> None:
        """Add the figures of one round."""
        self.rounds_ms.append(answer["ms"])
        self.phases_ms += answer["phases_ms"]
        self.waits.update(answer["waits"])

    @property
    def all_ms(self) -> list[float]:
        """Times of all batches of all rounds, in ms."""
        return [ms for spent in self.rounds_ms for ms in spent]

    @property
    def median_ms(self) -> float:
        """Median time of all batches, in ms."""
        return statistics.median(self.all_ms)

    @property
    def p90_ms(self) -> float:
        """Nine of ten batches took less."""
        return statistics.quantiles(self.all_ms, n=10, method="inclusive")[8]

    @property
    def phase_medians_ms(self) -> dict[str, float]:
        """Median time of each phase, in ms."""
        names = dict.fromkeys(name for phases in self.phases_ms for name in phases)
        return {
            name: statistics.median(phases.get(name, 0.0) for phases in self.phases_ms)
            for name in names
        }


class Child:
    """A query in a process of its own, with the committer of one tree."""

    def __init__(
        self, tree: Path, doors: Doors, delay_ms: int, folder: Path, args: argparse.Namespace
    ) -> None:
        command = [sys.executable, str(CHILD), "--name", folder.name, "--folder", str(folder)]
        command += ["--servers", doors.bootstrap(delay_ms), "--direct", doors.bootstrap(0)]
        command += ["--records", str(args.records), "--partitions", str(args.partitions)]
        command += ["--pause-ms", str(args.pause_ms)]
        self.figures = Figures()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(tree)},
        )
        found = Path(self._answer()["tree"])
        if found != tree:
            raise SystemExit(f"{tree} was to be measured, and {found} was imported")
        self._commit(WARM_BATCHES)

    def play(self, batches: int) -> None:
        """Commit the batches of one round."""
        self.figures.add(self._commit(batches))

    def close(self) -> None:
        """End the process: no more batches come."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _commit(self, batches: int) -> dict:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"batches": batches}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the child has ended, see above")
        return json.loads(line)


def measure(
    trees: dict[str, Path], doors: Doors, delay_ms: int, folder: Path, args: argparse.Namespace
) -> dict[str, Figures]:
    """Measure one case: the trees in turns, and each tree first in every second round."""
    children = {
        name: Child(tree, doors, delay_ms, folder / f"{name}-{delay_ms}", args)
        for name, tree in trees.items()
    }
    names = list(children)
    for _ in range(args.rounds):
        for name in names:
            children[name].play(args.batches)
        names.reverse()
    for child in children.values():
        child.close()
    return {name: child.figures for name, child in children.items()}


def print_tables(cases: dict[str, dict[str, Figures]]) -> None:
    """Times of each case, then the phases, and what was waited for."""
    compared = any("old" in figures for figures in cases.values())
    head = ["case", "old ms (p90)", "new ms (p90)", "difference", "ratio"]
    _print_row(head if compared else [head[0], head[2]])
    _print_row(["---"] * (len(head) if compared else 2))
    for case, figures in cases.items():
        new, old = figures["new"], figures.get("old")
        cells = [case, *([] if old is None else [_times(old)]), _times(new)]
        if old is not None:
            cells.append(f"{new.median_ms - old.median_ms:+.1f}")
            cells.append(f"{new.median_ms / old.median_ms:.2f}")
        _print_row(cells)
    for name in ("old", "new"):
        shown = {case: figures[name] for case, figures in cases.items() if name in figures}
        if shown:
            _print_phases(name, shown)


def _print_phases(name: str, cases: dict[str, Figures]) -> None:
    phases = list(dict.fromkeys(p for each in cases.values() for p in each.phase_medians_ms))
    print(f"\nPhases of the {name} tree, medians in ms, and waits in a hundred batches\n")
    _print_row(["case", *phases, "waits"])
    _print_row(["---"] * (len(phases) + 2))
    for case, figures in cases.items():
        medians = figures.phase_medians_ms
        count = len(figures.all_ms)
        waits = (f"{100 * n / count:.0f} {why}" for why, n in figures.waits.most_common(3))
        _print_row([case, *(f"{medians.get(p, 0.0):.1f}" for p in phases), "; ".join(waits)])


def _times(figures: Figures) -> str:
    return f"{figures.median_ms:.1f} ({figures.p90_ms:.1f})"


def _print_row(cells: Iterable[str]) -> None:
    print(f"| {' | '.join(cells)} |")


def write_json(
    path: Path, trees: dict[str, Path], cases: dict[str, dict[str, Figures]], about: dict
) -> None:
    """Write all that was measured."""
    found = {
        case: {
            name: {
                "median_ms": each.median_ms,
                "p90_ms": each.p90_ms,
                "phase_medians_ms": each.phase_medians_ms,
                "waits": each.waits,
                "rounds_ms": each.rounds_ms,
            }
            for name, each in figures.items()
        }
        for case, figures in cases.items()
    }
    revisions = {name: _revision(tree) for name, tree in trees.items()}
    path.write_text(json.dumps({"about": about | revisions, "cases": found}, indent=1) + "\n")


def _revision(tree: Path) -> str:
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, help="another checkout, the old one")
    parser.add_argument("--brokers", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--delay-ms", action="append", type=int, help="round trip; default 0 5 20")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batches", type=int, default=25, help="of each tree in a round")
    parser.add_argument("--records", type=int, default=2, help="of a batch")
    parser.add_argument("--partitions", type=int, default=2, help="of the output")
    parser.add_argument("--pause-ms", type=float, default=50, help="between two batches")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure one case after the other, then print."""
    args = parse_arguments()
    trees = {"new": ROOT}
    if args.tree is not None:
        trees = {"old": args.tree.resolve(), **trees}
    delays_ms = args.delay_ms or list(DELAYS_MS)
    about = {k: getattr(args, k) for k in ("rounds", "batches", "records", "partitions")}
    about["pause_ms"] = args.pause_ms
    cases: dict[str, dict[str, Figures]] = {}
    for kind in args.brokers or KINDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with running(kind, folder / "brokers", delays_ms) as doors:
                for delay_ms in delays_ms:
                    case = f"{kind}, {delay_ms} ms"
                    cases[case] = measure(trees, doors, delay_ms, folder, args)
                    medians = {n: round(f.median_ms, 1) for n, f in cases[case].items()}
                    print(f"{case}: {medians}", file=sys.stderr, flush=True)
                    if args.json is not None:
                        write_json(args.json, trees, cases, about)
    print_tables(cases)
    print(f"\n{about}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
