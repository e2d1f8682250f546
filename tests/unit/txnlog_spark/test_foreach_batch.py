"""The rules of `foreach_batch` that need no Spark: names, one write of a batch, and runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from txnlog_spark import foreach_batch, foreachbatch
from txnlog_spark.errors import OptionError
from txnlog_spark.process_local import process_local


@dataclass
class Rows:
    """A micro-batch in Spark Connect, and its writer; `saved` has the options of each write."""

    session_id: str = "run-1"
    saved: list[dict[str, str]] = field(default_factory=list)
    error: Exception | None = None

    @property
    def sparkSession(self) -> Any:  # noqa: N802  Spark's name
        return self

    @property
    def write(self) -> Any:
        self.options_given: dict[str, str] = {}
        return self

    def format(self, name: str) -> Any:
        assert name == "txnlog"
        return self

    def mode(self, name: str) -> Any:
        assert name == "append"
        return self

    def options(self, **options: str) -> Any:
        self.options_given |= options
        return self

    def option(self, name: str, value: str) -> Any:
        return self.options(**{name: value})

    def save(self) -> None:
        if self.error is not None:
            raise self.error
        self.saved.append(self.options_given)


@pytest.fixture(autouse=True)
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_local(foreachbatch._Runs), "_latest", {})


def sink(name: str = "", **options: Any) -> Any:
    return foreach_batch(name=name, **{"checkpointLocation": "/cp", "topic": "out", **options})


def test_a_batch_is_written_as_that_batch_of_that_run_by_that_sink() -> None:
    rows = Rows()
    write, named = sink(unset=None, retries=3), sink("side")
    write(rows, 7)
    named(rows, 7)
    first, second = rows.saved
    assert first.pop("sinkRun") == second.pop("sinkRun") != ""
    given = {"checkpointLocation": "/cp", "topic": "out", "txnVersion": "7"}
    assert first == given | {"retries": "3"}
    assert second == given | {"sinkName": "side"}


def test_the_rows_that_are_written_are_those_of_the_function() -> None:
    made: Any = Rows()
    given: Any = Rows()
    foreach_batch(lambda _rows: made, checkpointLocation="/cp")(given, 0)
    assert len(made.saved) == 1


@pytest.mark.parametrize("name", ["a b", "../x", "ä", "a.b", "a/b", "a\n"])
def test_a_name_is_of_letters_digits_and_dashes_for_it_names_a_folder(name: str) -> None:
    with pytest.raises(OptionError, match="option name"):
        sink(name)


@pytest.mark.parametrize(
    "option", ["txnVersion", "txnappid", "SINKNAME", "sinkRun", "sourceOffsets"]
)
def test_what_it_sets_itself_is_refused(option: str) -> None:
    with pytest.raises(OptionError, match="foreach_batch sets it for each micro-batch"):
        sink(**{option: "1"})


def test_without_the_querys_checkpoint_it_is_refused() -> None:
    with pytest.raises(OptionError, match="the query's own checkpointLocation"):
        foreach_batch(topic="out")
    foreach_batch(CHECKPOINTLOCATION="/cp")


@pytest.mark.parametrize("name", ["", "side"])
def test_a_second_write_of_a_batch_under_one_name_is_refused_and_not_skipped(name: str) -> None:
    """Its rows are others, and would be missing."""
    rows = Rows()
    sink(name)(rows, 0)
    with pytest.raises(OptionError, match="has written batch 0 of this query already") as caught:
        sink(name)(rows, 0)
    assert "foreach_batch(..., name=...)" in str(caught.value)
    sink("another")(rows, 0)
    foreach_batch(name=name, checkpointLocation="/another")(rows, 0)  # type: ignore[arg-type]
    sink(name)(rows, 1)
    assert len(rows.saved) == 4


@pytest.mark.parametrize("other", ["/cp/", "//cp", "file:/cp", "file:///cp/", "/x/../cp"])
def test_another_spelling_of_the_checkpoint_is_the_same_query(other: str) -> None:
    rows = Rows()
    sink()(rows, 0)
    with pytest.raises(OptionError, match="has written batch 0 of this query already"):
        sink(checkpointLocation=other)(rows, 0)
    sink("side", checkpointLocation=other)(rows, 0)
    assert rows.saved[0]["sinkRun"] == rows.saved[1]["sinkRun"]


def test_a_second_write_in_another_thread_is_refused_while_the_first_goes_on() -> None:
    refused: list[OptionError] = []

    class Slow(Rows):
        def save(self) -> None:
            with pytest.raises(OptionError) as caught:
                sink()(Rows(), 0)
            refused.append(caught.value)
            super().save()

    sink()(Slow(), 0)
    assert len(refused) == 1


def test_after_an_error_a_batch_may_be_written_again_by_the_same_run() -> None:
    rows = Rows(error=RuntimeError("the brokers are away"))
    with pytest.raises(RuntimeError):
        sink()(rows, 0)
    rows.error = None
    sink()(rows, 0)
    sink("side")(rows, 0)
    assert rows.saved[0]["sinkRun"] == rows.saved[1]["sinkRun"]


def test_another_session_is_another_run_which_may_write_the_batch_again() -> None:
    """Spark makes a session for each run of a query."""
    first, second = Rows("run-1"), Rows("run-2")
    sink()(first, 0)
    sink()(second, 0)
    assert first.saved[0]["sinkRun"] != second.saved[0]["sinkRun"]


# ------------------------------------------------------------------ classic Spark


class Jvm:
    """The part of the JVM that the function asks: the active session, and the thread's query."""

    def __init__(self, active: str | None, query_id: str | None) -> None:
        self.active, self.query_id = active, query_id
        self._jsparkSession = self  # the rows' own session
        self.sparkContext = self._jvm = self
        self.org = self.apache = self.spark = self.sql = self.classic = self
        self.SparkSession = self

    def getActiveSession(self) -> Any:  # noqa: N802  Java's name
        return self

    def isDefined(self) -> bool:  # noqa: N802  Java's name
        return self.active is not None

    def get(self) -> Any:
        return Jvm(self.active, None)

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802  Java's name
        assert name == foreachbatch.QUERY_ID_PROPERTY
        return self.query_id

    def setActiveSession(self, session: Any) -> None:  # noqa: N802  Java's name
        assert session is self
        self.active = "of the rows"

    def sessionUUID(self) -> str:  # noqa: N802  Java's name
        return self.active or ""


@pytest.mark.parametrize(
    ("active", "query_id", "expected"),
    [
        ("of the query", "q", "of the query"),
        ("of another", None, "of the rows"),
        (None, None, "of the rows"),
    ],
)
def test_the_run_is_that_of_the_querys_thread_and_its_session_active_in_others(
    active: str | None, query_id: str | None, expected: str
) -> None:
    """Threads of the function's own have none; and Spark finds the data source by it."""
    jvm: Any = Jvm(active, query_id)
    assert foreachbatch._activated(jvm) == expected
    assert jvm.active == expected
