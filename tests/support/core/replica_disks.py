"""Disks of brokers with the simulator's checkers, and metadata records for them."""

from __future__ import annotations

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Append
from simulation.checkers.metadata_oracle import MetadataOracle
from simulation.checkers.replica_oracle import ReplicaLogs, ReplicaOracle
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.records import Record, encode_batch, stamp_offsets

DIRECTORY = "t-0"
PATH, LATER = f"{DIRECTORY}/0.log", f"{DIRECTORY}/1.log"


def batch(base_offset, value=b"v", leader_epoch=0):
    data = bytearray(encode_batch([Record(b"k", value)]))
    stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(data)


class Replicas:
    def __init__(self, count=2, prefix="b"):
        self.logs = ReplicaLogs()
        self.logs.in_sync = lambda _: tuple(self.disks)
        self.disks = {f"{prefix}{number}": SimDisk() for number in range(count)}
        for name, disk in self.disks.items():
            ReplicaOracle(name, disk, self.logs)

    def do(self, name, operation):
        self.disks[name].apply(operation)
        self.logs.oracles[name].watch(operation)

    def append(self, name, *batches):
        for data in batches:
            self.do(name, Append(PATH, self.disks[name].size_bytes(PATH) or 0, data))


def changed(**fields):
    made = {"replicas": (0, 1), "isr": (0, 1), "leader": 0, "leader_epoch": 3, "partition_epoch": 7}
    registration = PartitionRegistration(**(made | fields)).record_fields()
    return {
        "type": "partition-changed",
        "topic_id": "id",
        "partition": 0,
        "registration": registration,
    }


def read(*records):
    first = PartitionRegistration((0, 1), (0,), 0, 3, 6).record_fields()
    topic = {"type": "topic", "topic_id": "id", "name": "t", "registrations": [first]}
    brokers = [{"type": "broker-registered", "broker": n, "epoch": 5 + n} for n in (0, 1)]
    history = [topic, *brokers, *records]
    oracle = MetadataOracle(lambda _directory: None)
    oracle.on_read("b0", history, len(history))
    return oracle, history
