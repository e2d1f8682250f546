"""`make bench-growth`: how cost grows with partitions, rows, aborted records, backlogs, queries,
sources and tasks, as one picture.

    python tests/benchmarks/bench_growth.py [--quick] [--axis rows]... [--out FOLDER]

Each axis does the same work for a growing x, in one Spark session on one broker of ours, and looks
at the processes beside it: see `growth_axes`. The points are written to growth.json and drawn to
growth.png in docs/performance, or another folder; `--axis` measures these axes and keeps the other
axes' points of that file. Nothing is asserted: figures depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from bench_setup import ROOT, machine, make_session, revision
from growth_axes import AXES, Bench
from growth_picture import draw
from growth_usage import Usage
from support.brokers.sim_broker import SimBroker

FOLDER = ROOT / "docs" / "performance"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--axis", action="append", choices=AXES, help="default: all")
    parser.add_argument("--quick", action="store_true", help="the beginning of each axis")
    parser.add_argument("--out", type=Path, default=FOLDER, help="default: docs/performance")
    return parser.parse_args()


def main() -> None:
    """Measure the axes one after another, then draw; what was measured is written after each."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    written = args.out / "growth.json"
    axes = json.loads(written.read_text())["axes"] if args.axis and written.exists() else {}
    spark = make_session([])
    with (
        tempfile.TemporaryDirectory() as name,
        SimBroker(Path(name) / "broker") as broker,
        Usage() as usage,
    ):
        bench = Bench(spark, broker, usage, Path(name), args.quick)
        bench.warm_up()
        for axis in args.axis or AXES:
            lines: dict[str, list[dict[str, Any]]] = {}
            for line, point in AXES[axis](bench):
                lines.setdefault(line, []).append(asdict(point))
                print(f"{axis} {line}: {point}", flush=True)
            command = " ".join(["bench_growth.py", "--axis", axis, *["--quick"] * args.quick])
            about = {"date": date.today().isoformat(), "revision": revision()}
            axes[axis] = {**about, "command": command, "lines": lines}
            found = {"machine": machine(), "axes": axes}
            written.write_text(json.dumps(found, indent=1) + "\n")
    spark.stop()
    draw(axes, args.out / "growth.png")
    print(f"{written}\n{args.out / 'growth.png'}", file=sys.stderr)


if __name__ == "__main__":
    main()
