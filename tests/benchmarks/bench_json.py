"""Rows a second of one core that JSON values are decoded and encoded at.

Run: python tests/benchmarks/bench_json.py [--rows N] [--batch N]. Nothing is asserted: figures
depend on the machine. Each is the fastest of some rounds over orders of about 205 bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import bench_setup  # noqa: F401  first: it decides whose tree is measured
import pyarrow as pa
from pyspark.sql import types as spark

from txnlog_spark.json.decode import json_decoder
from txnlog_spark.json.encode import json_encoder

ROUNDS = 5
ZONE = "Europe/Berlin"


def order(rng: random.Random, number: int) -> dict[str, Any]:
    month, day, hour = rng.randint(1, 9), rng.randint(10, 28), rng.randint(0, 9)
    return {
        "order_id": 10**12 + number,
        "customer": f"customer-{rng.randint(0, 999_999):06}",
        "country": rng.choice(["DE", "US", "FR"]),
        "status": rng.choice(["shipped", "pending", "cancelled"]),
        "note": f"a note of no great length {rng.randint(0, 9)}",
        "quantity": rng.randint(1, 100),
        "price": round(rng.random() * 1000, 2),
        "gift": rng.random() < 0.5,
        "created": f"2026-0{month}-{day}T0{hour}:12:33.123Z",
    }


def schema(price: spark.DataType, created: spark.DataType) -> spark.StructType:
    made = spark.StructType().add("order_id", spark.LongType())
    for name in ("customer", "country", "status", "note"):
        made.add(name, spark.StringType())
    made.add("quantity", spark.IntegerType()).add("price", price)
    return made.add("gift", spark.BooleanType()).add("created", created)


def fastest(rows: int, run: Callable[[], Any]) -> str:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return f"{rows / best / 1000:8.0f} k rows/s"


def compare(name: str, type_: spark.DataType, texts: pa.Array, batch: int) -> None:
    parts = [texts.slice(at, batch) for at in range(0, len(texts), batch)]
    decode, encode = json_decoder(type_, ZONE), json_encoder(type_, ZONE)
    columns = [decode(part).values for part in parts]
    print(f"{name:28} decode", fastest(len(texts), lambda: [decode(part) for part in parts]))
    print(f"{name:28} encode", fastest(len(texts), lambda: [encode(each) for each in columns]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=10_000)
    options = parser.parse_args()
    rng = random.Random(1)
    orders = [order(rng, number) for number in range(options.rows)]
    texts = pa.array([json.dumps(each, separators=(",", ":")).encode() for each in orders])
    text, moment = spark.StringType(), spark.TimestampType()
    compare("orders", schema(spark.DoubleType(), text), texts, options.batch)
    compare("with a timestamp", schema(spark.DoubleType(), moment), texts, options.batch)
    compare("with a decimal", schema(spark.DecimalType(10, 2), text), texts, options.batch)
    below = spark.MapType(spark.StringType(), spark.StringType())
    labelled = [b'{"labels":{"a":"x","b":"y"},%s' % each[1:] for each in texts.to_pylist()]
    with_map = schema(spark.DoubleType(), text).add("labels", below)
    compare("with a map", with_map, pa.array(labelled), options.batch)


if __name__ == "__main__":
    main()
