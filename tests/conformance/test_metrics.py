"""What a commit counts as: Apache Kafka's meters by JMX, and ours of the same names by HTTP."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import TopicPartition
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.probe import free_ports, wait_until
from support.clients.librdkafka import consumer, create_topic, transact, transactional
from support.harness.availability import available
from support.kafka.java_tools import JavaHost, java_command

Counted = Callable[[str, str], float]
"""By a meter of BrokerTopicMetrics, such as MessagesIn, and a topic."""
JMX = "org.apache.kafka.tools.JmxTool"


@contextmanager
def apache_kafka(folder: Path, java: JavaHost) -> Iterator[tuple[str, Counted]]:
    (port,) = free_ports(1)
    config = folder / "jmx.properties"
    lines = (f"port={port}", "host=127.0.0.1", "authenticate=false", "ssl=false")
    config.write_text("".join(f"com.sun.management.jmxremote.{line}\n" for line in lines))
    option = f"-Dcom.sun.management.config.file={config}"
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"

    def counted(meter: str, topic: str) -> float:
        bean = f"kafka.server:type=BrokerTopicMetrics,name={meter}PerSec,topic={topic}"
        asked = ("--jmx-url", url, "--object-name", bean, "--attributes", "Count", "--one-time")
        (line,) = (
            line
            for line in java.ok(JMX, *asked, "--report-format", "properties").lines
            if line.startswith(bean)
        )
        return float(line.rpartition("=")[2])

    with ApacheKafka(folder / "kafka", java_option=option) as broker:
        yield broker.bootstrap_servers, counted


@contextmanager
def broker_sim(folder: Path) -> Iterator[tuple[str, Counted]]:
    command = [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(folder)]
    with subprocess.Popen(
        [*command, "--port", "0", "--metrics-port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().strip().removeprefix("READY bootstrap.servers=")
        url = process.stdout.readline().strip().removeprefix("METRICS ")

        def counted(meter: str, topic: str) -> float:
            with urlopen(url, timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            name = f'kafka_server_brokertopicmetrics_{meter.lower()}_total{{topic="{topic}"}} '
            (line,) = (line for line in lines if line.startswith(name))
            return float(line.removeprefix(name))

        try:
            yield bootstrap, counted
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.fixture
def counting(broker_name: str, tmp_path: Path, request) -> Iterator[tuple[str, Counted]]:
    if broker_name == "broker_sim":
        with broker_sim(tmp_path) as made:
            yield made
    else:
        available(java_command)
        with apache_kafka(tmp_path, request.getfixturevalue("java")) as made:
            yield made


def test_messages_in_counts_the_control_record_of_a_marker_and_the_coordinators_records(
    counting: tuple[str, Counted],
) -> None:
    """Apache Kafka's ReplicaManager.appendToLocalLog marks the meters for whatever a leader
    appends, by offsets (LogAppendInfo.numMessages), be it from a producer or a coordinator."""
    bootstrap, counted = counting
    topic = create_topic(bootstrap, "metered")
    writer, reader = transactional(bootstrap, "metered"), consumer(bootstrap, "metered")
    for commits in (True, False):
        transact(writer, topic, "one", "two", commits=commits)
    place = TopicPartition(topic, 0)
    wait_until(lambda: reader.get_watermark_offsets(place) == (0, 6), "the second marker")
    reader.close()
    assert counted("MessagesIn", topic) == 6
    states = ("Empty", *("Ongoing", "PrepareCommit", "CompleteCommit") * 2)
    wait_until(lambda: counted("MessagesIn", "__transaction_state") >= len(states), "all states")
