"""Offset JSON: Spark's shape, both ways, and refusals that name the place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import (
    OffsetFormatError,
    SourceNote,
    format_offsets,
    from_json_value,
    is_source_offset,
    parse_offsets,
    parse_partitions,
    plain_offset,
    positions_digest,
    source_note_of,
    to_json_value,
    with_source_note,
)

PARTITIONS = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 300))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(-2, 2**62), max_size=8)


def test_the_text_is_sparks_own() -> None:
    offsets = {TopicPartition("b", 10): 3, TopicPartition("b", 2): 4, TopicPartition("a", 0): 1}
    assert format_offsets(offsets) == '{"a":{"0":1},"b":{"2":4,"10":3}}'


def test_what_is_noted_beside_the_topics_has_its_golden_form() -> None:
    note = SourceNote("cluster", "g", (("a", "id"),), "5eed", positions_digest({}))
    value = with_source_note(to_json_value({TopicPartition("a", 0): 1}), note)
    assert json.dumps(value) == (
        '{"a": {"0": 1}, "txnlog/topic.id/a/id": {}, "txnlog/cluster.id/cluster": {}, '
        '"txnlog/group.id/g": {}, "txnlog/source.id/5eed": {}, '
        '"txnlog/group.start/44136fa355b3678a": {}}'
    )
    assert source_note_of(value) == note


@given(OFFSETS)
def test_formatting_and_parsing_are_inverses(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets(format_offsets(offsets)) == offsets
    assert from_json_value(to_json_value(offsets)) == offsets


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_any_other_json_is_refused_and_not_a_crash(value: object) -> None:
    assert not is_source_offset(value)
    with pytest.raises(OffsetFormatError):
        parse_offsets(json.dumps(value))


@given(OFFSETS)
def test_a_former_versions_note_of_a_start_is_no_topic(offsets: dict[TopicPartition, int]) -> None:
    note = {"group.id": "g", "committed": to_json_value(offsets)}
    value = to_json_value(offsets) | {"startingOffsets/committed": note}
    assert from_json_value(value) == offsets
    assert is_source_offset(value)
    assert plain_offset(value) == to_json_value(offsets)


@pytest.mark.parametrize("prefix", ["cluster.id", "group.id", "source.id", "group.start"])
def test_several_notes_of_a_kind_are_refused(prefix: str) -> None:
    value = {"txnlog/cluster.id/c": {}, f"txnlog/{prefix}/a": {}, f"txnlog/{prefix}/b": {}}
    with pytest.raises(OffsetFormatError, match=prefix):
        source_note_of(value)


@given(OFFSETS, OFFSETS)
def test_positions_have_one_digest_whatever_their_order(
    offsets: dict[TopicPartition, int], others: dict[TopicPartition, int]
) -> None:
    backwards = dict(reversed(offsets.items()))
    assert positions_digest(backwards) == positions_digest(offsets)
    assert (positions_digest(others) == positions_digest(offsets)) == (others == offsets)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"t":[1]}', '{"t":{"0":"1"}}', '{"t":{"-1":1}}', '{"t":{"0":true}}']
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
