"""Write docs/sinks.md: each sink under each disturbance, as it was on this day (`make sinks`).

With words as arguments it runs the sinks that have one of them in their names, and prints instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyspark
from support.harness.maven import CACHE, Unavailable, fetched_file
from support.spark.spark_kafka_jars import spark_kafka_jars

from sinks.jobs import ORDERS, SINKS, SPARK_KAFKA, Sink
from txnlog_testing import NotExactlyOnce, exactly_once
from txnlog_testing.prove.report import Result

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sinks.md"
BEGIN, END = "<!-- begin: make sinks -->\n", "<!-- end: make sinks -->"
STEPS = ("write:after", "end_txn:after")
DISTURBANCES = (
    "replay",
    "lost tail",
    "old backup",
    "kill at offsets/*",
    "kill in tasks",
    "kill write:after",
    "kill end_txn:after",
    "broker killed after",
    "answer lost",
    "two drivers",
)
HEADINGS = {
    "kill at offsets/*": "kill when planned",
    "kill write:after": "kill after a write",
    "kill end_txn:after": "kill after the commit",
}
SHORT = {"not reached": "-", "group offsets differ": "offsets differ"}


def main(words: Sequence[str]) -> int:
    """Run the sinks, one after another, and write the page."""
    chosen = [
        sink
        for sink in SINKS
        if not words or any(word.lower() in sink.name.lower() for word in words)
    ]
    found = {}
    for sink in chosen:
        began = time.monotonic()
        found[sink.name] = findings(sink)
        said = f"{sink.name} ({time.monotonic() - began:.0f} s): {found[sink.name]}"
        print(said, file=sys.stderr, flush=True)
    text = table(found)
    if words:
        print(text)
    else:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    return 0


def findings(sink: Sink) -> dict[str, str] | str:
    """Return the finding by disturbance, or why the sink does not run here."""
    try:
        paths = [str(path) for jar in sink.jars for path in _jars(jar)]
        config = dict(sink.config)
        if paths:
            config |= {"spark.jars": ",".join(paths)}
        report = exactly_once(
            sink.job,
            input={"orders": ORDERS},
            output=sink.output,
            disturbances=DISTURBANCES,
            steps=STEPS,
            spark_config=config,
            tell=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
        )
    except NotExactlyOnce as error:
        report = error.report
    except (RuntimeError, ValueError, Unavailable) as error:
        known = "does not run with this PySpark"
        return known if sink.jars else str(error).splitlines()[0][:120]
    return {each.disturbance: _said(each) for each in report.results}


def _said(result: Result) -> str:
    return SHORT.get(result.finding, result.finding)


def _jars(name: str) -> list[Path]:
    """Return the jars, fetched once. Raises Unavailable."""
    if name in SPARK_KAFKA:
        return spark_kafka_jars()
    return [fetched_file(name, name, CACHE / "sinks")]


def table(found: dict[str, dict[str, str] | str]) -> str:
    """Return the table of these findings, and what it was made with."""
    headings = [HEADINGS.get(name, name) for name in DISTURBANCES]
    lines = ["", "| sink | " + " | ".join(headings) + " |", "|---" * (len(headings) + 1) + "|"]
    for name, by_disturbance in found.items():
        if isinstance(by_disturbance, str):
            cells = [by_disturbance, *[""] * (len(DISTURBANCES) - 1)]
        else:
            cells = [by_disturbance.get(each, "-") for each in DISTURBANCES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    jars = sorted({jar for sink in SINKS for jar in sink.jars if ":" in jar})
    day, ours = datetime.now(UTC).date(), version("txnlog_spark")
    made = f"Made on {day} with {len(ORDERS)} orders, PySpark {pyspark.__version__}, txnlog_spark"
    lines += ["", f"{made} {ours}, " + ", ".join(f"`{jar}`" for jar in jars) + ".", "", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
