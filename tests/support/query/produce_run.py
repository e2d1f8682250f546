"""Runs of produce alone on the core: what was sent, held in memory, and appended."""

from __future__ import annotations

import random
from unittest import mock

from support.core.core_broker import CoreBroker
from support.core.scripted_faults import ANSWER_LOST, LOST, NOT_SENT, refused
from support.query.commit_plans import check_wire_discipline
from support.query.staged_pieces import read_back, staged_of

from txnlog_kafka.operations.batches import PartitionQueue
from txnlog_kafka.operations.produce import Produced, produce_staged, staged_totals
from txnlog_kafka.operations.producer import StagedChunk
from txnlog_kafka.operations.transaction import Transaction, init_producer_id
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import HEADER_BYTES, Record, encode_batch, iter_batches


def part_of(partition: int, pieces: list[list[int]]) -> tuple[StagedChunk, ...]:
    """Staged pieces of batches with values of these sizes; batch i of the partition says so."""
    numbers = iter(range(10**6))
    data = [
        b"".join(
            encode_batch([Record(None, b"%d.%d." % (partition, next(numbers)) + bytes(size), 1)])
            for size in piece
        )
        for piece in pieces
    ]
    return staged_of("out", partition, data)


class Watched:
    """Run of produce that records how much was in memory at most."""

    def __init__(self, cluster: CoreBroker, plan) -> None:
        self.produced = Produced()
        self.stamped = self.most = self.unread_most = self.looks = self.largest = 0
        self.cluster, self.plan = cluster, plan
        self.queues: set[PartitionQueue] = set()

    def run(self) -> Watched:
        stamp, look = PartitionQueue._stamp_batch, PartitionQueue.next_bytes

        def stamping(queue, piece, header):
            batch = stamp(queue, piece, header)
            self.stamped += len(batch.data)
            self.largest = max(self.largest, len(batch.data))
            self.most = max(self.most, self.stamped - self.produced.bytes)
            self.queues.add(queue)
            self.unread_most = max(self.unread_most, sum(q.unstamped_bytes for q in self.queues))
            return batch

        def looking(queue):
            self.looks += 1
            return look(queue)

        with (
            mock.patch.object(PartitionQueue, "_stamp_batch", stamping),
            mock.patch.object(PartitionQueue, "next_bytes", looking),
        ):
            session = self.cluster.session(request_timeout_ms=100)
            self.cluster.run(self._operation(session))
        return self

    def _operation(self, session):
        identity = yield from init_producer_id(session, "t", 900_000)
        transaction = Transaction("t", identity.producer_id, identity.producer_epoch, 2)
        yield from produce_staged(session, transaction, self.plan, self.produced)

    def requests(self) -> list[list[int]]:
        """The partitions in each Produce request, in their order."""
        return [
            [p.index for t in m.topic_data for p in t.partition_data]
            for m in self.cluster.requests(K.PRODUCE)
        ]

    def check(self) -> None:
        limit = max(self.plan.in_flight_bytes_max, self.largest)
        assert self.most <= limit, "stamped and not acknowledged"
        assert self.produced == staged_totals(self.plan.staged)
        check_wire_discipline(self.cluster)
        staged: dict[int, bytes] = {}
        for chunk in self.plan.staged:
            before = staged.get(chunk.partition, b"")
            staged[chunk.partition] = before + bytes(read_back(chunk))
        for partition, batches in staged.items():
            assert payloads(self.cluster.log_bytes("out", partition)) == payloads(batches)


def payloads(batches: bytes) -> list[bytes]:
    """Return the bytes behind the headers of batches."""
    return [batches[at + HEADER_BYTES : at + h.size_bytes] for h, at in iter_batches(batches)]


def cluster_of(partition_count: int, node_count: int) -> CoreBroker:
    return slow_cluster_of(partition_count, [1] * node_count)


FAULTS = [
    LOST,
    ANSWER_LOST,
    NOT_SENT,
    *map(
        refused,
        (
            E.NOT_LEADER_OR_FOLLOWER,
            E.NOT_ENOUGH_REPLICAS,
            E.CONCURRENT_TRANSACTIONS,
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.KAFKA_STORAGE_ERROR,
        ),
    ),
]


def slow_cluster_of(partition_count: int, delays_ms: list[int], **how) -> CoreBroker:
    """A node for each delay; partitions are led by them in turn."""
    nodes = tuple(range(1, len(delays_ms) + 1))
    leaders = {("out", p): nodes[p % len(nodes)] for p in range(partition_count)}
    return CoreBroker(
        2,
        leaders=leaders | {("in", 0): 1},
        nodes=nodes,
        delay_ms=lambda call: delays_ms[call.node - 1] if call.node > 0 else 1,
        **how,
    )


def move_leaders(cluster: CoreBroker, rng: random.Random, chance: float) -> None:
    """Before each wait a partition may get another leader, or none for a while."""

    def move() -> None:
        lost = [p for p, node in cluster.leaders.items() if node < 0]
        for partition in lost:
            cluster.leaders[partition] = rng.choice(cluster.nodes)
        if rng.random() < chance:
            partition = rng.choice([p for p in cluster.leaders if p[0] == "out"])
            cluster.leaders[partition] = rng.choice((-1, *cluster.nodes))

    cluster.on_wait = move
