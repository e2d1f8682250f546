"""Spark's own Kafka connector from Maven Central: the peer of the benchmark, and a reader of ours.

Copied artifact by artifact, because resolving the dependency tree would bring all of Spark along.
Where the version that goes with Spark is not to be had, an older one of the same line is taken; the
benchmark says which.
"""

from __future__ import annotations

from pathlib import Path

from support.harness.maven import CACHE, Unavailable, fetched_file

JARS = CACHE / "spark-sql-kafka"

ARTIFACTS = (
    ("org.apache.spark:spark-sql-kafka-0-10_2.13", ("4.3.0", "4.2.0")),
    ("org.apache.spark:spark-token-provider-kafka-0-10_2.13", ("4.3.0", "4.2.0", "4.0.0")),
    ("org.apache.kafka:kafka-clients", ("3.9.2",)),
    ("org.apache.commons:commons-pool2", ("2.13.1",)),
)
"""Group and artifact, versions by preference: what Spark's distribution lacks."""


def spark_kafka_jars() -> list[Path]:
    """The jars to give to Spark, fetched once. Unavailable with Maven's reason."""
    return [find_jar(artifact, versions) for artifact, versions in ARTIFACTS]


def find_jar(artifact: str, versions: tuple[str, ...]) -> Path:
    """The artifact's jar of the first version to be had. Unavailable with Maven's reason."""
    name = artifact.split(":")[1]
    for version in versions:
        jar = JARS / f"{name}-{version}.jar"
        if jar.exists():
            return jar
    reasons = []
    for version in versions:
        try:
            return fetched_file(name, f"{artifact}:{version}", JARS)
        except Unavailable as reason:
            reasons.append(reason)
    raise reasons[-1]
