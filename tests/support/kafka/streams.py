"""Kafka Streams from its published jar, and the application of `support.clients.streams`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from support.brokers.apache_kafka import REPOSITORY, VERSION, fetched
from support.kafka.java_tools import java_command

APPLICATION = Path(__file__).parents[1] / "clients" / "streams" / "Words.java"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>txnlog.tests</groupId>
  <artifactId>kafka-streams</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-streams</artifactId>
      <version>%s</version>
      <exclusions>
        <exclusion>
          <groupId>*</groupId>
          <artifactId>*</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""
"""POM of one jar. Kafka's jars have the rest but RocksDB, and the stores are in memory."""


def streams_command() -> list[str]:
    """Return the command of the application but for its arguments. Unavailable when a jar or the
    compiler is not had."""
    pom = _POM % VERSION
    digest = hashlib.sha256(pom.encode()).hexdigest()[:8]
    folder = REPOSITORY / ".cache" / "kafka-streams" / f"{VERSION}-{digest}"
    *java, classes = java_command()
    jar = fetched("Kafka Streams", pom, folder)
    return [*java, f"{classes}:{jar}/*", str(APPLICATION)]
