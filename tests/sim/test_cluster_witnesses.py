"""The witnesses of a simulated cluster."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.core.replica_disks import DIRECTORY, LATER, PATH, Replicas, batch, changed, read

from broker_sim.apis import RegistryApiKey
from broker_sim.apis.registry_codes import CONTROLLER_EPOCH_PATH
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import (
    Append,
    Delete,
    Rename,
    Request,
    Respond,
    Step,
    TraceEvent,
    Truncate,
)
from simulation.checkers.bounds_oracle import Bounds, BoundsOracle, _said
from simulation.checkers.controller_oracle import ControllerOracle
from simulation.checkers.invariants import Observations
from simulation.checkers.metadata_oracle import METADATA_TRACE
from simulation.checkers.sync_oracle import HIGH_WATERMARK_TRACE, SyncOracle
from simulation.cluster import Cluster
from simulation.load.background_load import check_order
from simulation.load.cluster_clients import TOPIC, PlainClients
from simulation.load.pipelined_writer import PipelinedWriter
from simulation.load.reader import ReadBounds
from simulation.load.routing import Routing
from simulation.scenario_loading import load_scenario
from simulation.violation import Violation
from simulation.world import World
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import (
    MarkerType,
    Record,
    TransactionMarker,
    encode_marker,
    stamp_offsets,
)


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
    other.state.isr = ()
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


def rolled(**logs) -> Replicas:
    """Both have two segments of one batch, all of it committed."""
    replicas = Replicas(**logs)
    for name in replicas.disks:
        replicas.append(name, batch(0))
        replicas.do(name, Append(LATER, 0, batch(1)))
    replicas.logs.on_high_watermark("b0", DIRECTORY, 2)
    return replicas


@pytest.mark.invariant(10)
@pytest.mark.parametrize(
    "operation",
    [Delete(LATER), Delete(PATH), Rename(DIRECTORY, "t-0.0-delete"), Delete(DIRECTORY)],
)
def test_segments_and_folders_of_what_is_committed_do_not_go(operation):
    with pytest.raises(Violation, match="invariant 10:"):
        rolled().do("b1", operation)


def test_what_another_broker_has_from_now_on_or_a_client_has_deleted_may_go():
    trimmed = set()
    replicas = rolled(trimmed=trimmed)
    replicas.state.keepers = {"b0"}
    replicas.do("b1", Rename(DIRECTORY, "t-0.0-delete"))
    replicas.logs.on_log_start("b0", DIRECTORY, 1)
    trimmed.add(DIRECTORY)
    replicas.do("b0", Delete(PATH))
    with pytest.raises(Violation, match="invariant 10:"):
        replicas.do("b0", Delete(LATER))


@pytest.mark.invariant(2)
def test_a_log_that_is_cut_before_what_comes_after_it_is_gone_is_noticed():
    def cut(*operations):
        replicas = Replicas()
        replicas.append("b0", batch(0), batch(1))
        replicas.do("b0", Append("t-0/2.log", 0, batch(2)))
        for operation in operations:
            replicas.do("b0", operation)
        return [first for first, *_ in replicas.logs.oracles["b0"].held[DIRECTORY]]

    cut_at_one = Truncate(PATH, len(batch(0)))
    assert cut(Delete("t-0/2.log"), cut_at_one) == [0]
    with pytest.raises(Violation, match=r"invariant 2\b"):
        cut(cut_at_one)


def test_what_comes_after_a_torn_batch_is_not_read():
    replicas = Replicas()
    replicas.append("b0", batch(0))
    replicas.do("b0", Append("t-0/2.log", 0, batch(1)))
    replicas.do("b0", Truncate(PATH, len(batch(0)) - 1))
    assert not replicas.logs.oracles["b0"].held.get(DIRECTORY)


# ------------------------------------------------------------------ metadata


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


@pytest.mark.invariant(9)
@pytest.mark.parametrize(
    "bad",
    [
        lambda oracle: oracle.on_decided("b1", 4),
        lambda oracle: oracle.on_decided("b0", 3),
        lambda oracle: oracle.on_read(7, 4),
        lambda oracle: told(oracle, 3),
    ],
)
def test_a_controller_epoch_that_goes_back_or_has_two_controllers_is_noticed(bad):
    oracle = ControllerOracle()
    oracle.on_decided("b0", 3)
    oracle.on_decided("b0", 4)
    oracle.on_read(7, 3)
    oracle.on_read(8, 4)
    told(oracle, 4)
    with pytest.raises(Violation, match=r"invariant 9\b"):
        bad(oracle)


def told(oracle, epoch):
    """Let the oracle see a broker ask the registry for the epoch, and the answer."""
    oracle.on_asked(Request(1, 2, RegistryApiKey.REGISTRY_GET_NODES, 0, "b2", "host", message=None))
    node = SimpleNamespace(path=CONTROLLER_EPOCH_PATH, node_version=epoch)
    message = SimpleNamespace(error_code=0, nodes=[node])
    oracle.on_reported(Respond(1, 2, RegistryApiKey.REGISTRY_GET_NODES, 0, message))


# ------------------------------------------------------------------ clients and the end


def clients():
    made = PlainClients(("output", 1), lambda: Routing(3), lambda: True)
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


@pytest.mark.invariant(3, 14)
def test_what_a_producer_with_five_batches_in_flight_is_answered_is_true():
    none, gap, again = (
        ErrorCode.NONE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    )

    def written(*errors):
        writer = PipelinedWriter(lambda: Routing(3), lambda: True)
        left = dict.fromkeys(range(3))
        writer._keep_unacknowledged(left, errors)
        return writer, list(left)

    assert written(none, again, gap)[1] == written(none, None, gap)[1] == [1, 2]
    for errors in ((gap, none, none), (none, gap, gap)):
        with pytest.raises(Violation, match=r"invariant 14: .* refused"):
            written(*errors)
    writer, _ = written(none, none, none)
    there = [Record(b"n", b"%d" % number) for number in range(3)]
    writer.check(there)
    with pytest.raises(Violation, match="invariant 3:"):
        writer.check(there[1:])
    with pytest.raises(Violation, match=r"invariant 14: .* twice"):
        writer.check([*there, there[0]])


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
    def moved(reached, *traces):
        return Step(traces=(TraceEvent("high-watermark", {"log": "t-0", "hw": reached}), *traces))

    oracle = SyncOracle(2)
    check((0,), 1, step=moved(6), oracle=oracle)
    check((0,), 2, oracle=oracle)
    oracle = SyncOracle(2)
    check((0,), 1, step=moved(5), oracle=oracle)
    with pytest.raises(Violation, match="invariant 11: acks=all"):
        check((0,), 2, oracle=oracle)
    with pytest.raises(Violation, match="invariant 11: a high watermark"):
        check((0,), 2, step=moved(6))
    # Which metadata held when it moved, in a step that reads some, is not seen: neither then nor
    # when what it has passed is answered, in the same step or later.
    changing = TraceEvent(METADATA_TRACE, {"type": "topic-changed"})
    moving = moved(6, changing)
    check((0,), 2, step=moving)
    check((0,), 2, step=replace(moving, responses=answer.responses))
    oracle = SyncOracle(2)
    check((0,), 2, step=moving, oracle=oracle)
    check((0,), 2, oracle=oracle)
    with pytest.raises(Violation, match="invariant 11: acks=all"):
        check((0,), 2, step=replace(moved(5, changing), responses=answer.responses))


@pytest.mark.invariant(5)
@pytest.mark.parametrize(
    "bad", [(1, 4, 5), (2, 3, 5), (2, 4, 4), (-1, -1, 4), (5, 4, 6), (3, 6, 5)]
)
def test_an_end_that_goes_back_in_one_leader_epoch_is_noticed(bad):
    oracle = BoundsOracle("b0")
    oracle.on_bounds(("id", 0, 3), Bounds(2, 4, 5))
    oracle.on_bounds(("id", 0, 3), Bounds(-1, -1, 5))
    oracle.on_bounds(("id", 0, 4), Bounds(0, 0, 0))
    with pytest.raises(Violation, match=r"invariant 5\b"):
        oracle.on_bounds(("id", 0, 3), Bounds(*bad))


@pytest.mark.invariant(5)
def test_a_high_watermark_that_moves_twice_in_a_step_counts_where_it_ends():
    def said(*reached):
        moved = (TraceEvent(HIGH_WATERMARK_TRACE, {"log": "t-0", "hw": each}) for each in reached)
        return list(_said(SimpleNamespace(), Step(traces=tuple(moved))))

    assert said(2, 3) == [("t-0", Bounds(-1, -1, 3))]
    with pytest.raises(Violation, match="a high watermark moves back"):
        said(3, 2)


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


@pytest.mark.invariant(31, 40)
def test_of_a_group_s_progress_only_what_its_coordinator_answers_counts():
    world, place = World(1, load_scenario("three_brokers_calm", 1)), ("input", 0)
    seen = Observations(groups={"g": {place: 5}})
    deployment = SimpleNamespace(is_rolled_back=lambda _group: False)
    operator = SimpleNamespace(deployment=deployment)
    query = SimpleNamespace(observations=seen, operator=operator)
    world.machines.coordinates = lambda node, _group: node == 1
    world._on_group(query, 0, "g", {place: 3}, 5)
    world._on_group(query, 0, "g", {place: 9}, 5)
    assert seen.groups["g"] == {place: 5}
    with pytest.raises(Violation, match="invariant 31"):
        world._on_group(query, 1, "g", {place: 4}, 4)
    with pytest.raises(Violation, match="invariant 40"):
        world._on_group(query, 1, "g", {place: 5}, 6)
