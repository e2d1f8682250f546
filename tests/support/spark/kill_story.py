"""A query killed at some rows of the fault matrix, and the proof that it was exactly-once."""

from __future__ import annotations

from support.spark.audit import check_audit
from support.spark.driver_rows import Row, Story
from support.spark.spark_copy import CopyQuery


def play(query: CopyQuery, rows: tuple[Row, ...]) -> None:
    """Play these rows in one life of the query, then prove the output."""
    story = Story(query)
    story.play(rows)
    assert story.failures == {}, story.failures
    assert query.logged("offsets") == query.logged("commits")
    query.check_exactly_once()
    story.check_copies()
    check_audit(query)
