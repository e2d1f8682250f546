"""Outputs of a job under test: a topic, files that Spark reads, or rows that a function returns."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from txnlog_testing.prove.compare import Row, frozen
from txnlog_testing.prove.driver import Driver, Outcome
from txnlog_testing.prove.world import World

FILE = "__file"
READ_SECONDS_MAX = 300.0


class Output(Protocol):
    """Place where a job's output is found."""

    @property
    def name(self) -> str:
        """Name in the report."""

    def rows(self, world: World, driver: Callable[[], Driver]) -> list[Row]:
        """Return all rows of this world. Raises ValueError if they cannot be read."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Committed records of a topic."""

    name: str

    def rows(self, world: World, driver: Callable[[], Driver]) -> list[Row]:
        """Return its records, partition by partition."""
        del driver
        return world.topic_rows(self.name)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, or a DataFrame, that `read(spark, kafka)` returns; `key` names columns."""

    read: Callable[..., Any]
    key: Sequence[str] = ()
    name: str = "rows"

    def rows(self, world: World, driver: Callable[[], Driver]) -> list[Row]:
        """Let a driver read the rows. Raises ValueError if it cannot."""
        asked, reader = world.folder / "rows", world.folder / "reader"
        reader.write_bytes(pickled(self.read))
        process = driver()
        process.tell(
            {"do": "read", "reader": str(reader), "kafka": world.kafka, "into": str(asked)}
        )
        outcome = process.wait(READ_SECONDS_MAX) or Outcome()
        if outcome.error:
            raise ValueError(f"the output {self.name!r} cannot be read: {outcome.error}")
        rows = pickle.loads(asked.read_bytes())
        return [self._row(row, number) for number, row in enumerate(rows)]

    def _row(self, row: Any, number: int) -> Row:
        if not isinstance(row, Mapping):
            values = (
                row if isinstance(row, Sequence) and not isinstance(row, str | bytes) else [row]
            )
            row = {f"column {place}": value for place, value in enumerate(values)}
        columns = dict(row)
        origin = columns.pop(FILE, None) or f"row {number}"
        missing = [name for name in self.key if name not in columns]
        if missing:
            raise ValueError(f"output {self.name!r}: key {missing} is not among {list(columns)}")
        key = tuple(frozen(columns[name]) for name in self.key) or None
        return Row(columns, key, str(origin).rpartition("/")[2])


def Files(  # noqa: N802 it reads as the classes beside it
    name: str,
    format: str = "parquet",
    key: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Table:
    """Return the output in the files at `kafka.path(name)`, as `spark.read.format(...)` reads
    them."""
    return Table(_FileReader(name, format, dict(options or {})), key, name)


@dataclass(frozen=True, slots=True)
class _FileReader:
    name: str
    format: str
    options: dict[str, str] = field(default_factory=dict)

    def __call__(self, spark: Any, kafka: Any) -> Any:
        from pyspark.sql import functions as sf

        path = kafka.path(self.name)
        if not Path(path).exists():
            return []
        found = spark.read.format(self.format).options(**self.options).load(path)
        return found.withColumn(FILE, sf.input_file_name())


def read_outputs(given: Any) -> list[Output]:
    """Return the outputs that a user named: one or several of topic, Topic, Table and function."""
    several = given if isinstance(given, list | tuple) else [given]
    if not several:
        raise ValueError("output is empty: name the topic, the Files or the function to look at")
    return [_read_output(each) for each in several]


def _read_output(given: Any) -> Output:
    if isinstance(given, str):
        return Topic(given)
    if isinstance(given, Topic | Table):
        return given
    if callable(given):
        return Table(given, name=getattr(given, "__name__", "rows"))
    raise TypeError(
        f"output {given!r} is not the name of a topic, Files(...), Table(...) or a function"
    )


def pickled(function: Callable[..., Any]) -> bytes:
    """Return a function as bytes that another process can load, whatever module it comes from."""
    import sys

    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    by_value = module is not None and not module.__name__.startswith("txnlog_testing.prove")
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
