"""A job on a secured listener of Apache Kafka, and where its password does not turn up."""

from __future__ import annotations

import pytest
from support.brokers.tls_kafka import PASSWORD, USER, tls_kafka
from support.harness.availability import check_available
from support.spark.spark_copy import KILLED, CopyQuery

SCRAM = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="{USER}" password="{PASSWORD}";'
)


@pytest.fixture
def kafka(tmp_path_factory):
    check_available("apache_kafka")
    with tls_kafka(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.mark.kafka
@pytest.mark.chaos
def test_a_job_under_spark_submit_is_exactly_once_after_a_kill_and_says_no_password(
    kafka, tmp_path, unique, monkeypatch
):
    monkeypatch.setenv("KAFKA_JAAS", SCRAM)
    query = CopyQuery(tmp_path / "query", kafka.bootstrap_servers, unique("job"))
    options = {
        "kafka.bootstrap.servers": kafka.security.address("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "env:KAFKA_JAAS",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(kafka.security.ca_file),
    }
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
