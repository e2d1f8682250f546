"""Spark's own `from_avro` and `to_avro` in a process of their own, to compare ours with.

The process has the avro jar on its class path from the start, which a session of the tests cannot
be given later. Run with the jar as argument it answers requests: each line of stdin, and of stdout
behind ANSWER, is a pickle in base64. What Spark refuses is the answer Refused.
"""

from __future__ import annotations

import base64
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.spark.json_peer import ANSWER, Peer
from support.spark.spark_kafka_jars import find_jar

ARTIFACT = "org.apache.spark:spark-avro_2.13"
VERSIONS = ("4.3.0", "4.2.0", "4.1.1")
"""Versions, the preferred one first. Since Spark 4.0 the converters are in Spark itself; the jar
has the functions."""


def spark_avro_jar() -> Path:
    """Spark's avro jar, fetched once. Unavailable with Maven's reason."""
    return find_jar(ARTIFACT, VERSIONS)


@dataclass(frozen=True)
class Refused:
    text: str


class SparkAvro(Peer):
    """Process of the peer. Its methods are those of Answers."""

    def __init__(self, jar: Path) -> None:
        super().__init__(__file__, str(jar))

    def ask(self, method: str, *arguments: Any) -> Any:
        return _value(self.answer_to(_line((method, arguments))))


def _line(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode() + "\n"


def _value(line: str) -> Any:
    return pickle.loads(base64.b64decode(line))


class Answers:
    """Answers of the process, with its Spark session."""

    def __init__(self, jar: str) -> None:
        from support.spark.connector import start_session

        self.spark = start_session("local[1]", **{"spark.jars": jar})

    def decode(self, values: list[bytes | None], schema: str, options: dict[str, str]) -> Any:
        """The result's type in JSON, and its values."""
        from pyspark.sql.avro.functions import from_avro

        frame = self.spark.createDataFrame([(value,) for value in values], "value binary")
        made = frame.select(from_avro("value", schema, options).alias("made"))
        return made.schema["made"].dataType.json(), [row.made for row in made.collect()]

    def encode(self, values: list[Any], type_: Any, schema: str) -> Any:
        """The Avro values of a nullable column of this type."""
        from pyspark.sql.avro.functions import to_avro
        from pyspark.sql.types import StructType

        frame = self.spark.createDataFrame(
            [(value,) for value in values], StructType().add("value", type_)
        )
        made = frame.select(to_avro("value", schema).alias("made"))
        return [None if row.made is None else bytes(row.made) for row in made.collect()]

    def sql_type(self, schema: str, stable: bool, prefix: str, depth: int) -> Any:
        """The Spark type of an Avro schema, in JSON."""
        jvm = self.spark._jvm
        parsed = jvm.org.apache.avro.Schema.Parser().parse(schema)
        converters = jvm.org.apache.spark.sql.avro.SchemaConverters
        return converters.toSqlType(parsed, stable, prefix, depth).dataType().json()

    def avro_type(self, type_: Any, nullable: bool) -> Any:
        """The Avro schema of a Spark type, in JSON."""
        java = self.spark._jsparkSession.parseDataType(type_.json())
        converters = self.spark._jvm.org.apache.spark.sql.avro.SchemaConverters
        return converters.toAvroType(java, nullable, "topLevelRecord", "").toString()


def main() -> None:
    """Answer what stdin asks, until it ends."""
    from support.spark.spark_avro_peer import Refused as ImportedRefused

    answers = Answers(sys.argv[1])
    for line in sys.stdin:
        method, arguments = _value(line)
        try:
            answer = getattr(answers, method)(*arguments)
        except Exception as error:
            answer = ImportedRefused(str(error)[:2000])
        sys.stdout.write(ANSWER + _line(answer))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
