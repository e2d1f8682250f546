"""A controller's append that the registry refused, although the log has its records."""

from __future__ import annotations

from typing import Any

import pytest

from broker_sim.apis import OWN_APIS, RegistryApiKey
from broker_sim.apis.registry_codes import RegistryError
from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.metadata_log import encode_record
from broker_sim.core.effects import Effects, PeerAnswer
from broker_sim.core.membership.cluster_metadata import ClusterMetadata
from broker_sim.core.membership.decisions import Decisions
from broker_sim.core.membership.registry_link import RegistryLink
from broker_sim.core.membership.registry_snapshots import SnapshotWriter
from broker_sim.core.peers import Peers
from broker_sim.core.registry_client import REGISTRY_PEER, RegistryClient

EPOCH = 3
THESE = [{"type": "producer-ids", "next_producer_id": n} for n in (1_000, 2_000)]
OTHERS = [{"type": "producer-ids", "next_producer_id": n} for n in (3_000, 4_000)]


class Controller:
    """Decisions of a controller with a session, and the test as the registry."""

    def __init__(self) -> None:
        self.peers, self.metadata = Peers(), ClusterMetadata(0, lambda _delta, _effects: None)
        client = RegistryClient(self.peers)
        client.session_id = 1
        link = RegistryLink(client, self.metadata, (3_000, 500), lambda _: None, lambda _: None)
        link._nodes_zxid = 0
        snapshots = SnapshotWriter(BrokerConfig({}), client, self.metadata)
        self.decisions = Decisions(client, link, self.metadata, snapshots)
        self.effects = Effects(0, 0)
        self.decisions.begin(EPOCH, self.effects)
        self.ended: list[bool] = []

    def submit(self, *records: dict[str, Any]) -> None:
        self.decisions.submit(
            lambda _effects: records, lambda done, _effects: self.ended.append(done), self.effects
        )

    def asked(self) -> Any:
        """Return the message that was sent last; no other message is on its way."""
        (sent,) = self.effects.sends
        return sent.message

    def answer(self, key: RegistryApiKey, **fields: Any) -> None:
        (sent,) = self.effects.sends
        assert type(sent.message) is OWN_APIS[key].request
        self.effects.sends.clear()
        message = OWN_APIS[key].response(**fields)
        self.peers.on_answer(PeerAnswer(REGISTRY_PEER, sent.correlation_id, message), self.effects)


@pytest.fixture
def refused() -> Controller:
    """An append of two records was refused: the log is read where they would be."""
    made = Controller()
    made.submit(*THESE)
    made.answer(RegistryApiKey.REGISTRY_APPEND, error_code=RegistryError.KAFKA_STORAGE_ERROR)
    assert made.asked().from_offset == 0
    assert made.asked().max_bytes >= sum(len(encode_record(each)) for each in THESE)
    return made


def read(controller: Controller, epoch: int, *records: dict[str, Any]) -> None:
    controller.answer(
        RegistryApiKey.REGISTRY_READ,
        log_end_offset=len(records),
        record_epoch=epoch,
        records=[encode_record(each) for each in records],
    )


@pytest.mark.parametrize("after", [[], OTHERS])
def test_an_append_that_an_earlier_asking_has_carried_out_is_taken_from_the_log(refused, after):
    read(refused, EPOCH, *THESE, *after)
    assert (refused.ended, refused.metadata.next_offset) == ([True], 2)


@pytest.mark.parametrize(
    ("epoch", "there"),
    [
        (-1, []),
        (EPOCH + 1, THESE),
        (EPOCH, OTHERS),
        (EPOCH, THESE[:1]),
        (EPOCH, [THESE[0], OTHERS[1]]),
    ],
)
def test_other_records_at_its_place_are_not_those_of_the_append_also_of_the_same_epoch(
    refused, epoch, there
):
    """Records of an append that this controller has given up may arrive late (cluster 120)."""
    read(refused, epoch, *there)
    assert (refused.ended, refused.metadata.next_offset) == ([False], 0)


def test_where_a_snapshot_is_in_place_of_the_records_the_epoch_says_it(refused):
    refused.answer(
        RegistryApiKey.REGISTRY_READ,
        error_code=RegistryError.OFFSET_OUT_OF_RANGE,
        log_start_offset=2,
        log_end_offset=2,
        record_epoch=EPOCH,
    )
    assert refused.ended == [True]
