"""`start --metrics-port`: Kafka's metrics of a real process, over HTTP."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.brokers.probe import free_ports
from support.brokers.tls_kafka import PASSWORD, USER, Listeners
from support.clients.librdkafka import create_topic, produce_values, read_topic

from broker_sim.__main__ import EXIT_CANNOT_START, main

TOPIC_METRICS = "kafka_server_brokertopicmetrics"


class Process:
    """A broker with metrics: where its clients connect, and what `/metrics` shows."""

    def __init__(self, data_dir, *listeners: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(data_dir),
             *(listeners or ("--port", "0")), "--metrics-port", "0"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.bootstrap = self._line("READY bootstrap.servers=")
        self.url = self._line("METRICS ")

    def _line(self, prefix: str) -> str:
        line = self.process.stdout.readline()
        assert line.startswith(prefix)
        return line.removeprefix(prefix).strip()

    def scrape(self) -> dict[str, float]:
        """Each sample by its name with labels."""
        with urlopen(self.url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = answer.read().decode().splitlines()
        samples = [line for line in lines if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in samples}


@pytest.fixture
def broker(tmp_path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(20) == 0
    made.process.stdout.close()


def test_the_figures_are_those_of_what_clients_did_and_stay_without_the_topic(
    broker: Process,
) -> None:
    assert broker.url.startswith("http://127.0.0.1:")
    before = broker.scrape()
    assert before[f"{TOPIC_METRICS}_messagesin_total"] == 0
    create_topic(broker.bootstrap, "orders", 2)
    produce_values(broker.bootstrap, "orders", map(str, range(30)), partition=1)
    assert len(read_topic(broker.bootstrap, "orders")) == 30
    after = broker.scrape()
    assert after[f'{TOPIC_METRICS}_messagesin_total{{topic="orders"}}'] == 30
    size = after['kafka_log_log_size{partition="1",topic="orders"}']
    assert after[f'{TOPIC_METRICS}_bytesin_total{{topic="orders"}}'] == size > 0
    assert after[f'{TOPIC_METRICS}_bytesout_total{{topic="orders"}}'] >= size
    assert after['kafka_log_log_logendoffset{partition="1",topic="orders"}'] == 30
    assert after['kafka_log_log_logendoffset{partition="0",topic="orders"}'] == 0
    assert after[f"{TOPIC_METRICS}_totalproducerequests_total"] >= 1
    assert after[f"{TOPIC_METRICS}_failedproducerequests_total"] == 0
    assert after["kafka_controller_kafkacontroller_globaltopiccount"] >= 1
    requests = {re.sub(r'.*request="(\w+)".*', r"\1", n) for n in after if "requestmetrics" in n}
    assert {"ApiVersions", "Metadata", "Produce", "Fetch", "ListOffsets"} <= requests
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["orders"])["orders"].result()
    left = broker.scrape()
    assert [sample for sample in left if 'topic="orders"' in sample] == []
    totals = [f"{TOPIC_METRICS}_{name}_total" for name in ("messagesin", "bytesin", "bytesout")]
    assert {name: left[name] for name in totals} == {name: after[name] for name in totals}


def test_nothing_else_is_served_and_a_silent_client_disturbs_nobody(broker: Process) -> None:
    with pytest.raises(HTTPError, match="404"):
        urlopen(broker.url.replace("/metrics", "/other"), timeout=10)
    with pytest.raises(HTTPError, match="405"):
        urlopen(broker.url, data=b"x", timeout=10)
    host, _, port = broker.url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"GET ")
        assert broker.scrape()
    with socket.create_connection((host, int(port))) as long:
        long.settimeout(10)
        with contextlib.suppress(ConnectionError):
            long.sendall(b"x" * 100_000)
            assert long.recv(100) == b""


def test_a_port_that_cannot_be_had_is_named(tmp_path, capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ["start", "--data-dir", str(tmp_path), "--port", "0", "--metrics-port"]
        assert main([*arguments, port]) == EXIT_CANNOT_START
    assert "choose another with --metrics-port" in capsys.readouterr().err
    assert main([*arguments, "70000"]) == EXIT_CANNOT_START
    assert "--metrics-port 70000 is not between 0 and 65535" in capsys.readouterr().err


def test_metrics_and_the_timeline_of_a_broker_whose_clients_come_by_tls_and_a_login(
    tmp_path, capsys
) -> None:
    """Metrics have a listener of their own, without either; the timeline reads files."""
    # A listener of each kind, of which the clients below use SASL_SSL.
    secured = Listeners(tmp_path)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    (port,) = free_ports(1)
    plain = dict.fromkeys(("listeners", "advertised.listeners"), f"PLAINTEXT://127.0.0.1:{port}")
    plain["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT"
    logins = {"plain": f'{module} user_{USER}="{PASSWORD}";'}
    config = tmp_path / "broker.properties"
    settings = secured.settings(plain, logins)
    settings.pop("listener.name.short.sasl.enabled.mechanisms")
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    made = Process(tmp_path / "data", "--config", str(config))
    try:
        producer = Producer(
            {
                "bootstrap.servers": secured.address("SASL_SSL"),
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
                "ssl.ca.location": str(secured.ca_file),
                "transactional.id": "seen",
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("orders", b"one")
        producer.commit_transaction(30)
        # The scrape needs neither TLS nor a login, and shows no password.
        after = made.scrape()
        taken = after[f'{TOPIC_METRICS}_messagesin_total{{topic="orders"}}']
        assert taken == 2, "the record and the marker: Apache Kafka counts both, by its JMX"
        with urlopen(made.url, timeout=10) as answer:
            text = answer.read().decode()
        assert any('request="SaslAuthenticate"' in name for name in after)
        assert PASSWORD not in text
    finally:
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait(20) == 0
        made.process.stdout.close()
    # The broker has stopped: the timeline reads its files alone.
    (log,) = {path.parents[1] for path in (tmp_path / "data").rglob("orders-0/*.log")}
    picture = tmp_path / "seen.svg"
    asked = ["timeline", str(log), "--transactional-id", "seen", "--output", str(picture)]
    assert main(asked) == 0, capsys.readouterr().err
    assert "Transaction 0 of seen: CompleteCommit" in picture.read_text()
