"""Kafka Streams from its published jar, and the application of `support.clients.streams`."""

from __future__ import annotations

from pathlib import Path

from support.brokers.apache_kafka import VERSION
from support.harness.maven import fetched_jars
from support.kafka.java_tools import java_command

APPLICATION = Path(__file__).parents[1] / "clients" / "streams" / "Words.java"


def streams_command() -> list[str]:
    """Return the command of the application but for its arguments. Unavailable when a jar or the
    compiler is not had."""
    *java, classes = java_command()
    # Kafka's jars have the rest but RocksDB, and the stores are in memory.
    artifacts = {f"org.apache.kafka:kafka-streams:{VERSION}": "*:*"}
    jar = fetched_jars("Kafka Streams", f"kafka-streams/{VERSION}", artifacts)
    return [*java, f"{classes}:{jar}/*", str(APPLICATION)]
