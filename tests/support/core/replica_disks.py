"""Disks of brokers with the simulator's checkers, and metadata records for them."""

from __future__ import annotations

from support.core.batch_layout import stamped

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Append
from simulation.checkers.metadata_oracle import MetadataListener, MetadataOracle
from simulation.checkers.replica_oracle import ClusterState, ReplicaLogs, ReplicaOracle
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.records import Record, encode_batch

DIRECTORY = "t-0"
PATH, LATER = f"{DIRECTORY}/0.log", f"{DIRECTORY}/1.log"


def batch(base_offset, value=b"v", leader_epoch=0):
    return stamped(encode_batch([Record(b"k", value)]), base_offset, leader_epoch)


class SetState(ClusterState):
    """State of a cluster that a test sets: the same for all partitions."""

    def __init__(self, isr=(), partition=None):
        self.isr, self.partition = isr, partition
        self.leader = ""
        self.keepers = None
        """Brokers that have to keep their folders; None for all brokers."""

    def in_sync(self, _directory):
        return self.isr

    def leader_of(self, _directory):
        return self.leader

    def partition_of(self, _directory):
        return self.partition

    def has_to_keep(self, broker, _directory, _partition):
        return self.keepers is None or broker in self.keepers


class Replicas:
    def __init__(self, count=2, prefix="b", **logs):
        self.disks = {f"{prefix}{number}": SimDisk() for number in range(count)}
        self.state = SetState(isr=tuple(self.disks))
        self.logs = ReplicaLogs(self.state, **logs)
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


def read(*records, listener=None, unsafe=()):
    first = PartitionRegistration((0, 1), (0,), 0, 3, 6).record_fields()
    topic = {"type": "topic", "topic_id": "id", "name": "t", "registrations": [first]}
    brokers = [{"type": "broker-registered", "broker": n, "epoch": 5 + n} for n in (0, 1)]
    history = [topic, *brokers, *records]
    oracle = MetadataOracle(listener or MetadataListener(), unsafe)
    oracle.on_read("b0", history, len(history))
    return oracle, history
