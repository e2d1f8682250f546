"""The metadata string beside a query's committed progress: what earlier and later versions read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.query.commit_plans import build_plan

from txnlog_kafka.operations.offsets import CommittedOffset
from txnlog_spark.commit.plan import Progress
from txnlog_spark.commit.progress import (
    baseline_of,
    format_progress,
    parse_progress,
    progress_after,
)

PROGRESS = Progress("q", 7, "s", "g", "h", output_digest="o", target="t", positions="p")
GOLDEN = '{"e":"s","g":"g","h":"h","o":"o","p":"p","q":"q","t":"t","v":1}'


def test_progress_has_its_golden_form_both_ways() -> None:
    assert format_progress(PROGRESS) == GOLDEN
    assert parse_progress(CommittedOffset(7, GOLDEN)) == PROGRESS


def test_progress_of_a_version_before_positions_is_read() -> None:
    before = GOLDEN.replace('"p":"p",', "")
    assert parse_progress(CommittedOffset(7, before)) == replace(PROGRESS, positions="")


def test_progress_names_its_topic_and_the_rest_of_its_output_by_16_characters() -> None:
    plan = build_plan()
    output = plan.committer.output
    for progress in (progress_after(plan), baseline_of(plan)):
        assert (progress.output_digest, progress.target) == (output.digest, "out")
    assert len(output.digest) == 16


def test_the_longest_names_fit_into_what_kafka_allows_beside_an_offset() -> None:
    longest = Progress("q" * 36, 2**62, *["d" * 16] * 4, target="t" * 249, positions="p" * 16)
    assert len(format_progress(longest)) < 4096  # offset.metadata.max.bytes


@pytest.mark.parametrize("version", ["0", "2", "null", '"1"'])
def test_another_version_is_not_progress_of_ours(version: str) -> None:
    other = GOLDEN.replace('"v":1', f'"v":{version}')
    assert parse_progress(CommittedOffset(7, other)) is None
