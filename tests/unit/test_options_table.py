"""Options: one table, and one clear line for everything that is not in it."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from txnlog_spark.errors import OptionError
from txnlog_spark.options import NOT_YET, OPTIONS, REFUSED, Use, parse_options
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.source.settings import read_source_settings

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
READ = {**SERVERS, "subscribe": "orders"}
WRITE = {**SERVERS, "topic": "out", "checkpointLocation": "/tmp/cp"}


def refused(options: dict[str, str], use: Use) -> str:
    with pytest.raises(OptionError) as caught:
        parse_options(CaseInsensitiveDict(options), use)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_names_are_unique_without_regard_to_case() -> None:
    names = [n.lower() for o in OPTIONS for n in (o.name, *o.aliases)]
    assert len(set(names)) == len(names)
    assert not set(names) & {n.lower() for n in (*NOT_YET, *REFUSED)}


def test_every_option_says_what_it_means_and_its_default_is_valid() -> None:
    for option in OPTIONS:
        assert option.doc
        if isinstance(option.default, str):
            assert option.read(option.default) in (option.default, option.default.lower())


def test_lower_cased_names_as_spark_hands_them_over_are_understood() -> None:
    values = parse_options(CaseInsensitiveDict({**READ, "maxOffsetsPerTrigger": "7"}), Use.READ)
    assert values["maxOffsetsPerTrigger"] == 7
    assert values["subscribe"] == ("orders",)
    assert values["kafka.isolation.level"] == "read_committed"


def test_an_alias_is_the_option_and_both_at_once_are_refused() -> None:
    assert parse_options({"group.id": "g"}, Use.READ)["kafka.group.id"] == "g"
    assert "says the same" in refused({"group.id": "g", "kafka.group.id": "h"}, Use.READ)


@pytest.mark.parametrize("use", list(Use))
@pytest.mark.parametrize("name", sorted({*NOT_YET, *REFUSED, "kafka.fetch.min.bytes", "bogus"}))
def test_an_option_that_is_not_there_is_named_in_the_error(name: str, use: Use) -> None:
    text = refused({name: "1"}, use)
    assert name.lower() in text.lower()
    assert "remove it" in text


def test_a_misspelt_option_is_answered_with_the_nearest_one() -> None:
    assert "did you mean maxOffsetsPerTrigger?" in refused({"maxOffsetPerTrigger": "5"}, Use.READ)


def test_an_option_of_the_other_side_says_where_it_belongs() -> None:
    assert "only for writeStream" in refused({"checkpointLocation": "/x"}, Use.READ_STREAM)
    assert "only for readStream and read" in refused({"subscribe": "t"}, Use.WRITE_STREAM)
    assert "only for read;" in refused({"endingOffsets": "latest"}, Use.READ_STREAM)


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("maxOffsetsPerTrigger", "many", "an integer of at least 1"),
        ("maxOffsetsPerTrigger", "0", "an integer of at least 1"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("kafka.isolation.level", "dirty", "read_committed or read_uncommitted"),
        ("startingOffsets", "now", "earliest, latest, committed or JSON"),
        ("startingOffsets", '{"t":{"0":-3}}', "t-0: offset -3"),
        ("startingOffsets", '{"t":{"x":1}}', "'x' is not a partition number"),
        ("assign", '{"t":0}', "expected a list of partition numbers"),
        ("subscribe", " , ", "topic names separated by commas"),
        ("kafka.security.protocol", "SASL_SSL", "TLS and SASL are not there yet"),
    ],
)
def test_a_malformed_value_says_what_is_allowed(name: str, text: str, allowed: str) -> None:
    shown = refused({name: text}, Use.READ_STREAM)
    assert allowed in shown
    assert name in shown


def test_acks_that_could_lose_records_are_refused() -> None:
    assert "all or -1" in refused({"kafka.acks": "1"}, Use.WRITE_STREAM)
    assert "true" in refused({"kafka.enable.idempotence": "false"}, Use.WRITE_STREAM)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "subscribe"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "assign"),
        ({"subscribePattern": "a["}, "subscribePattern"),
        ({"subscribe": "a", "startingOffsets": "committed"}, "kafka.group.id"),
    ],
)
def test_what_to_read_must_be_said_once_and_whole(options: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_source_settings({**SERVERS, **options}, streaming=True)
    assert caught.value.name == name


def test_a_batch_cannot_start_at_the_end_or_end_at_the_start() -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        read_source_settings({**READ, "startingOffsets": "latest"}, streaming=False)
    with pytest.raises(OptionError, match="startingOffsets"):
        read_source_settings({**READ, "startingOffsets": '{"orders":{"0":-1}}'}, streaming=False)
    with pytest.raises(OptionError, match="endingOffsets"):
        read_source_settings({**READ, "endingOffsets": '{"orders":{"0":-2}}'}, streaming=False)


def test_the_defaults_of_where_to_start_are_sparks() -> None:
    assert read_source_settings(READ, streaming=True).starting.word == "latest"
    assert read_source_settings(READ, streaming=False).starting.word == "earliest"


def test_a_stream_without_checkpoint_option_is_refused_and_told_why() -> None:
    with pytest.raises(OptionError) as caught:
        read_sink_settings({**SERVERS, "topic": "out"}, streaming=True)
    assert caught.value.name == "checkpointLocation"
    assert 'writeStream.option("checkpointLocation"' in str(caught.value)


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b c", "/a/b c"),
        ("/a/b%20c:d", "/a/b%20c:d"),
        ("file:/a", "/a"),
        ("file://localhost/a", "/a"),
        ("file:///a/b%20c", "/a/b%20c"),
        ("file:/a/b#c?d", "/a/b#c?d"),
    ],
)
def test_a_local_checkpoint_is_where_spark_has_it_a_uri_is_not_decoded(
    location: str, path: str
) -> None:
    settings = read_sink_settings({**WRITE, "checkpointLocation": location}, streaming=True)
    assert str(settings.checkpoint) == path


@pytest.mark.parametrize("location", ["s3a://bucket/cp", "file://host/cp", "file:cp", "hdfs:/cp"])
def test_a_checkpoint_without_atomic_rename_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match=location):
        read_sink_settings({**WRITE, "checkpointLocation": location}, streaming=True)


def test_the_transactional_id_comes_from_the_option_then_the_group_then_the_query() -> None:
    plain = read_sink_settings(WRITE, streaming=True)
    grouped = read_sink_settings({**WRITE, "kafka.group.id": "g"}, streaming=True)
    named = read_sink_settings({**WRITE, "group.id": "g", "transactional.id": "t"}, streaming=True)
    assert [s.transactional_id_of("q") for s in (plain, grouped, named)] == [
        "txnlog-q",
        "txnlog-g",
        "t",
    ]
    assert [s.progress_group_of("q") for s in (plain, grouped, named)] == [
        "txnlog-q.progress.q",
        "g.progress.q",
        "g.progress.q",
    ]


def test_a_batch_write_does_not_take_the_transactional_id_of_a_query_of_its_group() -> None:
    # It would fence that query. A batch write has no offsets to commit to the group.
    options = {**SERVERS, "topic": "out", "kafka.group.id": "g"}
    write = read_sink_settings(options, streaming=False)
    assert write.group_id is None
    assert write.transactional_id_of("write-1") == "txnlog-write-1"
