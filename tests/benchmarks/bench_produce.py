"""Microseconds of CPU that the broker spends on one small Produce request, and requests a second.

Run: python tests/benchmarks/bench_produce.py [--requests 4000] [--rounds 5] [--profile].
Nothing is asserted: times depend on the machine; compare two trees in turns, by the least of the
rounds. Frames are made before the clock runs and handed to a connection of a whole broker with
real files, one at a time, as bytes from a socket would be; only the socket itself is missing.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.server.broker_server import BrokerServer
from broker_sim.server.codecs import CODECS
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage
from txnlog_kafka.wire.framing import decode_response, encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

TOPIC = "bench"
VERSION = 9
KINDS = {
    "plain_1_record": {"records": 1, "producer": False, "partitions": 1},
    "idempotent_1_record": {"records": 1, "producer": True, "partitions": 1},
    "idempotent_100_records": {"records": 100, "producer": True, "partitions": 1},
    "idempotent_8_partitions": {"records": 1, "producer": True, "partitions": 8},
}


class Transport:
    """A socket that takes everything."""

    def __init__(self):
        self.last = b""

    def write(self, data):
        self.last = bytes(data)

    def get_extra_info(self, name):
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high):
        pass

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def close(self):
        pass


def frames(kind: dict, count: int) -> list[bytes]:
    """So many requests, each with the next sequence of its producer."""
    cls = APIS[ApiKey.PRODUCE].request
    topic = cls.TopicProduceData
    now_ms = time.time_ns() // 10**6
    records = [Record(b"key", b"x" * 100, now_ms) for _ in range(kind["records"])]
    made = []
    for number in range(count):
        producer = {}
        if kind["producer"]:
            sequence = number * len(records)
            producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence}
        batch = encode_batch(records, **producer)
        data = [
            topic.PartitionProduceData(index=index, records=batch)
            for index in range(kind["partitions"])
        ]
        message = cls(
            transactional_id=None,
            acks=-1,
            timeout_ms=1000,
            topic_data=[topic(name=TOPIC, partition_data=data)],
        )
        made.append(bytes(encode_request(message, VERSION, number, "bench")))
    return made


def create_topic() -> bytes:
    """The request for a topic of 8 partitions."""
    cls = APIS[ApiKey.CREATE_TOPICS].request
    topic = cls.CreatableTopic(
        name=TOPIC, num_partitions=8, replication_factor=1, assignments=[], configs=[]
    )
    message = cls(topics=[topic], timeout_ms=1000, validate_only=False)
    return bytes(encode_request(message, 5, 0, "bench"))


async def ask(connection, requests: list[bytes]) -> None:
    """One after another; the loop has its turn for each."""
    for request in requests:
        connection.data_received(request)
        await asyncio.sleep(0)


async def measure(folder: str, requests: list[bytes], profile: cProfile.Profile | None) -> float:
    """Seconds of CPU for all requests, on a new broker."""
    storage = FileStorage(Path(folder))
    config = BrokerConfig({})
    host = BrokerServer(
        lambda: Broker(config, storage, random.Random(1), codecs=CODECS),
        storage,
        config,
        SpaceGuard(Path(folder), 0),
    )
    host.start()
    connection, transport = host.accept(), Transport()
    connection.connection_made(transport)
    await ask(connection, [create_topic(), *requests[:100]])
    if profile is not None:
        profile.enable()
    began = time.process_time()
    await ask(connection, requests[100:])
    seconds = time.process_time() - began
    if profile is not None:
        profile.disable()
    answer = decode_response(APIS[ApiKey.PRODUCE], VERSION, transport.last[4:])
    codes = [p.error_code for t in answer.responses for p in t.partition_responses]
    if any(codes):
        raise SystemExit(f"refused: {codes}")
    host.stop()
    return seconds


def main() -> None:
    """Print the least and the median of the rounds for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="where the time goes, on stderr")
    arguments = parser.parse_args()
    found = {}
    for name, kind in KINDS.items():
        requests = frames(kind, arguments.requests + 100)
        profile = cProfile.Profile() if arguments.profile else None
        taken = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                taken.append(asyncio.run(measure(folder, requests, profile)))
        each = sorted(seconds / arguments.requests * 1e6 for seconds in taken)
        found[name] = {
            "cpu_us_per_request": round(each[0], 1),
            "median_us": round(each[len(each) // 2], 1),
        }
        if profile is not None:
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(35)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
