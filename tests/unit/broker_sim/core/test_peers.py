"""Requests to other brokers: one reply each, by the answer or by the peer's loss."""

from __future__ import annotations

from support.core.broker_build import BrokerOnDisk, request

from broker_sim.core.controller.registrations import BrokerRegistration
from broker_sim.core.effects import PeerAnswer, PeerLost
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.registry_client import REGISTRY_PEER
from txnlog_kafka.wire.messages import ApiKey

MESSAGE = request(ApiKey.HEARTBEAT, group_id="g")


class Asking:
    """A broker that has asked brokers 1, 1 and 2; `told` has (number, answer) as they come."""

    def __init__(self) -> None:
        self.broker = BrokerOnDisk()
        self.told: list = []
        self.sends = [self.ask(number, peer) for number, peer in enumerate((1, 1, 2))]

    def ask(self, number: int, peer: int):
        peers = self.broker.parts.peers
        self.broker.cause(
            lambda effects: peers.send(
                peer, MESSAGE, 4, lambda answer, _: self.told.append((number, answer)), effects
            )
        )
        (send,) = self.broker.steps[-1].sends
        assert (send.peer, send.api_version, send.message) == (peer, 4, MESSAGE)
        return send

    def answer(self, number: int, answer: str) -> None:
        send = self.sends[number]
        self.broker.step(PeerAnswer(send.peer, send.correlation_id, answer))


def test_each_request_gets_its_own_answer_in_any_order() -> None:
    asking = Asking()
    assert len({send.correlation_id for send in asking.sends}) == 3
    for number in (2, 1, 0):
        asking.answer(number, f"answer {number}")
    assert asking.told == [(2, "answer 2"), (1, "answer 1"), (0, "answer 0")]


def test_a_lost_peer_answers_nothing_more_and_the_others_do() -> None:
    asking = Asking()
    asking.broker.step(PeerLost(1))
    assert asking.told == [(0, None), (1, None)]
    asking.answer(0, "too late")
    asking.answer(2, "answer 2")
    asking.answer(2, "twice")
    assert asking.told == [(0, None), (1, None), (2, "answer 2")]


def test_who_asks_again_when_the_peer_is_lost_waits_for_the_new_answer() -> None:
    asking = Asking()
    peers, told = asking.broker.parts.peers, []

    def again(answer, effects) -> None:
        told.append(answer)
        if answer is None:
            peers.send(3, MESSAGE, 4, again, effects)

    asking.broker.cause(lambda effects: peers.send(3, MESSAGE, 4, again, effects))
    (send,) = asking.broker.step(PeerLost(3)).sends
    asking.broker.step(PeerAnswer(3, send.correlation_id, "answer"))
    assert told == [None, "answer"]


def test_one_broker_asks_nobody() -> None:
    broker = BrokerOnDisk()
    broker.create_topic("orders", 1)
    broker.produce("orders", "v")
    assert not any(step.sends for step in broker.steps)


def test_a_peers_address_is_that_of_its_inter_broker_listener_and_the_registrys_is_configured():
    asking = Asking()
    broker = asking.broker.broker
    assert broker.peer_endpoint(REGISTRY_PEER) is None
    image = broker.parts.image
    at = {"PLAINTEXT": Endpoint("h", 1), "OUT": Endpoint("o", 2)}
    image.brokers[7] = BrokerRegistration(7, 1, at)
    image.brokers[8] = BrokerRegistration(8, 1, {"OUT": Endpoint("o", 3)})
    assert broker.peer_endpoint(7) == Endpoint("h", 1)
    assert broker.peer_endpoint(8) is None
    assert broker.peer_endpoint(9) is None
