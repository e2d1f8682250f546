"""Options: one table, and one clear line for everything that is not in it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.datasource import TxnLogDataSource
from txnlog_spark.errors import OptionError
from txnlog_spark.log_once import Warned
from txnlog_spark.options.declared import OPTIONS, Use
from txnlog_spark.options.kafka_configs import KAFKA_CONFIGS, NOT_YET, Support
from txnlog_spark.options.parse import NO_EFFECT, check_cluster, parse_options
from txnlog_spark.process_local import process_local
from txnlog_spark.sink.settings import read_sink_settings
from txnlog_spark.source.settings import read_source_settings

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
READ = {**SERVERS, "subscribe": "orders"}
WRITE = {**SERVERS, "topic": "out", "checkpointLocation": "/tmp/cp"}


def refused(options: dict[str, str], use: Use) -> str:
    with pytest.raises(OptionError) as caught:
        parse_options(CaseInsensitiveDict(options), use)
    text = caught.value.text
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("given", "use", "named"),
    [
        ({"assign": '{"a":[0]}'}, Use.READ_STREAM, "only one of them"),
        ({"kafka.auto.offset.reset": "earliest"}, Use.READ_STREAM, "use startingOffsets"),
        (
            {"kafka.security.protocol": "SASL_SSL"},
            Use.READ_STREAM,
            "GSSAPI (Kerberos), which is Kafka's default",
        ),
        ({"kafka.acks": "1"}, Use.WRITE_STREAM, "all or -1"),
        ({"kafka.enable.idempotence": "false"}, Use.WRITE_STREAM, "true"),
    ],
)
def test_a_wrong_option_of_a_query_is_named_with_what_is_allowed(
    given: dict[str, str], use: Use, named: str
) -> None:
    reads = use is Use.READ_STREAM
    settings = read_source_settings if reads else read_sink_settings
    options = CaseInsensitiveDict({**(READ if reads else WRITE), **given})
    with pytest.raises(OptionError, match=re.escape(named)):
        settings(options, streaming=True)


def test_names_are_unique_without_regard_to_case() -> None:
    names = [n.lower() for o in OPTIONS for n in (o.name, *o.aliases)]
    assert len(set(names)) == len(names)
    uses = {o.name: o.use for o in OPTIONS}
    assert [n for n, (use, _) in NO_EFFECT.items() if uses.get(n, Use(0)) & use] == []


def test_every_option_says_what_it_means_and_its_default_is_valid() -> None:
    for option in OPTIONS:
        assert re.fullmatch(r"[A-Z].*\.|read_.*\.", option.doc), "a sentence"
        if isinstance(option.default, str):
            assert option.read(option.default) in (option.default, option.default.lower())


def test_lower_cased_names_as_spark_hands_them_over_are_understood() -> None:
    values = parse_options(CaseInsensitiveDict({**READ, "maxOffsetsPerTrigger": "7"}), Use.READ)
    assert values["maxOffsetsPerTrigger"] == 7
    assert values["subscribe"] == ("orders",)
    assert values["kafka.isolation.level"] == "read_committed"


def test_an_alias_is_the_option_and_both_at_once_are_refused() -> None:
    assert parse_options({"group.id": "g"}, Use.READ)["kafka.group.id"] == "g"
    assert "is the same option" in refused({"group.id": "g", "kafka.group.id": "h"}, Use.READ)


@pytest.mark.invariant(60)
@pytest.mark.parametrize("use", list(Use))
@pytest.mark.parametrize("name", ["kafka.auto.offset.reset", "bogus"])
def test_an_option_that_is_not_there_is_named_in_the_error(name: str, use: Use) -> None:
    text = refused({name: "1"}, use)
    assert f"option {name}:".lower() in text.lower()
    assert "remove it" in text


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
        (
            "startingOffsets",
            "now",
            "earliest, latest, committed, committedOrEarliest, committedOrLatest or JSON",
        ),
        ("startingOffsets", '{"t":{"0":-3}}', "t-0: offset -3"),
        ("startingOffsets", '{"t":{"x":1}}', "'x' is not a partition number"),
        ("assign", '{"t":0}', "expected a list of partition numbers"),
        ("subscribe", " , ", "topic names separated by commas"),
        ("maxTriggerDelay", "1.5m", "a time such as 500ms, 30s or 15m"),
        ("maxTriggerDelay", "15 minutes", "a time such as 500ms, 30s or 15m"),
        ("path", "file:broker", "a directory on this machine: a path, or file: and an absolute"),
        ("path", "s3a://bucket/x", "a directory on this machine: a path, or file: and an absolute"),
        ("kafka.security.protocol", "TLS", "PLAINTEXT or SSL or SASL_PLAINTEXT or SASL_SSL"),
    ],
)
def test_a_malformed_value_says_what_is_allowed(name: str, text: str, allowed: str) -> None:
    shown = refused({name: text}, Use.READ_STREAM)
    assert allowed in shown
    assert name in shown


@pytest.mark.parametrize("text", ["/data/broker", "file:/data/broker", "file:///data/broker"])
def test_the_directory_of_an_embedded_broker_is_a_path_or_a_file_uri(text: str) -> None:
    options = {"path": text, "subscribe": "t"}
    assert read_source_settings(options, streaming=True).connection.path == "/data/broker"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "subscribe"),
        ({"subscribePattern": "a["}, "subscribePattern"),
        ({"subscribe": "a", "startingOffsets": "committed"}, "kafka.group.id"),
    ],
)
def test_what_to_read_must_be_said_once_and_whole(options: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_source_settings({**SERVERS, **options}, streaming=True)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"orders":{"0":-1}}'),
        ("endingOffsets", '{"orders":{"0":-2}}'),
    ],
)
def test_a_batch_cannot_start_at_the_end_or_end_at_the_start(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=name):
        read_source_settings({**READ, name: text}, streaming=False)


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
        ("file:///a//b/", "/a/b"),
    ],
)
def test_a_local_checkpoint_is_where_spark_has_it_a_uri_is_not_decoded(
    location: str, path: str
) -> None:
    settings = read_sink_settings({**WRITE, "checkpointLocation": location}, streaming=True)
    assert str(settings.checkpoint) == path


def test_options_of_a_store_that_is_not_used_have_no_effect_and_say_so(told) -> None:
    options = {**WRITE, "txnlog.fs.s3a.endpoint": "a:1", "txnlog.fs.gs.project.id": "p"}
    read_sink_settings({**options, "checkpointLocation": "S3A://bucket/cp"}, streaming=True)
    assert told() == [
        "option txnlog.fs.gs.project.id has no effect: neither checkpointLocation nor "
        "stagingLocation is on gs://"
    ]


def test_the_secrets_of_a_store_are_not_shown() -> None:
    given = {
        "txnlog.fs.s3a.access.key": "AKIA-hunter",
        "txnlog.fs.s3a.secret.key": "hunter2",
        "txnlog.fs.s3a.session.token": "hunter3",
        "txnlog.fs.azure.account.key": "hunter4",
        "txnlog.fs.azure.sas.fixed.token": "hunter5",
        "txnlog.fs.azure.account.oauth2.client.secret": "hunter6",
    }
    settings = read_sink_settings(
        {**WRITE, **given, "checkpointLocation": "s3a://bucket/cp"}, streaming=True
    )
    assert settings.storage.secrets == set(given.values())
    assert "hunter" not in repr(settings)
    for name, value in given.items():
        assert value not in str(OptionError(name, value, "a value"))


def test_the_transactional_id_comes_from_the_option_then_the_group_then_the_query() -> None:
    plain = read_sink_settings(WRITE, streaming=True)
    grouped = read_sink_settings({**WRITE, "kafka.group.id": "g"}, streaming=True)
    named = read_sink_settings({**WRITE, "group.id": "g", "transactional.id": "t"}, streaming=True)
    assert [s.commit_options.transactional_id_of("q") for s in (plain, grouped, named)] == [
        "txnlog-q",
        "txnlog-g",
        "t",
    ]
    assert [s.commit_options.progress_group_of("q") for s in (plain, grouped, named)] == [
        "txnlog-q.progress.q",
        "g.progress.q",
        "g.progress.q",
    ]


def test_a_batch_write_does_not_take_the_transactional_id_of_a_query_of_its_group() -> None:
    # It would fence that query.
    options = {**SERVERS, "topic": "out", "kafka.group.id": "g"}
    given = {**options, "sourceOffsets": '{"in":{"0":5}}'}
    write = read_sink_settings(given, streaming=False)
    assert write.group_id == "g"
    assert write.source_offsets == {TopicPartition("in", 0): 5}
    assert write.commit_options.transactional_id_of_write("write-1") == "txnlog-write-1"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kafka.group.id": "g"}, "or set sourceOffsets"),
        ({"sourceOffsets": '{"in":{"0":5}}'}, "sourceOffsets are committed for a group"),
        (
            {"kafka.group.id": "g", "sourceOffsets": '{"in":{"0":-1}}'},
            "next offset to read of in-0",
        ),
        ({"txnAppId": "a"}, "txnAppId needs a version, which must rise"),
        ({"txnVersion": "3"}, "txnVersion counts the writes of an application"),
        ({"txnAppId": "a", "txnVersion": "x"}, "an integer of at least 0"),
        ({"checkpointLocation": "c"}, "txnlog_spark.foreach_batch"),
    ],
)
def test_a_batch_write_refuses_options_that_do_not_go_together(options, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_sink_settings({**SERVERS, "topic": "out", **options}, streaming=False)


# ------------------------------------------------------------------ which cluster


@pytest.mark.parametrize(
    "use", [Use.READ_STREAM, Use.READ_BATCH, Use.WRITE_STREAM, Use.WRITE_BATCH]
)
def test_neither_a_cluster_nor_a_path_is_an_error_with_an_example_of_each(use: Use) -> None:
    with pytest.raises(OptionError) as caught:
        check_cluster(parse_options({}, use))
    text = str(caught.value)
    assert '.option("kafka.bootstrap.servers", "host:9092")' in text
    assert all(f'.{call}(".txnlog")' in text for call in ("load", "start", "save"))


def test_a_cluster_and_a_path_contradict_each_other() -> None:
    with pytest.raises(
        OptionError, match=r"remove it or kafka\.bootstrap\.servers='localhost:9092'"
    ):
        read_source_settings({**READ, "path": ".txnlog"}, streaming=True)


def test_settings_of_either_kind_need_to_know_the_cluster() -> None:
    with pytest.raises(OptionError, match="bootstrap"):
        read_source_settings({"subscribe": "t"}, streaming=False)
    with pytest.raises(OptionError, match="bootstrap"):
        read_sink_settings({"topic": "t"}, streaming=False)
    assert read_sink_settings({"topic": "t", "path": "p"}, streaming=False).connection.path == "p"


# ------------------------------------------------------------------ Kafka's own configs

NAMES = (Path(__file__).parents[2] / "support" / "kafka" / "kafka_config_names.txt").read_text()
KAFKA_NAMES = [f"kafka.{line.split()[0]}" for line in NAMES.splitlines()]
HARMLESS = {
    "kafka.max.in.flight.requests.per.connection": "5",
    "kafka.enable.auto.commit": "false",
    "kafka.transaction.two.phase.commit.enable": "false",
    "kafka.exclude.internal.topics": "true",
    "kafka.partitioner.ignore.keys": "false",
    "kafka.partitioner.class": ("org.apache.kafka.clients.producer.internals.DefaultPartitioner"),
    "kafka.ssl.protocol": "TLSv1.2",
    "kafka.sasl.client.callback.handler.class": (
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    ),
}
HARMFUL = {
    "kafka.max.in.flight.requests.per.connection": ("6", "many", "0"),
    "kafka.enable.auto.commit": ("true",),
    "kafka.transaction.two.phase.commit.enable": ("true",),
    "kafka.exclude.internal.topics": ("false",),
    "kafka.partitioner.ignore.keys": ("true",),
    "kafka.partitioner.class": ("org.apache.kafka.clients.producer.RoundRobinPartitioner",),
    "kafka.ssl.protocol": ("TLSv1.1",),
    "kafka.sasl.client.callback.handler.class": ("com.example.Handler",),
}


@pytest.fixture
def told(caplog):
    """Return a function that returns the log lines of a process that has logged nothing yet."""
    process_local(Warned).clear()
    with caplog.at_level(logging.WARNING):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_every_config_of_kafkas_clients_has_a_place_in_the_table() -> None:
    assert len(KAFKA_NAMES) > 140
    assert [name for name in KAFKA_NAMES if name not in KAFKA_CONFIGS] == []


def test_the_obeyed_configs_are_the_declared_options() -> None:
    declared = {option.name for option in OPTIONS if option.name.startswith("kafka.")}
    obeyed = {n for n, c in KAFKA_CONFIGS.items() if c.standing is Support.SUPPORTED}
    assert obeyed == declared


def test_harmless_values_are_known_for_all_configs_that_look_at_theirs() -> None:
    looks = {name for name, config in KAFKA_CONFIGS.items() if config.allows is not None}
    assert looks == set(HARMLESS) == set(HARMFUL)


@pytest.mark.invariant(60)
@pytest.mark.parametrize("name", sorted(KAFKA_CONFIGS))
def test_every_config_of_kafkas_is_obeyed_or_taken_with_one_line_or_refused(name, told) -> None:
    config = KAFKA_CONFIGS[name]
    if config.standing is Support.REFUSED:
        assert f"option {name}: remove it: {config.why}" in refused({name: "x"}, Use.READ_STREAM)
        assert told() == []
    elif config.standing is Support.NO_EFFECT:
        for _ in range(3):
            values = parse_options({name: HARMLESS.get(name, "x")}, Use.WRITE_STREAM)
        assert name not in values
        assert told() == [f"option {name} has no effect: {config.why}"]
    else:
        parse_options({}, Use.READ)
        assert told() == []


@pytest.mark.parametrize(("name", "value"), [(n, v) for n in HARMFUL for v in HARMFUL[n]])
def test_a_value_that_breaks_the_guarantee_is_refused(name, value, told) -> None:
    text = refused({name: value}, Use.WRITE_STREAM)
    assert f"option {name}={value!r}: {KAFKA_CONFIGS[name].allowed}" in text
    assert told() == []


@pytest.mark.parametrize(
    "name", ["kafka.sasl.oauthbearer.assertion.private.key.passphrase", "kafka.sasl.new.in.kafka.5"]
)
def test_security_that_is_not_supported_is_one_line_without_the_secret(name) -> None:
    text = refused({name: "hunter2"}, Use.READ)
    assert f"option {name}: remove it: {NOT_YET}" in text
    assert "hunter2" not in text


def test_security_without_its_protocol_has_no_effect_and_says_so(told) -> None:
    given = {"kafka.sasl.mechanism": "PLAIN", "kafka.ssl.truststore.location": "/ca"}
    parse_options(given | {"kafka.security.protocol": "ssl"}, Use.READ)
    assert told() == [
        "option kafka.sasl.mechanism has no effect: kafka.security.protocol=SSL has no SASL"
    ]


def test_an_embedded_broker_has_no_security() -> None:
    with pytest.raises(OptionError, match=r"kafka\.security\.protocol='SSL'.*in PLAINTEXT"):
        check_cluster(parse_options({"path": "p", "kafka.security.protocol": "SSL"}, Use.READ))


def test_a_config_for_the_other_side_has_no_effect_and_says_so(told) -> None:
    parse_options({"kafka.acks": "1"}, Use.READ_STREAM)
    assert told() == ["option kafka.acks has no effect: it is only for writeStream and write"]


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_options_that_mean_nothing_here_are_taken_with_one_line(name, told) -> None:
    use, why = NO_EFFECT[name]
    parse_options(CaseInsensitiveDict({name: "3"}), use)
    assert told() == [f"option {name} has no effect: {why}"]


def test_an_option_without_effect_is_refused_where_sparks_connector_has_it_not() -> None:
    assert "only for readStream and read;" in refused({"groupIdPrefix": "x"}, Use.WRITE_STREAM)
    assert "only for readStream;" in refused({"maxTriggerDelay": "1s"}, Use.WRITE_STREAM)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [("15m", 900_000), ("2min", 120_000), (" 30S ", 30_000), ("250", 250), ("1500us", 1)],
)
def test_a_delay_is_a_time_as_spark_has_it(text: str, delay_ms: int) -> None:
    assert parse_options({"maxTriggerDelay": text}, Use.READ_STREAM)["maxTriggerDelay"] == delay_ms


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(OptionError, match="at most maxOffsetsPerTrigger=5"):
        read_source_settings(
            {**READ, "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, streaming=True
        )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.fetch.min.byte", "kafka.fetch.min.bytes"),
        ("kafka.subscribe", "subscribe"),
        ("subscibe", "subscribe"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("startingoffset", "startingOffsets"),
        ("linger.ms", "kafka.linger.ms"),
    ],
)
def test_a_hint_names_the_option_that_was_meant(given: str, meant: str) -> None:
    assert refused({given: "x"}, Use.READ).endswith(f"not known, did you mean {meant}?")


@pytest.mark.parametrize("name", ["kafka.no.such.config", "kafka.quux", "bogus"])
def test_no_hint_is_better_than_a_wrong_one(name: str) -> None:
    assert refused({name: "x"}, Use.READ).endswith("this option is not known")


def test_an_error_has_the_spelling_of_the_table_also_for_an_alias() -> None:
    assert "option group.id=' '" in refused({"group.id": " "}, Use.READ)
    assert "option startingOffsets='x'" in refused({"startingoffsets": "x"}, Use.READ)


@pytest.mark.parametrize("text", ["0", "-2", "-100", "1s", "0.5"])
def test_a_time_to_keep_partitions_is_positive_or_minus_1_as_spark_has_it(text: str) -> None:
    name = "partition.metadata.cache.ttl.ms"
    assert "an integer of at least 1, or -1" in refused({name: text}, Use.READ_STREAM)
    assert parse_options({name: "-1"}, Use.READ_STREAM)[name] == -1
    assert parse_options({name: "1"}, Use.READ_STREAM)[name] == 1


# Of a comparison of Java's and Python's on 250,000 patterns made of the parts of their grammars,
# and 164 names: beside these, no pattern that both take matches other names.
@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("orders-[a-z&&[^x]]7", "write (?!x)[a-z]"),
        ("orders-[a-c[d-f]]7", "[a-c[d-f]"),
        (r"[\w&&[^_]]", r"[\w&&[^_]"),
        ("(payments|orders-[a-f[0-9]]+)", "[a-f[0-9]"),
        ("[^a&&b]", "[^a&&b]"),
        ("[[:alpha:]]+", "[[:alpha:]"),
        (r"[\\[a]", r"[\\[a]"),
        ("[]&&a]", "[]&&a]"),
        (r"\0101", r"\0"),
        (r"[\0101]", r"[\0101"),
        (r"a\101", r"\101"),
        (r"a\b{g}", r"\b{"),
        ("(?i)\N{KELVIN SIGN}", "\N{KELVIN SIGN}"),
        ("(?ix)[^ ]a", "(?ix"),
        ("(?a)(?u)a", "incompatible"),
        ("a{99999999999}", "too large"),
    ],
)
def test_a_pattern_that_java_reads_differently_is_refused(pattern: str, named: str) -> None:
    with pytest.raises(OptionError, match="a regular expression of Python's re") as caught:
        parse_options({"path": "p", "subscribePattern": pattern}, Use.READ_BATCH)
    assert named in caught.value.text


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a\[b]", "[a&b]", "a&&b", r"\[a[b]\]", r"[\]\[]", "t.*", r"[A\s]", r"(a)\1", "[]^a]?",
        r"\\0",
    ],
)  # fmt: skip
def test_a_pattern_that_both_read_alike_is_taken(pattern: str) -> None:
    given = {"path": "p", "subscribePattern": pattern}
    assert parse_options(given, Use.READ_BATCH)["subscribePattern"] == pattern


@pytest.mark.parametrize("pattern", ["[a", "(", r"\Qa\E", r"\p{Alnum}", r"(?<x>a)", "*", " "])
def test_a_pattern_that_is_none_in_python_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match=r"a regular expression|a non-empty string"):
        parse_options({"path": "p", "subscribePattern": pattern}, Use.READ_BATCH)


SPARK_ADDS = {
    "DataStreamWriter.queryName": ("queryName", Use.WRITE_STREAM),
    "DataStreamWriter.start": ("path", Use.WRITE_STREAM),
    "DataStreamWriter.option": ("checkpointLocation", Use.WRITE_STREAM),
    "DataStreamReader.load": ("path", Use.READ_STREAM),
    "DataFrameReader.load": ("path", Use.READ_BATCH),
    "DataFrameWriter.save": ("path", Use.WRITE_BATCH),
}
"""Options that Spark 4.2 and 4.3 add, by the method; Spark Connect and pipelines add the same."""


@pytest.mark.parametrize(("name", "use"), SPARK_ADDS.values(), ids=SPARK_ADDS)
def test_what_spark_adds_to_the_options_is_understood(name: str, use: Use) -> None:
    for value in ("orders", "ü/'\"$#:\\"):
        assert parse_options(CaseInsensitiveDict({name: value}), use)[name] == value


def test_the_name_of_a_query_may_be_blank_as_spark_has_it() -> None:
    assert parse_options({"queryName": " "}, Use.WRITE_STREAM)["queryName"] == " "


def test_create_table_without_columns_is_told_what_works() -> None:
    """Spark's V2SessionCatalog asks for the schema with the table's properties."""
    table = {"provider": "txnlog", "owner": "me", "subscribe": "in", "option.subscribe": "in"}
    with pytest.raises(OptionError) as caught:
        TxnLogDataSource(CaseInsensitiveDict({**SERVERS, **table})).schema()
    text = str(caught.value)
    assert "CREATE TABLE" in text
    assert "CREATE TEMPORARY VIEW" in text
    assert "WITH" in text
