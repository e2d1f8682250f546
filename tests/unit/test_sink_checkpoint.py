"""What the committer reads from Spark's checkpoint, byte for byte as Spark writes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from txnlog_spark.errors import ProgressError
from txnlog_spark.offsets import TopicPartition
from txnlog_spark.protocol.values import ExpectedOffsets
from txnlog_spark.sink.checkpoint import (
    RecordedIdentity,
    merge_source_offsets,
    read_batch_offsets,
    read_identity,
    read_query_id,
    write_identity,
)
from txnlog_spark.sink.files import write_atomically

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
OURS = '{"in": {"0": 3, "1": 7}}'
JVM = '{"other":{"0":9},"in":{"1":5}}'


def write_offsets(checkpoint: Path, text: str, batch_id: int = 4) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text(text)


def test_the_query_id_is_that_of_the_metadata_file(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"5319c1b1-cec7"}')
    assert read_query_id(tmp_path) == "5319c1b1-cec7"


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"name":"x"}', "\x00\x00"])
def test_a_missing_or_damaged_metadata_file_is_an_error_that_names_it(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "metadata").write_text(text)
    with pytest.raises(ProgressError, match="metadata") as caught:
        read_query_id(tmp_path)
    assert "\n" not in str(caught.value)


def test_source_offsets_of_all_kafka_like_sources_are_merged(tmp_path: Path) -> None:
    write_offsets(tmp_path, f'v1\n{METADATA}\n{OURS}\n{{"logOffset":3}}\n{JVM}\n-')
    batch = read_batch_offsets(tmp_path, 4)
    assert batch.source_offsets == {
        TopicPartition("in", 0): 3,
        TopicPartition("in", 1): 5,
        TopicPartition("other", 0): 9,
    }


def test_the_digest_tells_plans_apart_and_not_their_spelling(tmp_path: Path) -> None:
    digests = []
    lines = [OURS, OURS.replace(" ", ""), OURS.replace("7", "8"), f'{OURS}\n{{"logOffset":3}}']
    for line in lines:
        write_offsets(tmp_path, f"v1\n{METADATA}\n{line}")
        digests.append(read_batch_offsets(tmp_path, 4).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


STARTED = '{"in":{"0":3,"1":7},"startingOffsets/committed":{"group.id":"g","committed":%s}}'


def test_a_start_from_a_group_expects_its_offsets_and_has_the_digest_of_a_plain_one(
    tmp_path: Path,
) -> None:
    write_offsets(tmp_path, f"v1\n{METADATA}\n{OURS}")
    plain = read_batch_offsets(tmp_path, 4)
    line = STARTED % '{"in":{"0":2}}'
    write_offsets(tmp_path, f"v1\n{METADATA}\n{line}")
    started = read_batch_offsets(tmp_path, 4)
    expected = {TopicPartition("in", 0): 2, TopicPartition("in", 1): None}
    assert started.expected == (ExpectedOffsets("g", expected),)
    assert (started.source_offsets, started.digest) == (plain.source_offsets, plain.digest)
    assert plain.expected == ()


def test_a_damaged_start_from_a_group_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_offsets(tmp_path, f"v1\n{METADATA}\n{STARTED % '[]'}")
    with pytest.raises(ProgressError, match="offsets/4"):
        read_batch_offsets(tmp_path, 4)


@pytest.mark.parametrize("text", [None, "", "v1", "v1\n{}", "v3\n{}\n{}", 'v1\n{}\n{"in": {"0"'])
def test_a_torn_offset_log_is_an_error_and_never_an_empty_batch(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        write_offsets(tmp_path, text)
    with pytest.raises(ProgressError, match="offsets/4"):
        read_batch_offsets(tmp_path, 4)


def test_a_topic_that_two_sources_read_counts_as_far_as_both_have_read() -> None:
    assert merge_source_offsets([{"t": {"0": 5}}, {"t": {"0": 2}}, 17]) == {
        TopicPartition("t", 0): 2
    }


@pytest.mark.parametrize(
    ("lines", "is_whole"),
    [
        (f"{OURS}\n-", True),
        (f'{OURS}\n{{"other":{{"0":9}}}}', True),
        (f'{OURS}\n{{"logOffset":3}}', False),
        (f"{OURS}\n{JVM}", False),
    ],
)
def test_offsets_are_whole_when_all_sources_are_kafka_like_and_none_reads_what_another_does(
    tmp_path: Path, lines: str, is_whole: bool
) -> None:
    write_offsets(tmp_path, f"v1\n{METADATA}\n{lines}")
    assert read_batch_offsets(tmp_path, 4).is_whole == is_whole


IDENTITY = RecordedIdentity("q", "r", "tid", 1000, 3, "g.progress.q", ("out", 2), 7)


def test_the_identity_survives_and_is_replaced_whole(tmp_path: Path) -> None:
    assert read_identity(tmp_path) is None
    write_identity(tmp_path, IDENTITY)
    assert read_identity(tmp_path) == IDENTITY
    assert os.listdir(tmp_path / "txnlog") == ["identity.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":2}', '{"version":1,"query_id":"q"}'])
def test_a_damaged_identity_is_an_error_and_not_a_first_start(tmp_path: Path, text: str) -> None:
    write_atomically(tmp_path / "txnlog" / "identity.json", text.encode())
    with pytest.raises(ProgressError, match=r"identity\.json"):
        read_identity(tmp_path)


def test_the_identity_file_has_its_golden_form(tmp_path: Path) -> None:
    write_identity(tmp_path, IDENTITY)
    assert (tmp_path / "txnlog" / "identity.json").read_text() == (
        '{\n "version": 2,\n "query_id": "q",\n "run_id": "r",\n "transactional_id": "tid",\n'
        ' "producer_id": 1000,\n "producer_epoch": 3,\n "progress_group_id": "g.progress.q",\n'
        ' "progress_partition": [\n  "out",\n  2\n ],\n "next_batch_id": 7\n}'
    )


def test_an_identity_of_version_1_is_read_and_says_nothing_of_the_progress(tmp_path: Path) -> None:
    path = tmp_path / "txnlog" / "identity.json"
    write_atomically(
        path,
        b'{"version": 1, "query_id": "q", "run_id": "r", "transactional_id": "tid",'
        b' "producer_id": 1000, "producer_epoch": 3}',
    )
    assert read_identity(tmp_path) == RecordedIdentity("q", "r", "tid", 1000, 3, "", None, 0)


def test_an_identity_of_a_later_version_is_refused(tmp_path: Path) -> None:
    write_atomically(tmp_path / "txnlog" / "identity.json", b'{"version": 3}')
    with pytest.raises(ProgressError, match="newer version"):
        read_identity(tmp_path)
