"""Offset JSON: Spark's shape, both ways, and refusals that name the place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import (
    COMMITTED_START_KEY,
    CommittedStart,
    OffsetFormatError,
    SourceNote,
    committed_start_of,
    format_offsets,
    from_json_value,
    is_source_offset,
    parse_offsets,
    parse_partitions,
    plain_offset,
    to_json_value,
    with_committed_start,
    with_source_note,
)

PARTITIONS = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 300))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(-2, 2**62), max_size=8)


def test_the_text_is_sparks_own() -> None:
    offsets = {TopicPartition("b", 10): 3, TopicPartition("b", 2): 4, TopicPartition("a", 0): 1}
    assert format_offsets(offsets) == '{"a":{"0":1},"b":{"2":4,"10":3}}'


def test_what_is_noted_beside_the_topics_has_its_golden_form() -> None:
    offsets = {TopicPartition("a", 0): 1}
    start = CommittedStart("g", {TopicPartition("a", 0): 7, TopicPartition("b", 1): 0})
    value = with_source_note(with_committed_start(offsets, start), SourceNote("cluster", "g"))
    assert json.dumps(value) == (
        '{"a": {"0": 1}, "startingOffsets/committed": {"group.id": "g", "committed": '
        '{"a": {"0": 7}, "b": {"1": 0}}}, "txnlog/cluster.id/cluster": {}, '
        '"txnlog/group.id/g": {}}'
    )


@given(OFFSETS)
def test_formatting_and_parsing_are_inverses(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets(format_offsets(offsets)) == offsets
    assert from_json_value(to_json_value(offsets)) == offsets


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_any_other_json_is_refused_and_not_a_crash(value: object) -> None:
    assert not is_source_offset(value)
    with pytest.raises(OffsetFormatError):
        parse_offsets(json.dumps(value))


@given(OFFSETS, OFFSETS, st.text())
def test_a_committed_start_survives_beside_the_topics_and_is_no_topic(
    offsets: dict[TopicPartition, int], committed: dict[TopicPartition, int], group_id: str
) -> None:
    start = CommittedStart(group_id, committed)
    value = json.loads(json.dumps(with_committed_start(offsets, start)))
    assert from_json_value(value) == offsets
    assert is_source_offset(value)
    assert committed_start_of(value) == start
    assert plain_offset(value) == to_json_value(offsets)
    assert committed_start_of(to_json_value(offsets)) is None


@pytest.mark.parametrize("note", [True, {}, {"group.id": 1}, {"group.id": "g"}])
def test_a_malformed_committed_start_is_refused(note: object) -> None:
    with pytest.raises(OffsetFormatError):
        committed_start_of({"t": {"0": 1}, COMMITTED_START_KEY: note})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"t":[1]}', '{"t":{"0":"1"}}', '{"t":{"-1":1}}', '{"t":{"0":true}}'],
)
def test_malformed_offsets_are_refused(text: str) -> None:
    with pytest.raises(OffsetFormatError):
        parse_offsets(text)


def test_offsets_of_other_sources_are_told_apart() -> None:
    assert is_source_offset({"t": {"0": 3}})
    assert is_source_offset({})
    assert not is_source_offset({"logOffset": 3})
    assert not is_source_offset(17)


def test_assigned_partitions_are_sorted_and_without_repeats() -> None:
    parsed = parse_partitions('{"b":[1,0,1],"a":[2]}')
    assert parsed == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))


@pytest.mark.parametrize("text", ["{}", '{"a":[]}', '{"a":[-1]}', '{"a":["x"]}', '{"a":[true]}'])
def test_malformed_assignments_are_refused(text: str) -> None:
    with pytest.raises(OffsetFormatError):
        parse_partitions(text)
