"""Queries in Spark on secured listeners of Apache Kafka, and where their secrets do not turn up."""

from __future__ import annotations

import contextlib
import io
import logging

import pytest
from support.brokers.tls_kafka import PASSWORD, USER, tls_kafka
from support.harness.availability import check_available
from support.spark.connector import Pipe, error_of
from support.spark.spark_copy import KILLED, CopyQuery

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

EVENTS_MS_MAX = 60_000

SCRAM = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="{USER}" password="{PASSWORD}";'
)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    check_available("apache_kafka")
    with tls_kafka(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Where Spark writes its event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(spark_sessions, events):
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        # Since Spark 4 they are compressed, and nothing would be found in them.
        "spark.eventLog.compress": "false",
        "spark.sql.redaction.options.regex": "(?i)url|keystore[.]key",
    }
    return spark_sessions("local[2,3]", **settings)


@pytest.fixture
def pipe(spark, kafka, tmp_path, unique):
    return Pipe(spark, kafka, tmp_path, unique)


def by_scram(kafka):
    return {
        "kafka.bootstrap.servers": kafka.security.address("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": SCRAM,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(kafka.security.ca_file),
    }


def written(pipe, events):
    """The files of a query and Spark's event log, which is written a moment later: the event of a
    last query's end is written behind all that were before, and everything is flushed with it."""
    pipe.spark.range(1).count()
    pipe.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_MS_MAX)
    return [p for folder in (pipe.checkpoint, events) for p in folder.rglob("*") if p.is_file()]


def is_in_events(query, files):
    """Whether the event log has the query, and in clear: else nothing would be found in it."""
    return any(
        str(query.runId).encode() in p.read_bytes() for p in files if p.name.startswith("events_")
    )


def explained(rows):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        rows.explain(True)
    return out.getvalue()


def test_a_query_over_tls_and_scram_and_its_password_nowhere_to_be_found(
    pipe, kafka, events, caplog
):
    options = by_scram(kafka)
    pipe.feed(range(100))
    with caplog.at_level(logging.DEBUG, "txnlog_spark"), caplog.at_level(logging.DEBUG, "kafka"):
        query = pipe.copy(options, options)
        pipe.feed(range(100, 130))
        pipe.copy(options, options)
    assert pipe.output_values() == sorted(map(str, range(130)))
    batch = pipe.read(**options)
    assert batch.count() == 130
    pipe.save(pipe.rows(["extra"]), **options)
    assert "extra" in pipe.output_values()

    seen = [explained(pipe.stream(**options)), explained(batch)]
    seen += [str(progress) for progress in query.recentProgress]
    seen += [record.getMessage() for record in caplog.records]
    files = written(pipe, events)
    assert is_in_events(query, files)
    assert [p for p in files if PASSWORD.encode() in p.read_bytes()] == []
    assert [text for text in seen if PASSWORD in text] == []


def test_a_client_key_as_pem_text_where_spark_is_told_not_to_show_it(pipe, kafka, events):
    """Spark shows options in plans, and hides what it takes for a secret: a key by name is none."""
    client = kafka.security.ca.sign()
    options = {
        "kafka.bootstrap.servers": kafka.security.address("MUTUAL"),
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": kafka.security.ca.pem,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": client.key_pem,
        "kafka.ssl.keystore.certificate.chain": client.chain_pem,
    }
    pipe.feed(range(20))
    query = pipe.copy(options, options)
    assert pipe.output_values() == sorted(map(str, range(20)))
    line = client.key_pem.splitlines()[1]
    assert line not in explained(pipe.stream(**options))
    files = written(pipe, events)
    assert is_in_events(query, files)
    assert [p for p in files if line.encode() in p.read_bytes()] == []


def test_a_wrong_password_is_one_line_of_the_query(pipe, kafka):
    options = by_scram(kafka)
    wrong = options | {"kafka.sasl.jaas.config": SCRAM.replace(PASSWORD, "hunter2")}
    pipe.feed(range(5))
    text = error_of(lambda: pipe.copy(wrong, options))
    assert f"the broker refused the login of user '{USER}' by SCRAM-SHA-512" in text
    assert "look at the user's name and password in kafka.sasl.jaas.config" in text
    assert f"kafka.bootstrap.servers={kafka.security.address('SASL_SSL')}" in text
    assert "hunter2" not in text


def test_a_job_under_spark_submit_is_exactly_once_after_a_kill_and_says_no_password(
    kafka, tmp_path, unique, monkeypatch
):
    monkeypatch.setenv("KAFKA_JAAS", SCRAM)
    query = CopyQuery(tmp_path / "query", kafka.bootstrap_servers, unique("job"))
    options = {name: str(value) for name, value in by_scram(kafka).items()}
    options["kafka.sasl.jaas.config"] = "env:KAFKA_JAAS"
    query.read_options |= options
    query.write_options |= options
    events = tmp_path / "query" / "events"
    events.mkdir()
    query.spark_config = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    query.feed(60)
    first = query.run("end_txn:after:kill-driver@1")
    assert first.code == KILLED
    last = query.run()
    assert last.code == 0, last.stderr[-3000:]
    query.check_exactly_once()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    shown = b"SparkListenerApplicationStart"
    assert any(shown in path.read_bytes() for path in files if events in path.parents)
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
