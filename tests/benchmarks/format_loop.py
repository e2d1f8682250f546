"""The query of `bench_formats` as a loop of confluent-kafka; prints its CPU a row in us.

Run by it: format, descriptor set, servers, input topic, output topic, number of rows.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_formats import BILL_DDL, MESSAGES, ORDER_DDL, avro_schema
from confluent_kafka import Consumer, Producer

Decode = Callable[[bytes], dict[str, Any]]
Encode = Callable[[dict[str, Any]], bytes]
AT_ONCE = 10_000


def codec_of(name: str, descriptors: str) -> tuple[Decode, Encode]:
    """Decoder of orders and encoder of bills."""
    if name == "json":
        import orjson

        return orjson.loads, orjson.dumps
    if name == "avro":
        import fastavro

        order = fastavro.parse_schema(json.loads(avro_schema(ORDER_DDL, "Order")))
        bill = fastavro.parse_schema(json.loads(avro_schema(BILL_DDL, "Bill")))

        def encode(value: dict[str, Any]) -> bytes:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, bill, value)
            return out.getvalue()

        return lambda data: fastavro.schemaless_reader(io.BytesIO(data), order, None), encode
    return _protobuf(descriptors)


def _protobuf(descriptors: str) -> tuple[Decode, Encode]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(Path(descriptors).read_bytes()).file:
        pool.Add(file)
    order, bill = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGES[side]))
        for side in ("in", "out")
    )
    fields = [column.split()[0] for column in ORDER_DDL.split(", ")]

    def decode(data: bytes) -> dict[str, Any]:
        message = order.FromString(data)
        return {name: getattr(message, name) for name in fields}

    return decode, lambda value: bill(**value).SerializeToString()


def main() -> None:
    """Read, filter, compute and write so many rows."""
    name, descriptors, servers, source, target, rows = sys.argv[1:]
    decode, encode = codec_of(name, descriptors)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"loop-{target}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 500_000,
            "linger.ms": 50,
        }
    )
    consumer.subscribe([source])
    # The time counts from the first records on: joining the group is no part of the loop.
    left, started = int(rows), 0.0
    while left > 0:
        messages = consumer.consume(AT_ONCE, 1.0)
        started = started or (time.process_time() if messages else 0.0)
        left -= len(messages)
        for message in messages:
            order = decode(message.value())
            if order["quantity"] < 10:
                continue
            bill = {
                "order_id": order["order_id"],
                "customer": order["customer"],
                "amount": order["price"] * order["quantity"],
                "currency": order["currency"],
                "paid": order["paid"],
            }
            producer.produce(target, encode(bill), message.key())
        producer.poll(0)
    producer.flush()
    print(1e6 * (time.process_time() - started) / int(rows))
    consumer.close()


if __name__ == "__main__":
    main()
