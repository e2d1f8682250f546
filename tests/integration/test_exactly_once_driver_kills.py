"""Rows D of docs/internals/faults.md: the driver is killed inside the commit, at each of six steps.

One query on Apache Kafka lives through all rows (`driver_rows`), then each row is judged. A kill
ends the whole Spark application: the JVM, its Python workers and the driver program.
"""

from __future__ import annotations

import pytest
from support.spark.audit import check_audit
from support.spark.driver_rows import OFTEN_ROWS, Story
from support.spark.spark_copy import KILLED, CopyQuery

pytestmark = [
    pytest.mark.live,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # Named in the tests' names, by which they share that broker with others.
    pytest.mark.parametrize("broker_name", ["apache_kafka"], indirect=True),
    pytest.mark.usefixtures("broker_name"),
]


@pytest.fixture(scope="module")
def story(shared_brokers, tmp_path_factory, unique_names) -> Story:
    """The story, told once."""
    servers = shared_brokers("apache_kafka").bootstrap_servers
    told = Story(CopyQuery(tmp_path_factory.mktemp("driver-rows"), servers, unique_names("rows")))
    told.play(OFTEN_ROWS)
    return told


@pytest.mark.parametrize("row", OFTEN_ROWS, ids=lambda row: row.name)
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
