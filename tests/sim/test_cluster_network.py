"""Connections of the simulated network, and faults of the network and of processes."""

import random

import pytest

from broker_sim.core.config import BrokerConfig
from simulation.hosts.network import Network
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.sim_broker import Observer, SimulatedBroker
from simulation.scenario import LinkConditions
from simulation.trace import Trace


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


def connected(**weather):
    scheduler = Scheduler()
    network = Network(scheduler, Trace(lambda: scheduler.now_us, None), random.Random(1))
    network.weather = LinkConditions(**weather)
    client, broker = End("a"), End("b")
    return scheduler, network, client, broker, network.connect(client, broker)


def run(scheduler):
    scheduler.run_until(lambda: False, limit_us=scheduler.now_us + 10_000_000)


def test_a_connection_keeps_the_order_of_its_frames():
    scheduler, _, _, broker, connection = connected(spike=0.5, spike_ms=50)
    for number in range(50):
        connection.request(b"%d" % number)
    run(scheduler)
    assert broker.frames == [b"%d" % number for number in range(50)]


def test_what_was_sent_before_a_close_still_arrives_and_answers_do_not():
    scheduler, _, client, broker, connection = connected()
    connection.request(b"last words")
    connection.close()
    run(scheduler)
    assert (broker.frames, broker.closed) == ([b"last words"], 1)
    connection.respond(b"too late")
    run(scheduler)
    assert client.frames == []


def test_a_broken_connection_delivers_nothing_more_in_either_direction():
    scheduler, _, client, broker, connection = connected(connection_loss=1.1)
    connection.request(b"lost")
    connection.respond(b"lost too")
    run(scheduler)
    assert (client.frames, broker.frames, broker.closed) == ([], [], 1)


def test_a_duplicate_request_comes_twice_by_two_connections_and_is_answered_to_nobody():
    scheduler, _, client, broker, connection = connected(duplicate=1.1)
    by = []
    broker.on_frame = lambda connection, frame: by.append((connection.connection_id, frame))
    ended = []
    broker.on_ended = lambda connection: ended.append(connection.connection_id)
    connection.request(b"the same bytes")
    connection.respond(b"an answer")
    run(scheduler)
    assert by == [(1, b"the same bytes"), (2, b"the same bytes")]
    assert sorted(ended) == [1, 2], "nothing is left over of either"
    assert (client.frames, client.closed) == ([], 1)


def test_what_may_not_be_late_does_not_come_twice_either():
    scheduler, _, _, broker, connection = connected(duplicate=1.1)
    connection.request(b"a marker", may_be_late=False)
    run(scheduler)
    assert broker.frames == [b"a marker"]


def test_a_duplicate_of_a_request_that_was_lost_is_none():
    scheduler, _, _, broker, connection = connected(duplicate=1.1)
    connection.request(b"to the process before")
    broker.incarnation = 2
    run(scheduler)
    assert broker.frames == []


def test_an_answer_to_a_client_that_is_gone_breaks_the_connection():
    scheduler, _, client, broker, connection = connected()
    broker.on_ended = lambda connection: connection.respond(b"to nobody")
    connection.request(b"last words")
    connection.close()
    run(scheduler)
    assert (client.frames, broker.closed, connection.broker_open) == ([], 1, False)


def test_a_restarted_broker_hears_nothing_of_old_connections():
    scheduler, _, _, broker, connection = connected()
    connection.request(b"to the old process")
    broker.incarnation = 2
    run(scheduler)
    assert broker.frames == []


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
    scheduler, _, client, broker, connection = connected(late=1.1)
    connection.request(b"late")
    run(scheduler)
    assert (broker.frames, client.closed) == ([b"late"], 1)


@pytest.mark.parametrize("hears_us", [0, 5_000_000])
def test_a_broker_hears_that_the_client_of_a_late_request_is_gone(monkeypatch, hears_us):
    """The broker hears of it also if the request comes before the client gives up (cluster 641)."""
    scheduler, network, client, broker, connection = connected(late=1.1)
    broker.on_frame = lambda it, _frame: it.respond(b"answer")
    monkeypatch.setattr(network, "after_long", lambda _not_before_us: 1_000_000)
    delays = [hears_us]
    monkeypatch.setattr(network, "delay_us", lambda _direction=None: delays.pop() if delays else 1)
    connection.request(b"late")
    run(scheduler)
    assert client.closed == 1
    assert broker.closed == 1


def alone():
    scheduler = Scheduler()
    broker = SimulatedBroker(
        name="b",
        config=BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:9092"}),
        scheduler=scheduler,
        trace=Trace(lambda: scheduler.now_us, None),
        seed="1",
        observer=Observer(),
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
