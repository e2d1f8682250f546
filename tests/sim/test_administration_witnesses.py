"""The witnesses of topics that come and go, and of where replicas have to be."""

import contextlib
import random
import uuid
from random import Random
from types import SimpleNamespace

import pytest
from support.core.replica_disks import DIRECTORY, Replicas, batch

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Append, Delete, Rename, WriteFile
from broker_sim.core.log.files import encode_partition_metadata
from simulation.checkers.metadata_oracle import MetadataListener, MetadataOracle
from simulation.checkers.replica_oracle import ReplicaOracle, partition_name
from simulation.cluster import Cluster
from simulation.hosts.disk import SimDisk
from simulation.load import administrator as administration
from simulation.load.administrator import Administrator, Place
from simulation.load.recreated_topic import RecreatedTopic, _Life
from simulation.load.routing import Routing
from simulation.trace import Trace
from simulation.violation import Violation
from txnlog_kafka.operations.effects import Reply
from txnlog_kafka.wire.records import Record

IDS = [uuid.UUID(int=number).bytes for number in (1, 2)]


class Lives(Replicas):
    """Replica logs of one or several brokers, whose topic is created, deleted and recreated."""

    def __init__(self, count=1, **logs):
        super().__init__(count, **logs)
        self.state.isr = self.state.keepers = ()
        self.name_life(0)

    def name_life(self, life):
        """Let the newest metadata name this life of the topic."""
        metadata = encode_partition_metadata(IDS[life])
        self.state.partition = partition_name(DIRECTORY, metadata)

    def create(self, name, life):
        metadata = encode_partition_metadata(IDS[life])
        self.do(name, WriteFile(f"{DIRECTORY}/partition.metadata", metadata))

    def delete(self, name):
        self.do(name, Rename(DIRECTORY, "gone-delete"))
        self.do(name, Delete("gone-delete"))


@pytest.mark.invariant(6, 8)
def test_a_topic_of_the_same_name_is_another_one():
    lives = Lives(2)
    for name in lives.disks:
        lives.create(name, 0)
        lives.append(name, batch(0))
    lives.logs.on_high_watermark("b0", DIRECTORY, 1)
    lives.delete("b0")
    lives.create("b0", 1)
    lives.name_life(1)
    # The other broker has not heard of it yet.
    lives.logs.on_high_watermark("b1", DIRECTORY, 1)
    lives.append("b0", batch(0, b"other"))
    lives.logs.on_high_watermark("b0", DIRECTORY, 1)
    lives.logs.check_complete("b0", [DIRECTORY])
    with pytest.raises(Violation, match="invariant 8:"):
        lives.logs.check_complete("b1", [DIRECTORY])
    lives.delete("b1")
    lives.create("b1", 1)
    with pytest.raises(Violation, match="invariant 6:"):
        lives.append("b1", batch(0))


@pytest.mark.invariant(8)
def test_records_that_a_client_has_deleted_are_not_missing_and_others_are():
    trimmed = {DIRECTORY}
    lives = Lives(2, trimmed=trimmed)
    for name in lives.disks:
        lives.create(name, 0)
    lives.append("b0", batch(0), batch(1))
    lives.logs.on_high_watermark("b0", DIRECTORY, 2)
    lives.append("b1", batch(1))
    lives.logs.check_complete("b1", [DIRECTORY])
    trimmed.clear()
    lives.disks["b2"] = SimDisk()
    ReplicaOracle("b2", lives.disks["b2"], lives.logs)
    lives.create("b2", 0)
    lives.append("b2", batch(1))
    with pytest.raises(Violation, match="invariant 8:"):
        lives.logs.check_complete("b2", [DIRECTORY])


def test_partitions_of_topics_that_grow_and_go_are_known():
    made = PartitionRegistration((0, 1), (0, 1), 0, 0, 0).record_fields()
    topic_id = str(uuid.UUID(int=1))
    oracle = MetadataOracle(MetadataListener())
    history = [
        {"type": "topic", "topic_id": topic_id, "name": "t", "registrations": [made]},
        {"type": "topic-changed", "topic_id": topic_id, "configs": {}},
        {"type": "topic-changed", "topic_id": topic_id, "registrations": [made]},
    ]
    oracle.on_read("b0", history, 3)
    assert sorted(oracle.partitions) == ["t-0", "t-1"]
    oracle.on_read("b0", [{"type": "topic-deleted", "topic_id": topic_id}], 4)
    assert oracle.partitions == oracle.topic_ids == {}


@pytest.mark.parametrize("may_repeat", [False, True])
def test_of_a_partition_ordered_before_nothing_is_demanded_where_requests_may_be_late(
    may_repeat, monkeypatch
):
    monkeypatch.setattr(administration, "CANCELLED_SHARE", 0.0)
    administrator = Administrator(
        random.Random(1), {"t": 1}, {}, lambda: Routing(3), Trace(lambda: 0, None), lambda: True,
        may_repeat=may_repeat,
    )  # fmt: skip
    place = Place("t", 0)
    administrator._moved = [place]
    taken = SimpleNamespace(partitions=[SimpleNamespace(error_code=0)])

    def once(_node, _request):
        return SimpleNamespace(error_code=0, responses=[taken])
        yield

    monkeypatch.setattr(administration, "ask_once", once)
    demanded = []
    for _ in range(2):
        with contextlib.suppress(StopIteration):
            next(administrator._move())
        demanded.append(place in administrator._ordered)
    assert demanded == [True, not may_repeat]


@pytest.mark.invariant(44)
def test_replicas_that_are_not_where_they_were_ordered_are_noticed():
    administrator = Administrator(None, {}, {}, lambda: Routing(3), None, lambda: True)
    administrator._ordered[Place("t", 0)] = (2, 1)
    administrator.check(lambda *_: (2, 1))
    administrator.check(lambda *_: None)
    with pytest.raises(Violation, match="invariant 44:"):
        administrator.check(lambda *_: (1, 2))


@pytest.mark.parametrize(("is_late", "expected"), [(False, 1), (True, 0)])
def test_an_order_that_a_broker_may_have_forwarded_twice_is_not_held_to_be_the_last(
    is_late, expected
):
    trace = Trace(int, None)
    administrator = Administrator(
        Random(1), {}, {}, lambda: Routing(3), trace, lambda: True
    )  # fmt: skip
    moving = administrator._move()
    next(moving)
    if is_late:
        trace.fault("request late")
    partition = SimpleNamespace(error_code=0)
    answer = SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[partition])])
    with pytest.raises(StopIteration):
        moving.send((Reply(answer, 1),))
    assert trace.counts["reassignment"] == 1
    assert len(administrator._ordered) == expected


@pytest.mark.invariant(44)
def test_a_log_that_is_left_over_is_noticed():
    disk = SimDisk()
    disk.apply(Append("t-0/0.log", 0, b"x"))
    disk.apply(WriteFile("meta.properties", b"x"))
    host = SimpleNamespace(name="b0", disk=disk)
    Cluster._check_no_others(host, ["t-0"])
    with pytest.raises(Violation, match=r"invariant 44: .*t-0"):
        Cluster._check_no_others(host, [])


@pytest.mark.invariant(3, 4, 13, 14, 22)
def test_what_a_topic_has_of_another_life_or_lacks_of_its_own_is_noticed():
    passing = RecreatedTopic(None, lambda: Routing(3), SimpleNamespace(count=list), lambda: True)
    life = _Life(uuid.UUID(int=1), {b"a"}, {b"a": 0})
    passing.check_read(life, {0: b"a"}, 1)
    with pytest.raises(Violation, match="invariant 4:"):
        passing.check_read(life, {0: b"a", 1: b"of before"}, 2)
    with pytest.raises(Violation, match="invariant 3:"):
        passing.check_read(life, {}, 1)
    life.start_offset = 1
    passing.check_read(life, {}, 1)
    with pytest.raises(Violation, match="invariant 14:"):
        passing.on_written(life, b"b", 0)
    with pytest.raises(Violation, match="invariant 13:"):
        passing.check_refusal(life, 45)
    passing.committed.add(b"1")
    passing.check([Record(b"t", b"1")])
    with pytest.raises(Violation, match="invariant 22:"):
        passing.check([])
    passing.aborted.add(b"2")
    with pytest.raises(Violation, match="invariant 22:"):
        passing.check([Record(b"t", b"1"), Record(b"t", b"2")])
