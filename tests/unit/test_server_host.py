"""The order of a round: answers never show files as a later step of the same round left them."""

from __future__ import annotations

import asyncio
import struct

import pytest
from support.broker_build import fetch_request
from support.failing_storage import _Transport

from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import (
    Append,
    Delete,
    FileSlice,
    RecordsField,
    Rename,
    Request,
    Respond,
    Step,
    TimerFired,
)
from broker_sim.server.host import BrokerHost
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage
from txnlog_spark.wire.framing import decode_response, encode_request
from txnlog_spark.wire.messages import APIS, ApiKey

LOG = "orders-0/00000000000000000000.log"
OLD, NEW = b"o" * 200_000, b"n" * 200_000
SWAP = ("swap",)


class FakeBroker:
    """Answers a Fetch with the whole log; its timer swaps the log as the cleaner does."""

    def step(self, item, _now_ms: int, _monotonic_ms: int) -> Step:
        if isinstance(item, Request):
            return Step(responses=(self._answer(item),))
        if isinstance(item, TimerFired):
            return Step((Append("new", 0, NEW), Delete(LOG), Rename("new", LOG)))
        return Step()

    def _answer(self, request: Request) -> Respond:
        response = APIS[ApiKey.FETCH].response
        topic = response.FetchableTopicResponse
        place = topic.PartitionData(partition_index=0, error_code=0, records=b"")
        message = response(responses=[topic(topic="orders", partitions=[place])])
        records = RecordsField(place, (FileSlice(LOG, 0, len(OLD)),))
        return Respond(request.connection_id, request.correlation_id, ApiKey.FETCH,
                       request.api_version, message, (records,))  # fmt: skip


async def connected(root) -> tuple[BrokerHost, _Transport]:
    storage = FileStorage(root)
    storage.perform([Append(LOG, 0, OLD)])
    config = BrokerConfig({"connections.max.idle.ms": -1})
    host = BrokerHost(FakeBroker, storage, config, SpaceGuard(root, 0))
    host.start()
    transport = _Transport()
    transport.connection = host.accept()
    transport.connection.connection_made(transport)
    transport.connection.data_received(encode_request(fetch_request("orders"), 11, 1, "c"))
    return host, transport


def swap(host: BrokerHost) -> None:
    """The timer fires in the round that is to come."""
    host._fired.add(SWAP)
    host.submit(TimerFired(SWAP))


def records_of(frame: bytes) -> bytes:
    assert struct.unpack_from(">i", frame) == (1,)
    message = decode_response(APIS[ApiKey.FETCH], 11, frame)
    return bytes(message.responses[0].partitions[0].records)


def test_an_answer_has_the_bytes_of_its_own_step_though_a_later_one_swaps_the_file(tmp_path):
    async def scenario() -> bytes:
        host, transport = await connected(tmp_path)
        swap(host)
        for _ in range(20):
            await asyncio.sleep(0)
        return transport.frames.pop()

    assert records_of(asyncio.run(scenario())) == OLD


@pytest.mark.parametrize("swapped", [True, False])
def test_an_answer_that_waits_for_its_reader_while_the_file_is_swapped_is_not_sent(
    tmp_path, swapped
):
    async def scenario() -> tuple[bytes | None, bool]:
        host, transport = await connected(tmp_path)
        connection = transport.connection
        connection.pause_writing()
        if swapped:
            swap(host)
        for _ in range(20):
            await asyncio.sleep(0)
        connection.resume_writing()
        return transport.frames.pop(), transport.closed

    frame, closed = asyncio.run(scenario())
    if swapped:
        assert (frame, closed) == (None, True)
    else:
        assert (records_of(frame), closed) == (OLD, False)
