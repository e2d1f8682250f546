"""A consume-transform-produce loop of aiokafka in a process of its own, so that it can be killed.

    python aiokafka_worker.py BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID HANG_AT

Each round reads some records, produces their upper case, hands the offsets to the transaction and
commits it. Round HANG_AT (from 0) flushes and then waits inside the transaction for ever; before
that it prints `open`.
"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def work(consumer, producer, group: str, target: str, hang_at: int) -> None:
    """Rounds without end."""
    round_number = 0
    while True:
        batches = await consumer.getmany(timeout_ms=100, max_records=5)
        if not batches:
            continue
        async with producer.transaction():
            offsets = {}
            for place, records in batches.items():
                offsets[place] = records[-1].offset + 1
                for record in records:
                    await producer.send(target, record.value.upper(), key=record.key)
            await producer.send_offsets_to_transaction(offsets, group)
            await producer.flush()
            if round_number == hang_at:
                print("open", flush=True)
                await asyncio.Event().wait()
        round_number += 1


async def main() -> None:
    """Connect as the command line says, and work."""
    bootstrap, group, source, target, transactional_id, hang_at = sys.argv[1:]
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=2000,
        heartbeat_interval_ms=200,
        # Who led a partition and does so no more is asked for its offsets until this is over.
        metadata_max_age_ms=1000,
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    await consumer.start()
    await producer.start()
    await work(consumer, producer, group, target, int(hang_at))


if __name__ == "__main__":
    asyncio.run(main())
