"""Files of Spark's checkpoint that the committer reads, byte for byte as Spark writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.query.checkpoint_files import is_rewriting, read_batch_offsets, read_query_id

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import ProgressError
from txnlog_spark.offsets import SourceNote

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
    jvm = JVM.replace("in", "more")
    write_offsets(tmp_path, f'v1\n{METADATA}\n{OURS}\n{{"logOffset":3}}\n{jvm}\n-')
    batch = read_batch_offsets(tmp_path, 4)
    assert batch.source_offsets == {
        TopicPartition("in", 0): 3,
        TopicPartition("in", 1): 7,
        TopicPartition("more", 1): 5,
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


STARTED = '{"in":{"0":3,"1":7},"txnlog/cluster.id/c":{},"txnlog/group.start/%s":{}}'


def test_a_start_from_a_group_is_noted_and_has_the_digest_of_a_plain_one(tmp_path: Path) -> None:
    write_offsets(tmp_path, f"v1\n{METADATA}\n{OURS}")
    plain = read_batch_offsets(tmp_path, 4)
    write_offsets(tmp_path, f"v1\n{METADATA}\n{STARTED % 'digest'}")
    started = read_batch_offsets(tmp_path, 4)
    assert [each.note and each.note.group_start for each in started.sources] == ["digest"]
    assert (started.source_offsets, started.digest) == (plain.source_offsets, plain.digest)


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "v1", "v1\n{}", "v3\n{}\n{}", 'v1\n{}\n{"in": {"0"'),
        f"v1\n{METADATA}\n{STARTED.replace('group.start', 'cluster.id') % 'd'}",
    ],
)
def test_a_torn_offset_log_is_an_error_and_never_an_empty_batch(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        write_offsets(tmp_path, text)
    with pytest.raises(ProgressError, match="offsets/4"):
        read_batch_offsets(tmp_path, 4)


def test_a_partition_that_two_sources_read_is_told(tmp_path: Path) -> None:
    write_offsets(tmp_path, f"v1\n{METADATA}\n{OURS}\n{JVM}")
    assert read_batch_offsets(tmp_path, 4).read_differently == [TopicPartition("in", 1)]


def test_the_hash_tells_one_planning_from_another_with_the_same_offsets(tmp_path: Path) -> None:
    hashes = []
    for time in (1, 1, 2):
        metadata = METADATA.replace(":1,", f":{time},")
        write_offsets(tmp_path, f'v1\n{metadata}\n{{"logOffset":1}}')
        found = read_batch_offsets(tmp_path, 4)
        hashes.append((found.batch_hash, found.digest))
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != hashes[2][0]
    assert hashes[0][1] == hashes[2][1]


def test_named_sources_of_the_second_format_are_read_in_any_order(tmp_path: Path) -> None:
    first, second = f"orders:{OURS}", 'b:{"other":{"0":9}}'
    found = []
    for lines in (f"{first}\n{second}\nidle:-", f"{second}\n{first}\nidle:-"):
        write_offsets(tmp_path, f"v2\n{METADATA}\n{lines}")
        found.append(read_batch_offsets(tmp_path, 4))
    assert found[0].source_offsets == found[1].source_offsets
    assert len(found[0].source_offsets) == 3
    assert found[0].digest == found[1].digest
    assert [source.name for source in found[0].sources] == ["orders", "b"]
    assert found[0].is_whole


def test_a_note_says_which_cluster_and_group_and_is_not_of_the_digest(tmp_path: Path) -> None:
    write_offsets(tmp_path, f"v1\n{METADATA}\n{OURS}")
    plain = read_batch_offsets(tmp_path, 4)
    noted = OURS[:-1] + ', "txnlog/cluster.id/c": {}, "txnlog/group.id/g": {}}'
    write_offsets(tmp_path, f"v1\n{METADATA}\n{noted}")
    batch = read_batch_offsets(tmp_path, 4)
    assert batch.sources[0].note == SourceNote("c", "g")
    assert (batch.digest, batch.source_offsets) == (plain.digest, plain.source_offsets)
    assert batch.batch_hash != plain.batch_hash


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


OTHER = '{"logOffset":3}'
REPARTITIONED = METADATA.replace("{}", '{"spark.sql.shuffle.partitions":"3"}')


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (f"v1\n{REPARTITIONED}\n{OURS}\n{OTHER}\n-", True),
        (f"v2\n{METADATA}\n0:{OURS}\n1:{OTHER}\n2:-", True),
        (f"v2\n{METADATA}\nlog:{OTHER}\norders:{OURS}", True),
        (f"v1\n{METADATA}\n{OURS}\n{OTHER}\n-", False),
        (f"v1\n{REPARTITIONED}\n{OURS}\n{OTHER}\n{OURS}", False),
        (f"v2\n{METADATA}\n0:{OURS.replace('7', '8')}\n1:{OTHER}\n2:-", False),
        (f"v2\n{METADATA}\n0:{OURS}\n1:{OTHER.replace('3', '4')}\n2:-", False),
        (f"v2\n{METADATA}\n0:{OURS}", False),
    ],
)
def test_a_batch_without_rows_that_changes_the_checkpoint_is_of_spark(
    tmp_path: Path, entry: str, expected: bool
) -> None:
    write_offsets(tmp_path, f"v1\n{METADATA}\n{OURS}\n{OTHER}\n-")
    write_offsets(tmp_path, entry, batch_id=5)
    assert not is_rewriting(tmp_path, 5), "it may still come to the sink"
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "5").write_text("v1\n{}")
    assert is_rewriting(tmp_path, 5) is expected
