"""Answers of one round point to files that a later input of the round may replace."""

from __future__ import annotations

import asyncio

from support.core.broker_build import fetch_request, produce_request, request, struct
from support.core.failing_storage import HostOnFiles
from support.models.compacted_log import keyed_batch

from broker_sim.core.effects import TimerFired
from broker_sim.core.replica.log_cleaner import CLEANER_TIMER
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import Record, decode_records, iter_batches

CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0.01",
}


def create_request():
    message = request(ApiKey.CREATE_TOPICS, timeout_ms=1000, validate_only=False)
    configs = [struct(message, "CreatableTopicConfig", name=k, value=v) for k, v in CONFIGS.items()]
    message.topics = [
        struct(message, "CreatableTopic", name="keyed", num_partitions=1, replication_factor=1,
               assignments=[], configs=configs)
    ]  # fmt: skip
    return message


def fire(host: HostOnFiles) -> None:
    """The cleaner's timer is an input of the next round."""
    host.host._fired.add(CLEANER_TIMER)
    host.host.submit(TimerFired(CLEANER_TIMER))


def test_a_fetch_is_answered_with_the_bytes_it_was_meant_to_have(tmp_path):
    """The cleaner swaps the segment in the same round, after the Fetch."""

    async def run() -> None:
        host = HostOnFiles(tmp_path)
        await host.ask(create_request(), 7)
        for index in range(20):
            data = keyed_batch([(f"k{index % 2}", f"v{index}" * 20)], timestamp=1_700_000_000_000)
            await host.ask(produce_request({("keyed", 0): data}), 11)
        fire(host)  # a log is chosen
        await asyncio.sleep(0)
        asked = asyncio.ensure_future(host.ask(fetch_request("keyed", 0), 12))
        await asyncio.sleep(0)
        fire(host)  # it is cleaned
        answer = await asked
        records = answer.responses[0].partitions[0].records
        found: list[Record] = []
        for header, at in iter_batches(records):
            found += decode_records(records, at, header)
        assert found[0].record_offset == 0
        for record in found:
            wanted = f"v{record.record_offset}" * 20
            assert (record.value or b"").decode() == wanted
        answer = await host.ask(fetch_request("keyed", 0), 12)
        left = answer.responses[0].partitions[0].records
        assert len(left) < len(records)
        host.host.stop()

    asyncio.run(run())
