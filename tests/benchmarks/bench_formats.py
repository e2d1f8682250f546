"""Typed streams beside Spark's `kafka` with its own functions: read, filter, compute, write.

The same query of orders, in JSON, Avro and Protobuf: ours with `value.format` on both sides,
exactly-once, and Spark's `kafka` pair with from_json and to_json, or the functions of its jars,
at-least-once. Beside them a loop of confluent-kafka in one process of Python with orjson, fastavro
or the protobuf runtime, which commits nothing either: what it takes of CPU is what Python takes.

CPU is that of the driver with its JVM and all Python processes; the broker is apart.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_copy import QUERY_SECONDS_MAX, whole_batch_times
from bench_setup import ROOT, create_topic
from bench_tables import SINKS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("json", "avro", "protobuf")
PARTITIONS = 6
ORDER_SQL = """named_struct(
    'order_id', id, 'customer', format_string('customer-%07d', id % 1000003),
    'item', element_at(array('anvil', 'rope', 'hammer'), cast(id % 3 + 1 as int)),
    'quantity', cast(id % 100 as int), 'price', cast(id % 99991 as double) / 100, 'currency', 'EUR',
    'created_at', '2026-11-26T04:00:00.123Z', 'note', 'nnnnnnnnnnnnnnnnnnnn', 'paid', id % 2 = 0)"""
ORDER_DDL = (
    "order_id BIGINT, customer STRING, item STRING, quantity INT, price DOUBLE, currency STRING, "
    "created_at STRING, note STRING, paid BOOLEAN"
)
BILL_DDL = "order_id BIGINT, customer STRING, amount DOUBLE, currency STRING, paid BOOLEAN"
JAR_VERSIONS = ("4.3.0", "4.2.1", "4.2.0", "4.1.1", "4.0.2")
BILLED_FIELDS = "order_id,customer,quantity,price,currency,paid"
"""Fields that the query needs. Spark prunes the columns of its own functions, not of a Python
source."""
BILL_FIELDS = [column.split()[0] for column in BILL_DDL.split(", ")]
MESSAGES = {"in": "bench.Order", "out": "bench.Bill"}
_AVRO = {"BIGINT": "long", "STRING": "string", "INT": "int", "DOUBLE": "double"}
_AVRO |= {"BOOLEAN": "boolean"}
_PROTOBUF = {"BIGINT": 3, "STRING": 9, "INT": 5, "DOUBLE": 1, "BOOLEAN": 8}
"""Numbers of descriptor.proto's FieldDescriptorProto.Type."""


@dataclass(frozen=True)
class FormatCase:
    """Batches of `rows` of one format; the first `warm_up` do not count."""

    format: str
    rows: int
    batches: int
    warm_up: int = 2

    @property
    def name(self) -> str:
        """Name of the case in topics and the report."""
        return f"{self.format}-{self.rows}"


CASES = tuple(
    FormatCase(name, rows, batches)
    for name in FORMATS
    for rows, batches in ((20_000, 8), (200_000, 5))
)
QUICK_CASES = tuple(FormatCase(name, 20_000, 4) for name in FORMATS)


def avro_schema(ddl: str, name: str) -> str:
    """The Avro schema of these columns, which may be null."""
    fields = [
        {"name": field, "type": ["null", _AVRO[kind]], "default": None}
        for field, kind in (column.split() for column in ddl.split(", "))
    ]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def descriptor_set(path: Path) -> Path:
    """A file with the messages of an order and of a bill, whose fields have presence."""
    from google.protobuf import descriptor_pb2

    made = descriptor_pb2.FileDescriptorSet()
    file = made.file.add(name="bench.proto", package="bench", syntax="proto2")
    for name, ddl in (("Order", ORDER_DDL), ("Bill", BILL_DDL)):
        message = file.message_type.add(name=name)
        for number, column in enumerate(ddl.split(", "), 1):
            field, kind = column.split()
            message.field.add(name=field, number=number, type=_PROTOBUF[kind], label=1)
    path.write_bytes(made.SerializeToString())
    return path


class Job:
    """The query in one format, by either connector."""

    def __init__(self, name: str, folder: Path) -> None:
        self.format = name
        self.descriptors = str(descriptor_set(folder / "bench.desc"))

    def options(self, side: str) -> dict[str, str]:
        """Ours: `in` of the source, `out` of the sink."""
        ddl, record = (ORDER_DDL, "Order") if side == "in" else (BILL_DDL, "Bill")
        schemas = {
            "json": ddl if side == "in" else None,
            "avro": avro_schema(ddl, record),
            "protobuf": self.descriptors,
        }
        given = {"value.format": self.format, "value.schema": schemas[self.format]}
        if self.format == "protobuf":
            given["value.message.name"] = MESSAGES[side]
        return {name: value for name, value in given.items() if value is not None}

    def decoded(self, value: Column) -> Column:
        """Spark's function."""
        from pyspark.sql import functions as f
        from pyspark.sql.avro.functions import from_avro
        from pyspark.sql.protobuf.functions import from_protobuf

        if self.format == "json":
            return f.from_json(value.cast("string"), ORDER_DDL)
        if self.format == "avro":
            return from_avro(value, avro_schema(ORDER_DDL, "Order"), {"mode": "FAILFAST"})
        return from_protobuf(value, MESSAGES["in"], self.descriptors)

    def encoded(self, value: Column) -> Column:
        """Spark's function."""
        from pyspark.sql import functions as f
        from pyspark.sql.avro.functions import to_avro
        from pyspark.sql.protobuf.functions import to_protobuf

        if self.format == "json":
            return f.to_json(value)
        if self.format == "avro":
            return to_avro(value, avro_schema(BILL_DDL, "Bill"))
        return to_protobuf(value, MESSAGES["out"], self.descriptors)

    def run(
        self, spark: SparkSession, connector: str, servers: str, source: str, case: FormatCase
    ) -> dict[str, Any]:
        """Run the query over the input: times of whole batches in ms, and CPU a row in us."""
        from pyspark.sql import functions as f

        name = f"{connector}-{source}"
        target = create_topic(servers, f"out-{name}", PARTITIONS)
        both = {"kafka.bootstrap.servers": servers}
        read = both | {
            "subscribe": source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(case.rows),
            "kafka.isolation.level": "read_committed",
        }
        write = both | {"topic": target}
        # The connector decodes and encodes by options, Spark's `kafka` by functions on `value`.
        ours = connector == "txnlog"
        if ours:
            read = read | self.options("in") | {"value.fields": BILLED_FIELDS}
            write = write | self.options("out") | {"value.columns": "*"}
        rows = spark.readStream.format(connector).options(**read).load()
        if not ours:
            rows = rows.withColumn("value", self.decoded(f.col("value")))
        bills = billed(rows)
        if not ours:
            bills = bills.select("key", self.encoded(f.struct(*BILL_FIELDS)).alias("value"))
        with tempfile.TemporaryDirectory() as checkpoint:
            before = cpu_seconds()
            query = (
                bills.writeStream.format(connector)
                .options(**write, checkpointLocation=checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            if not query.awaitTermination(QUERY_SECONDS_MAX):
                query.stop()
                raise RuntimeError(f"{name} did not end in {QUERY_SECONDS_MAX} s")
            used = cpu_seconds() - before
            batches = [p for p in query.recentProgress if p["numInputRows"]]
        # A query that has read less would look faster.
        done = sum(p["numInputRows"] for p in batches)
        if done != case.rows * case.batches:
            raise RuntimeError(f"{name} read {done} rows of {case.rows * case.batches}")
        return {"ms": whole_batch_times(batches, case.rows), "cpu_us": 1e6 * used / done}


def billed(rows: DataFrame) -> DataFrame:
    """Compute the query: keep nine orders of ten, and multiply price by quantity."""
    return rows.where("value.quantity >= 10").selectExpr(
        "key",
        "value.order_id",
        "value.customer",
        "value.price * value.quantity AS amount",
        "value.currency",
        "value.paid",
    )


def cpu_seconds() -> float:
    """Return the user and system time of this process and of all below it, ended ones included."""
    import psutil

    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def fill_input(spark: SparkSession, servers: str, job: Job, case: FormatCase) -> str:
    """A topic with the rows of all batches, the same number in each partition."""
    topic = create_topic(servers, f"in-{case.name}-{case.batches}", PARTITIONS)
    rows = spark.range(0, case.rows * case.batches, 1, 2).selectExpr(
        "cast(id as string) AS key",
        f"{ORDER_SQL} AS value",
        f"cast(id % {PARTITIONS} as int) AS partition",
    )
    writer = rows.write.format("txnlog").options(**job.options("in"))
    writer.options(**{"kafka.bootstrap.servers": servers, "topic": topic}).mode("append").save()
    return topic


def loop_cpu_us(job: Job, servers: str, source: str, count: int) -> float:
    """CPU a row of the loop in a process of its own, after it has connected."""
    target = create_topic(servers, f"out-loop-{source}", PARTITIONS)
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "format_loop.py")]
    words = [job.format, job.descriptors, servers, source, target, str(count)]
    done = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
    return float(done.stdout)


def format_jars() -> list[Path]:
    """The jars of Spark's functions, as far as they are to be had; what is missing is printed."""
    from support.harness.maven import Unavailable
    from support.spark.spark_kafka_jars import find_jar

    found = []
    for artifact in ("spark-avro_2.13", "spark-protobuf_2.13"):
        try:
            found.append(find_jar(f"org.apache.spark:{artifact}", JAR_VERSIONS))
        except Unavailable as error:
            print(f"Spark's functions of this jar are not measured: {error}", flush=True)
    return found


def measure_formats(
    spark: SparkSession,
    broker: str,
    servers: str,
    cases: tuple[FormatCase, ...],
    jars: list[Path],
) -> list[dict]:
    """Measure both connectors in turns, case after case, and the loop."""
    has_jar = {name: any(name in jar.name for jar in jars) for name in ("avro", "protobuf")}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases):
            job = Job(case.format, Path(folder))
            source = fill_input(spark, servers, job, case)
            result: dict = asdict(case)
            for connector in SINKS if number % 2 else reversed(SINKS):
                if connector == "kafka" and not has_jar.get(case.format, True):
                    continue
                started = time.monotonic()
                result[connector] = job.run(spark, connector, servers, source, case)
                middle = statistics.median(result[connector]["ms"][case.warm_up :])
                print(
                    f"{broker}: {case.name}: {connector}: {middle:,.0f} ms a batch, "
                    f"{time.monotonic() - started:.0f} s in all",
                    flush=True,
                )
            result["loop_cpu_us"] = loop_cpu_us(job, servers, source, case.rows * case.batches)
            found.append(result)
    return found
