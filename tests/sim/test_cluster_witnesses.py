"""The witnesses of a simulated cluster, and what can happen to its network and its processes."""

import random
from types import SimpleNamespace

import pytest

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import Append, Respond, Step, TraceEvent, Truncate
from broker_sim.sim.cluster import Cluster
from broker_sim.sim.cluster_clients import TOPIC, PlainClients
from broker_sim.sim.disk import SimDisk
from broker_sim.sim.metadata_oracle import MetadataOracle
from broker_sim.sim.neighbour import check_order
from broker_sim.sim.network import Network, Weather
from broker_sim.sim.places import Places
from broker_sim.sim.reader import ReadBounds
from broker_sim.sim.replica_oracle import ReplicaLogs, ReplicaOracle
from broker_sim.sim.scheduler import Scheduler
from broker_sim.sim.sim_broker import SimulatedBroker
from broker_sim.sim.sync_oracle import SyncOracle
from broker_sim.sim.trace import Trace
from broker_sim.sim.violation import Violation
from txnlog_spark.wire.messages import ApiKey
from txnlog_spark.wire.records import (
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    stamp_offsets,
)

DIRECTORY = "t-0"
PATH = f"{DIRECTORY}/0.log"


class End:
    """Either end of a connection."""

    incarnation = 1

    def __init__(self, name):
        self.name, self.frames, self.closed = name, [], 0

    def on_frame(self, _connection, frame):
        self.frames.append(frame)

    def on_closed(self, _connection):
        self.closed += 1

    on_ended = on_disconnected = on_closed


def connected():
    scheduler = Scheduler()
    network = Network(scheduler, Trace(lambda: scheduler.now_us, None), random.Random(1))
    client, broker = End("a"), End("b")
    return scheduler, network, client, broker, network.connect(client, broker)


def run(scheduler):
    scheduler.run_until(lambda: False, limit_us=scheduler.now_us + 10_000_000)


def test_what_is_sent_into_a_closed_direction_arrives_in_its_order_when_it_is_open_again():
    scheduler, network, client, broker, connection = connected()
    network.cut_off(("a", "b"))
    connection.request(b"1")
    connection.request(b"2")
    connection.respond(b"the other way")
    run(scheduler)
    assert (broker.frames, client.frames) == ([], [b"the other way"])
    assert not network.reaches("b", "a")
    assert network.connect(client, broker) is None
    network.open_again(("a", "b"))
    connection.request(b"3")
    run(scheduler)
    assert broker.frames == [b"1", b"2", b"3"]


def test_a_clogged_link_lets_connect_and_gives_all_it_holds_when_it_is_clogged_no_more():
    scheduler, network, client, broker, connection = connected()
    network.clog(("a", "b"))
    network.clog(("a", "b"))
    other = network.connect(client, broker)
    connection.request(b"1")
    other.request(b"other")
    connection.request(b"2")
    run(scheduler)
    network.unclog(("a", "b"))
    assert broker.frames == []
    network.unclog(("a", "b"))
    assert sorted(broker.frames) == [b"1", b"2", b"other"]
    assert broker.frames.index(b"1") < broker.frames.index(b"2")


def test_all_drivers_of_a_query_are_on_one_machine():
    scheduler = Scheduler()
    network = Network(scheduler, Trace(lambda: scheduler.now_us, None), random.Random(1))
    broker = End("broker-0")
    first = network.connect(End("job-driver-1"), broker)
    network.cut_off(("job", "broker-0"))
    first.request(b"1")
    run(scheduler)
    assert (broker.frames, list(network.machines)) == ([], ["job"])
    assert network.connect(End("job-driver-2"), broker) is None
    assert network.connect(End("job-observer"), broker) is not None


def test_a_late_request_arrives_after_its_client_has_given_up():
    scheduler, network, client, broker, connection = connected()
    network.weather = Weather(late=1.1)
    connection.request(b"late")
    run(scheduler)
    assert (broker.frames, client.closed) == ([b"late"], 1)


def alone():
    scheduler = Scheduler()
    broker = SimulatedBroker(
        name="b",
        config=BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:9092"}),
        scheduler=scheduler,
        trace=Trace(lambda: scheduler.now_us, None),
        seed="1",
    )
    broker.start()
    return scheduler, broker


def test_a_process_that_stands_still_finds_what_has_happened_when_it_goes_on():
    scheduler, broker = alone()
    found = []
    broker.pause(1_000_000)
    for number in range(3):
        broker.later(number, lambda number=number: found.append(number))
    scheduler.run_until(lambda: False, limit_us=scheduler.now_us + 900_000)
    assert found == []
    run(scheduler)
    assert found == [0, 1, 2]


def test_what_a_dead_process_was_about_to_do_is_not_done_by_the_next_one():
    scheduler, broker = alone()
    broker.later(5, lambda: pytest.fail("done"))
    broker.pause(1_000_000)
    broker.later(5, lambda: pytest.fail("done"))
    broker.kill("kill")
    broker.start()
    run(scheduler)


# ------------------------------------------------------------------ replicas


def batch(base_offset, value=b"v", leader_epoch=0):
    data = bytearray(encode_batch([Record(b"k", value)]))
    stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(data)


class Replicas:
    """Disks of brokers with their witnesses."""

    def __init__(self, count=2):
        self.logs = ReplicaLogs()
        self.logs.in_sync = lambda _: tuple(self.disks)
        self.disks = {f"b{number}": SimDisk() for number in range(count)}
        for name, disk in self.disks.items():
            ReplicaOracle(name, disk, self.logs)

    def do(self, name, operation):
        self.disks[name].apply(operation)
        self.logs.oracles[name].watch(operation)

    def append(self, name, *batches):
        for data in batches:
            self.do(name, Append(PATH, self.disks[name].size_bytes(PATH) or 0, data))


@pytest.mark.invariant(6)
def test_one_offset_and_leader_epoch_hold_one_batch():
    replicas = Replicas()
    replicas.append("b0", batch(0))
    replicas.append("b1", batch(0, leader_epoch=1))
    replicas = Replicas()
    replicas.append("b0", batch(0))
    with pytest.raises(Violation, match="invariant 6:"):
        replicas.append("b1", batch(0, b"other"))


@pytest.mark.invariant(7)
def test_a_member_of_the_isr_without_what_is_committed_is_noticed():
    replicas = Replicas()
    replicas.append("b0", batch(0), batch(1))
    replicas.append("b1", batch(0))
    replicas.logs.on_high_watermark("b0", DIRECTORY, 1)
    with pytest.raises(Violation, match="invariant 7:"):
        replicas.logs.on_high_watermark("b0", DIRECTORY, 2)


@pytest.mark.invariant(8)
def test_a_leader_and_at_the_end_a_replica_without_what_was_committed_is_noticed():
    replicas = Replicas()
    replicas.append("b0", batch(0))
    replicas.append("b1", batch(0))
    replicas.logs.on_high_watermark("b0", DIRECTORY, 1)
    replicas.logs.check_complete("b1", [DIRECTORY])
    other = Replicas()
    other.logs.in_sync = lambda _: ()
    other.append("b0", batch(0))
    other.append("b1", batch(0, b"other", leader_epoch=1))
    other.logs.on_high_watermark("b0", DIRECTORY, 1)
    with pytest.raises(Violation, match="invariant 8: a leader"):
        other.logs.on_high_watermark("b1", DIRECTORY, 1)
    with pytest.raises(Violation, match="invariant 8: what was committed"):
        other.logs.check_complete("b1", [DIRECTORY])


@pytest.mark.invariant(10)
def test_a_truncation_of_what_is_committed_is_noticed_and_no_other():
    replicas = Replicas()
    for name in replicas.disks:
        replicas.append(name, batch(0), batch(1))
    replicas.logs.on_high_watermark("b0", DIRECTORY, 1)
    replicas.do("b1", Truncate(PATH, len(batch(0))))
    with pytest.raises(Violation, match="invariant 10:"):
        replicas.do("b1", Truncate(PATH, 0))


def test_a_replica_that_is_being_cut_ends_where_it_was_damaged():
    replicas = Replicas()
    replicas.append("b0", batch(0), batch(1))
    replicas.do("b0", Append("t-0/2.log", 0, batch(2)))
    replicas.do("b0", Truncate(PATH, len(batch(0))))
    assert [first for first, *_ in replicas.logs.oracles["b0"].held[DIRECTORY]] == [0]


# ------------------------------------------------------------------ metadata


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


@pytest.mark.invariant(9, 16)
@pytest.mark.parametrize(
    ("number", "bad"),
    [
        (9, changed(partition_epoch=6)),
        (9, changed(leader_epoch=2)),
        (9, changed(leader=1, leader_epoch=3)),
        (9, changed(leader=1, leader_epoch=4)),
        (9, {"type": "broker-registered", "broker": 1, "epoch": 6}),
        (16, {"type": "producer-ids", "next_producer_id": 0}),
    ],
)
def test_metadata_that_goes_back_is_noticed(number, bad):
    read(changed())
    with pytest.raises(Violation, match=f"invariant {number}:"):
        read(bad)


@pytest.mark.invariant(9)
def test_another_history_is_noticed():
    oracle, history = read(changed())
    oracle.on_read("b1", history, len(history))
    with pytest.raises(Violation, match="two histories"):
        oracle.on_read("b1", [changed(leader_epoch=9)], len(history))
    oracle, _ = read(changed(isr=(0,)), {"type": "broker-fenced", "broker": 1})
    with pytest.raises(Violation, match="not in the ISR"):
        oracle.on_read("b0", [changed(leader=1, leader_epoch=4, partition_epoch=8)], 6)


# ------------------------------------------------------------------ clients and the end


def clients():
    made = PlainClients(("output", 1), lambda: Places(3), lambda: True)
    made._acknowledged.add(1)
    made._sent |= {1, 2}
    return made


def kept(*values):
    return {(TOPIC, 0): [Record(b"n", v, record_offset=n) for n, v in enumerate(values)]}


@pytest.mark.invariant(1, 3, 4, 5, 14)
def test_what_plain_clients_saw_is_held_against_what_is_there():
    good = clients()
    good._on_records(TOPIC, 0, kept(b"1")[TOPIC, 0])
    good.check(kept(b"1"))
    with pytest.raises(Violation, match="invariant 1:"):
        good.check(kept(b"2", b"1"))
    with pytest.raises(Violation, match="invariant 3:"):
        clients().check(kept(b"2"))
    with pytest.raises(Violation, match="invariant 14:"):
        clients().check(kept(b"1", b"1"))
    with pytest.raises(Violation, match="invariant 4:"):
        clients().check(kept(b"1", b"3"))
    good._on_bounds(TOPIC, 0, ReadBounds(5, 4))
    with pytest.raises(Violation, match="invariant 5:"):
        good._on_bounds(TOPIC, 0, ReadBounds(5, 3))


@pytest.mark.invariant(11)
def test_an_acknowledgement_with_too_few_in_sync_is_noticed():
    answered = SimpleNamespace(
        topic_id=None,
        name="t",
        partition_responses=[SimpleNamespace(index=0, error_code=0, base_offset=5)],
    )
    message = SimpleNamespace(responses=[answered])
    answer = Step(responses=(Respond(1, 1, ApiKey.PRODUCE, 9, message),))

    def check(isr, needed, *, replicas=(0, 1, 2), step=answer, oracle=None):
        held = PartitionRegistration(replicas, isr, 0, 3, 6)
        leader = SimpleNamespace(registration=held)
        configs = {"min.insync.replicas": needed}
        topic = SimpleNamespace(name="t", topic_id="id", configs=configs)
        image = SimpleNamespace(topics={"t": topic}, topic_of_id=lambda _: None)
        found = SimpleNamespace(leader=leader)
        replicas = SimpleNamespace(lookup=lambda *_: found)
        oracle = oracle or SyncOracle(2)
        oracle.on_step("b0", SimpleNamespace(image=image, replicas=replicas), step)

    check((0,), 1)
    check((0, 1), None)
    check((0,), 2, replicas=(0,))
    for needed in (None, 2):
        with pytest.raises(Violation, match="invariant 11:"):
            check((0,), needed)
    # The answer waited for another partition, and more replicas are asked for meanwhile.
    for reached, was_enough in ((6, True), (6, False), (5, True)):
        moved = Step(traces=(TraceEvent("high-watermark", {"log": "t-0", "hw": reached}),))
        oracle = SyncOracle(2)
        check((0,), 1 if was_enough else 2, step=moved, oracle=oracle)
        if reached > 5 and was_enough:
            check((0,), 2, oracle=oracle)
        else:
            with pytest.raises(Violation, match="invariant 11:"):
                check((0,), 2, oracle=oracle)


@pytest.mark.invariant(29)
def test_transactions_of_a_producer_in_another_order_are_noticed():
    check_order("n", [Record(b"n", b"1"), Record(b"m", b"0"), Record(b"n", b"2")])
    with pytest.raises(Violation, match="invariant 29:"):
        check_order("n", [Record(b"n", b"2"), Record(b"n", b"1")])


@pytest.mark.invariant(17)
def test_a_marker_of_an_older_coordinator_is_noticed():
    def marker(at, epoch):
        data = bytearray(
            encode_marker(TransactionMarker(7, 1, MarkerType.ABORT, epoch), timestamp=0)
        )
        stamp_offsets(data, 0, base_offset=at, leader_epoch=0)
        return bytes(data)

    replicas = Replicas(1)
    replicas.append("b0", marker(0, 3), marker(1, 3), marker(2, 4))
    with pytest.raises(Violation, match="invariant 17:"):
        replicas.append("b0", marker(3, 3))


@pytest.mark.invariant(44)
def test_a_cluster_that_is_not_healed_is_noticed():
    sick = SimpleNamespace(not_healed=lambda: "2 controllers")
    with pytest.raises(Violation, match=r"invariant 44: .*2 controllers"):
        Cluster.check_healed(sick)
