"""Rows D of docs/internals/faults.md: the driver is killed inside the commit, at each of six steps.

One query lives through all rows (`driver_rows`), then each row is judged. A kill ends the whole
Spark application: the JVM, its Python workers and the driver program.
"""

from __future__ import annotations

import pytest
from support.spark.audit import check_audit
from support.spark.driver_rows import ROWS_OF, Story
from support.spark.spark_copy import KILLED, CopyQuery

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(1800)]


def each_row() -> list:
    """Every row with every broker it is played on."""
    kafka = {"apache_kafka": [pytest.mark.kafka]}
    return [
        pytest.param(name, row, marks=kafka.get(name, []), id=f"{row.name}-{name}")
        for name, rows in ROWS_OF.items()
        for row in rows
    ]


@pytest.fixture(scope="module")
def stories(shared_brokers, tmp_path_factory, unique_names):
    """The story told on a broker, by the broker's name; told when first asked for."""
    told: dict[str, Story] = {}

    def story_of(name: str) -> Story:
        if name not in told:
            broker = shared_brokers(name)
            folder = tmp_path_factory.mktemp(f"driver-rows-{name}")
            query = CopyQuery(folder, broker.bootstrap_servers, unique_names("rows"))
            story = Story(query)
            story.play(ROWS_OF[name])
            told[name] = story
        return told[name]

    return story_of


@pytest.fixture
def story(broker_name, stories) -> Story:
    """The story on one of the two brokers."""
    return stories(broker_name)


@pytest.mark.parametrize(("broker_name", "row"), each_row())
def test_the_driver_was_killed_there(story, row):
    (run,) = (run for each, _, run in story.runs if each == row)
    assert row.name not in story.failures, story.failures[row.name]
    assert run.code == KILLED
    assert len(run.fired) == 1


def test_the_restart_after_the_last_kill_came_to_the_end(story):
    assert "the last run" not in story.failures, story.failures.get("the last run")
    assert story.query.logged("offsets") == story.query.logged("commits")


def test_each_input_record_is_in_the_output_exactly_once(story):
    story.query.check_exactly_once()


def test_no_recovery_produced_a_batch_that_was_committed(story):
    story.check_copies()


def test_the_audit_finds_nothing(story):
    check_audit(story.query)
