"""The jobs of `examples/`, each as it is submitted: its output has each row once, also after its
driver has died between Kafka's commit and Spark's.

A job runs in the tests' own session, with the arguments of its command line; one runs as the
command of its docstring, in a process of its own.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.clients.librdkafka import (
    TIMEOUT_S,
    committed_offsets,
    create_topic,
    producer,
    read_topic,
)
from support.kafka.memory_registry import MemoryRegistry
from support.spark.connector import PARTITIONS, Pipe
from support.spark.spark_copy import RUN_SECONDS_MAX

from txnlog_spark.avro import from_avro

pytestmark = pytest.mark.matrix

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ITEMS = ("anvil", "rope", "paint")
PRICES = {"anvil": 950, "rope": 120, "paint": 400}
NO_ORDER = "no order"


def order(number: int) -> dict[str, Any]:
    """Return an order: one a second from noon on, each with one more piece than the last."""
    item = ITEMS[number % len(ITEMS)]
    at = f"2026-01-01T12:{number // 60:02}:{number % 60:02}Z"
    return {"id": number, "item": item, "count": number + 1, "cents": PRICES[item], "at": at}


class Example:
    """A job of the folder, between two topics, with a checkpoint and a group."""

    def __init__(self, name: str, pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = EXAMPLES / f"{name}.py"
        self.pipe = pipe
        self._patch = monkeypatch

    def arguments(self, **more: object) -> list[str]:
        """Return the arguments of the job's command line."""
        pipe = self.pipe
        named = {"input": pipe.input, "output": pipe.output, "checkpoint": pipe.checkpoint}
        named |= {"bootstrap-server": pipe.bootstrap, "group": pipe.group}
        named |= {name.replace("_", "-"): value for name, value in more.items()}
        words = [(f"--{name}", str(value)) for name, value in named.items() if value is not None]
        return [word for pair in words for word in pair]

    def run(self, **more: object) -> None:
        """Run the job to the end of its input."""
        self._patch.setattr(sys, "argv", [str(self.path), *self.arguments(**more)])
        runpy.run_path(str(self.path), run_name="__main__")

    def lose_last_commit(self) -> None:
        """Leave the checkpoint as a driver that is killed between Kafka's commit and Spark's.

        The next run begins with the same batch again.
        """
        self.pipe.lose("commits", max(self.pipe.logged("commits")))

    def feed(self, *values: object) -> None:
        """Orders, or texts as they are, each with a header."""
        made = producer(self.pipe.bootstrap)
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value)
            made.produce(self.pipe.input, text, key=text[:12], headers={"from": b"test"})
        assert made.flush(TIMEOUT_S) == 0

    def output(self, topic: str | None = None) -> list[Any]:
        """The JSON values of all that was ever written, aborted or not, sorted by their text."""
        pipe = self.pipe
        seen = read_topic(pipe.bootstrap, topic or pipe.output, isolation="read_uncommitted")
        return [json.loads(text) for text in sorted(each.value.decode() for each in seen)]

    def committed(self) -> int:
        """Return the number of input records that the group has read."""
        pipe = self.pipe
        found = committed_offsets(pipe.bootstrap, pipe.group, pipe.input, PARTITIONS)
        return sum(found.values())


@pytest.fixture
def example(both_pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Example]:
    """`example("copy_topic")` is that job on new topics, on both brokers in turn."""
    return lambda name: Example(name, both_pipe, monkeypatch)


def in_order(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the values as `Example.output` does: Spark's to_json leaves no space."""
    return sorted(values, key=lambda value: json.dumps(value, separators=(",", ":")))


def test_the_copy_has_each_record_once_with_key_and_headers(example) -> None:
    job = example("copy_topic")
    job.feed(*map(order, range(20)))
    job.run()
    job.lose_last_commit()
    job.feed(*map(order, range(20, 30)))
    job.run()
    job.run()
    topics = job.pipe.input, job.pipe.output
    read, copied = (
        sorted((r.key, r.value, r.headers) for r in job.pipe.read(t, includeHeaders=True).collect())
        for t in topics
    )
    assert copied == read
    assert [r[2][0].key for r in read] == ["from"] * 30
    assert job.committed() == 30


@pytest.mark.live
def test_each_order_has_one_invoice_and_what_is_none_is_one_dead_letter(example) -> None:
    job = example("orders_json")
    letters = create_topic(job.pipe.bootstrap, f"{job.pipe.output}.dlq", 1)
    job.feed(NO_ORDER, *map(order, range(10)))
    job.run(dead_letters=letters)
    job.lose_last_commit()
    job.feed(*map(order, range(10, 15)), NO_ORDER)
    job.run(dead_letters=letters)
    dead = read_topic(job.pipe.bootstrap, letters, isolation="read_uncommitted")
    assert [each.value.decode() for each in dead] == [NO_ORDER] * 2
    wanted = [
        {"id": n, "item": o["item"], "total": o["count"] * o["cents"]}
        for n, o in enumerate(map(order, range(15)))
    ]
    assert job.output() == in_order(wanted)
    assert job.committed() == 17


def test_each_order_is_once_in_avro_and_shown_at_the_end(example, capsys) -> None:
    job, registry = example("orders_avro"), MemoryRegistry()
    with registry.server() as server:
        url = f"http://{server.address}"
        job.feed(*map(order, range(6)))
        job.run(registry=url)
        job.lose_last_commit()
        job.feed(NO_ORDER, *map(order, range(6, 9)))
        capsys.readouterr()
        job.run(registry=url)
        assert "|  8|paint|    9|  400|" in capsys.readouterr().out
        given = {"schema.registry.url": url, "topic": job.pipe.output}
        rows = job.pipe.read(job.pipe.output).select(from_avro("value", "", given).alias("order"))
        orders = sorted((row.order.asDict() for row in rows.collect()), key=lambda each: each["id"])
    assert orders == [{k: v for k, v in order(n).items() if k != "at"} for n in range(9)]
    assert [*registry.subjects] == [f"{job.pipe.output}-value"]


def test_each_window_is_written_once_when_the_watermark_has_passed_it(example) -> None:
    job = example("windowed_counts")
    job.feed(*map(order, range(100)))
    job.run()
    job.lose_last_commit()
    job.feed(*map(order, range(100, 170)))
    job.run()
    # The last order is of 12:02:49, and orders may be 30 seconds late.
    wanted = [
        {
            "minute": f"2026-01-01T12:{minute:02}:00.000Z",
            "item": item,
            "count": sum(
                order(n)["count"]
                for n in range(60 * minute, 60 * minute + 60)
                if order(n)["item"] == item
            ),
        }
        for minute in (0, 1)
        for item in ITEMS
    ]
    assert job.output() == in_order(wanted)
    assert job.committed() == 170


def test_totals_come_once_in_each_batch_and_the_large_ones_in_both_topics(example) -> None:
    job = example("totals_two_sinks")
    large = create_topic(job.pipe.bootstrap, f"{job.pipe.output}-large", 1)
    job.feed(*map(order, range(6)))
    job.run(large=3000)
    job.lose_last_commit()
    job.feed(*map(order, (6, 7)))
    job.run(large=3000)
    anvil, rope, paint = ([950, 3800, 6650], [240, 600, 960], [1200, 2400])
    totals = [sum(anvil[:2]), sum(rope[:2]), sum(paint), sum(anvil), sum(rope)]
    assert sorted(job.output()) == sorted(totals)
    assert sorted(job.output(large)) == sorted(each for each in totals if each >= 3000)
    assert job.committed() == 8


def test_a_backfill_that_runs_again_writes_nothing_twice(example) -> None:
    job = example("backfill")
    app = {"checkpoint": None, "group": None, "app": job.pipe.group}
    job.feed(*map(order, range(12)))
    counts = Counter(each.partition for each in read_topic(job.pipe.bootstrap, job.pipe.input))
    half = json.dumps({job.pipe.input: {str(n): counts[n] for n in range(PARTITIONS)}})
    job.feed(*map(order, range(12, 15)))
    for _ in range(2):
        job.run(ending_offsets=half, **app)
    assert job.output() == sorted(map(order, range(12)), key=json.dumps)
    for _ in range(2):
        job.run(starting_offsets=half, version=2, **app)
    assert job.output() == sorted(map(order, range(15)), key=json.dumps)


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.usefixtures("quick_java")
def test_a_job_runs_in_a_process_of_its_own(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Example("copy_topic", pipe, monkeypatch)
    job.feed(*map(order, range(5)))
    done = subprocess.run(
        [sys.executable, str(job.path), *job.arguments()],
        cwd=pipe.checkpoint.parent,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert job.output() == sorted(map(order, range(5)), key=json.dumps)
