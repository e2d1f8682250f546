"""A client process on virtual time keeps the same rules as the one on sockets."""

import random

import pytest

from simulation.hosts.client import ClientProcess
from simulation.hosts.network import Network
from simulation.hosts.scheduler import Scheduler
from simulation.trace import Trace
from txnlog_kafka.operations.effects import Call, Calls, Receive, Reply, Send, Sleep, Unanswered
from txnlog_kafka.wire.framing import decode_request, encode_response
from txnlog_kafka.wire.messages import APIS, ApiKey

METADATA = APIS[ApiKey.METADATA].request
API_VERSIONS = APIS[ApiKey.API_VERSIONS].response


class Broker:
    """Answers at once, or holds answers back until they are let go."""

    def __init__(self, name):
        self.name, self.incarnation = name, 1
        self.is_held = False
        self.held, self.asked, self.closed, self.connections = [], 0, 0, set()

    def on_frame(self, connection, frame):
        self.connections.add(id(connection))
        header, _ = decode_request(frame)
        if header.api_key == ApiKey.API_VERSIONS:
            keys = [
                API_VERSIONS.ApiVersion(api_key=a.key, min_version=0, max_version=a.version_max)
                for a in APIS.values()
            ]
            answer = API_VERSIONS(api_keys=keys)
        else:
            self.asked += 1
            answer = APIS[header.api_key].response(brokers=[], topics=[])
        response = encode_response(
            header.api_key, header.api_version, header.correlation_id, answer
        )[4:]
        if self.is_held and header.api_key != ApiKey.API_VERSIONS:
            self.held.append((connection, response))
        else:
            connection.respond(response)

    def let_go(self):
        for connection, response in self.held:
            connection.respond(response)
        self.held.clear()

    def on_ended(self, _connection):
        """Do nothing: every request that the client sent has been answered or is held."""

    def on_disconnected(self, _connection):
        self.closed += 1


class World:
    def __init__(self):
        self.scheduler = Scheduler()
        trace = Trace(lambda: self.scheduler.now_us, None)
        network = Network(self.scheduler, trace, random.Random(1))
        self.brokers = {0: Broker("a"), 1: Broker("b")}
        self.client = ClientProcess("c", self.scheduler, network, self.brokers, trace)

    def run(self, operation):
        done = []
        self.client.run(operation, lambda result, error: done.append((result, error)))
        assert self.scheduler.run_until(lambda: bool(done), limit_us=10**9)
        ((result, error),) = done
        assert error is None
        return result


@pytest.fixture
def world():
    return World()


def request(node, timeout_ms=5_000):
    return Call(node, METADATA(topics=[]), timeout_ms)


def test_the_answer_of_one_broker_is_received_while_another_is_silent(world):
    world.brokers[0].is_held = True

    def operation():
        first = yield Send(request(0))
        second = yield Send(request(1))
        assert first < second
        ticket, outcome = yield Receive(frozenset({first, second}))
        assert (ticket, type(outcome)) == (second, Reply)
        assert (yield Receive(frozenset({first}), within_ms=50)) is None
        world.brokers[0].let_go()
        ticket, outcome = yield Receive(frozenset({first}))
        return ticket == first and type(outcome) is Reply

    assert world.run(operation())


def test_outcomes_that_are_there_are_received_in_the_order_of_their_requests(world):
    def operation():
        tickets = []
        for node in (1, 0, 1):
            tickets.append((yield Send(request(node))))
        yield Sleep(1_000)
        received = []
        for _ in range(3):
            received.append((yield Receive(frozenset(set(tickets) - {t for t, _ in received}))))
        return [t for t, _ in received] == tickets

    assert world.run(operation())


def test_a_broken_connection_is_an_outcome_for_every_request_on_it(world):
    world.brokers[0].is_held = True

    def operation():
        tickets = []
        for timeout_ms in (100, 5_000):
            tickets.append((yield Send(request(0, timeout_ms))))
        outcomes = []
        for ticket in tickets:
            outcomes.append((yield Receive(frozenset({ticket}))))
        return [outcome for _, outcome in outcomes]

    outcomes = world.run(operation())
    assert [(type(o), o.sent) for o in outcomes] == [(Unanswered, True)] * 2


def test_a_refused_connection_is_an_outcome_too(world):
    world.brokers[1].incarnation = -1

    def operation():
        ticket = yield Send(request(1))
        return (yield Receive(frozenset({ticket})))

    _, outcome = world.run(operation())
    assert not outcome.sent


def test_an_abandoned_request_closes_its_connection_and_no_later_operation_hears_of_it(world):
    world.brokers[0].is_held = True

    def leaving():
        yield Send(request(0))
        yield Send(request(1))
        yield Sleep(1_000)

    def asking():
        return (yield Calls((request(0), request(1))))

    world.run(leaving())
    assert world.brokers[0].asked == 1
    world.brokers[0].is_held = False
    world.brokers[0].let_go()
    outcomes = world.run(asking())
    assert [type(o) for o in outcomes] == [Reply, Reply]
    assert (world.brokers[0].closed, world.brokers[1].closed) == (1, 0)


def test_a_wait_that_is_over_during_a_pause_ends_once_whatever_comes_first(world):
    """The answer and the end of the wait both happen when the process goes on (cluster 1097)."""

    def operation():
        yield Calls((request(0),))
        world.brokers[0].is_held = True
        first = yield Send(request(0))
        world.scheduler.after(5_000, world.brokers[0].let_go)
        world.scheduler.after(1_000, lambda: world.client.pause(100_000))
        received = yield Receive(frozenset({first}), within_ms=10)
        second = yield Send(request(1))
        _, outcome = yield Receive(frozenset({second}))
        return received[0] == first, second != first, type(outcome)

    assert world.run(operation()) == (True, True, Reply)


def test_a_timeout_of_a_request_that_was_answered_during_a_pause_breaks_no_connection(world):
    def operation():
        yield Calls((request(0),))
        world.brokers[0].is_held = True
        first = yield Send(request(0, timeout_ms=10))
        world.scheduler.after(5_000, world.brokers[0].let_go)
        world.scheduler.after(1_000, lambda: world.client.pause(100_000))
        outcomes = [(yield Receive(frozenset({first})))[1]]
        world.brokers[0].is_held = False
        second = yield Send(request(0))
        outcomes.append((yield Receive(frozenset({second})))[1])
        return [type(outcome) for outcome in outcomes]

    assert world.run(operation()) == [Reply, Reply]
    assert len(world.brokers[0].connections) == 1
