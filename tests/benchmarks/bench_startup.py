"""Seconds and bytes to start a broker on a small and on a large log, and the ratio.

Run: python tests/benchmarks/bench_startup.py [--small-mb 5] [--large-mb 5120] [--folder DIR].
Nothing is asserted: seconds depend on the machine, the ratio is what to compare. Each data
directory is made by the broker's core on real files, stopped cleanly, and started several times;
then written to a little, dropped without a stop, and started again as after SIGKILL.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import Effects, Start, Stop, TimerFired
from broker_sim.core.log import AppendOrigin
from broker_sim.server.storage import FileStorage
from txnlog_kafka.wire.records import Record, encode_batch

BATCH_BYTES = 64 << 10
TAIL_BATCHES = 20
TOPIC = "big"
CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


class CountingStorage(FileStorage):
    """Counts the bytes that the core reads."""

    read_bytes = 0

    def read(self, path, position, length):
        data = super().read(path, position, length)
        self.read_bytes += len(data)
        return data


class Run:
    """One broker's core on a folder of real files."""

    def __init__(self, root: Path) -> None:
        self.storage = CountingStorage(root)
        self.broker = Broker(BrokerConfig(CONFIG), self.storage, random.Random(1))

    def step(self, item):
        step = self.broker.step(item, time.time_ns() // 10**6, time.monotonic_ns() // 10**6)
        self.storage.perform(step.storage)
        self.storage.barrier()

    def append(self, count: int) -> None:
        """So many batches of one record."""
        parts = self.broker.parts
        if TOPIC not in parts.image.topics:
            effects = Effects(time.time_ns() // 10**6, 0)
            parts.topics.create(parts.topics.plan(TOPIC, partition_count=1), effects)
            self.storage.perform(effects.storage)
        log = parts.logs.get(TOPIC, 0)
        batch = encode_batch([Record(None, b"x" * BATCH_BYTES, time.time_ns() // 10**6)])
        for _ in range(count):
            effects = Effects(time.time_ns() // 10**6, 0)
            log.append_as_leader(batch, origin=AppendOrigin.CLIENT, effects=effects)
            self.storage.perform(effects.storage)


def start(root: Path):
    """(seconds, bytes read, the running broker)."""
    run = Run(root)
    began = time.perf_counter()
    run.step(Start("bench"))
    return time.perf_counter() - began, run.storage.read_bytes, run


def measure(folder: Path, size_mb: int, rounds: int) -> dict:
    """Build, then start cleanly and after a kill."""
    root = folder / f"log-{size_mb}"
    root.mkdir()
    _, _, run = start(root)
    run.append(size_mb * 2**20 // BATCH_BYTES)
    run.step(Stop())
    run.storage.close()
    seconds, read_bytes = [], 0
    for _ in range(rounds):
        taken, read_bytes, run = start(root)
        seconds.append(taken)
        run.step(Stop())
        run.storage.close()
    _, _, run = start(root)
    run.append(TAIL_BATCHES)
    run.step(TimerFired(("log-recovery-checkpoint",)))
    run.append(TAIL_BATCHES)
    run.storage.close()
    killed_seconds, killed_bytes = [], 0
    for _ in range(rounds):
        taken, killed_bytes, run = start(root)
        killed_seconds.append(taken)
        run.storage.close()
    shutil.rmtree(root)
    return {
        "log_mb": size_mb,
        "clean_start_seconds": round(min(seconds), 5),
        "clean_start_bytes_read": read_bytes,
        "killed_start_seconds": round(min(killed_seconds), 5),
        "killed_start_bytes_read": killed_bytes,
        "bytes_above_recovery_point": TAIL_BATCHES * BATCH_BYTES,
    }


def main() -> None:
    """Print both measurements and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small-mb", type=int, default=5)
    parser.add_argument("--large-mb", type=int, default=5 * 1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to make the logs; a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        sizes = (arguments.small_mb, arguments.large_mb)
        small, large = (measure(Path(folder), size, arguments.rounds) for size in sizes)
    ratios = {
        kind: round(large[f"{kind}_start_seconds"] / small[f"{kind}_start_seconds"], 2)
        for kind in ("clean", "killed")
    }
    print(json.dumps({"small": small, "large": large, "large_over_small": ratios}, indent=2))


if __name__ == "__main__":
    main()
