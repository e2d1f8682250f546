"""Figures of a transaction: Apache Kafka's by JMX, broker_sim's of the same names by HTTP."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.request import urlopen

import pytest
from confluent_kafka import TopicPartition
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.probe import free_ports, wait_until
from support.clients.librdkafka import consumer, create_topic, transact, transactional
from support.harness.availability import available
from support.kafka.java_tools import JavaHost, java_command


class Figures(Protocol):
    """Figures of a broker.

    `counted` reads a meter of BrokerTopicMetrics, such as MessagesIn, for a topic. `gauge` reads a
    gauge of Kafka's class Partition, for partition 0 of a topic.
    """

    def counted(self, meter: str, topic: str) -> float: ...

    def gauge(self, name: str, topic: str) -> float: ...


JMX = "org.apache.kafka.tools.JmxTool"


class OfKafka:
    """Figures of Apache Kafka, by JMX."""

    def __init__(self, java: JavaHost, port: int) -> None:
        self._java = java
        self._url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"

    def counted(self, meter: str, topic: str) -> float:
        bean = f"kafka.server:type=BrokerTopicMetrics,name={meter}PerSec,topic={topic}"
        return self._read(bean, "Count")

    def gauge(self, name: str, topic: str) -> float:
        return self._read(f"kafka.cluster:type=Partition,name={name},topic={topic},partition=0")

    def _read(self, bean: str, attribute: str = "Value") -> float:
        asked = ("--jmx-url", self._url, "--object-name", bean, "--attributes", attribute)
        said = self._java.ok(JMX, *asked, "--one-time", "--report-format", "properties").lines
        (line,) = (line for line in said if line.startswith(bean))
        return float(line.rpartition("=")[2])


class OfOurs:
    """Figures of broker_sim, by HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def counted(self, meter: str, topic: str) -> float:
        return self._read(f'kafka_server_brokertopicmetrics_{meter}_total{{topic="{topic}"}} ')

    def gauge(self, name: str, topic: str) -> float:
        return self._read(f'kafka_cluster_partition_{name}{{partition="0",topic="{topic}"}} ')

    def _read(self, sample: str) -> float:
        name, brace, labels = sample.partition("{")
        with urlopen(self._url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        wanted = f"{name.lower()}{brace}{labels}"
        (line,) = (line for line in lines if line.startswith(wanted))
        return float(line.removeprefix(wanted))


@contextmanager
def apache_kafka(folder: Path, java: JavaHost) -> Iterator[tuple[str, Figures]]:
    (port,) = free_ports(1)
    config = folder / "jmx.properties"
    lines = (f"port={port}", "host=127.0.0.1", "authenticate=false", "ssl=false")
    config.write_text("".join(f"com.sun.management.jmxremote.{line}\n" for line in lines))
    option = f"-Dcom.sun.management.config.file={config}"
    with ApacheKafka(folder / "kafka", java_option=option) as broker:
        yield broker.bootstrap_servers, OfKafka(java, port)


@contextmanager
def broker_sim(folder: Path) -> Iterator[tuple[str, Figures]]:
    command = [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(folder)]
    with subprocess.Popen(
        [*command, "--port", "0", "--metrics-port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().strip().removeprefix("READY bootstrap.servers=")
        url = process.stdout.readline().strip().removeprefix("METRICS ")

        try:
            yield bootstrap, OfOurs(url)
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.fixture
def counting(broker_name: str, tmp_path: Path, request) -> Iterator[tuple[str, Figures]]:
    if broker_name == "broker_sim":
        with broker_sim(tmp_path) as made:
            yield made
    else:
        available(java_command)
        with apache_kafka(tmp_path, request.getfixturevalue("java")) as made:
            yield made


def test_messages_in_counts_the_control_record_of_a_marker_and_the_coordinators_records(
    counting: tuple[str, Figures],
) -> None:
    """Apache Kafka's ReplicaManager.appendToLocalLog marks the meters for whatever a leader
    appends, by offsets (LogAppendInfo.numMessages), be it from a producer or a coordinator."""
    bootstrap, figures = counting
    topic = create_topic(bootstrap, "metered")
    writer, reader = transactional(bootstrap, "metered"), consumer(bootstrap, "metered")
    for commits in (True, False):
        transact(writer, topic, "one", "two", commits=commits)
    place = TopicPartition(topic, 0)
    wait_until(lambda: reader.get_watermark_offsets(place) == (0, 6), "the second marker")
    reader.close()
    assert figures.counted("MessagesIn", topic) == 6
    states = ("Empty", *("Ongoing", "PrepareCommit", "CompleteCommit") * 2)
    of_states = ("MessagesIn", "__transaction_state")
    wait_until(lambda: figures.counted(*of_states) >= len(states), "all states")


def test_the_lag_of_the_last_stable_offset_is_what_an_open_transaction_holds_back(
    counting: tuple[str, Figures],
) -> None:
    """Apache Kafka's UnifiedLog.lastStableOffsetLag: high watermark less last stable offset."""
    bootstrap, figures = counting
    topic = create_topic(bootstrap, "held")
    writer, other = transactional(bootstrap, "open"), transactional(bootstrap, "ended")
    writer.begin_transaction()
    writer.produce(topic, b"first")
    writer.flush(30)
    other.begin_transaction()
    other.produce(topic, b"behind it")
    other.commit_transaction(30)
    wait_until(lambda: figures.gauge("LastStableOffsetLag", topic) == 3, "one, one and a marker")
    writer.commit_transaction(30)
    wait_until(lambda: figures.gauge("LastStableOffsetLag", topic) == 0, "that nothing is open")
