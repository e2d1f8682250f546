"""Questions of the commands: a leader is followed, and a moment's refusal is asked again."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import Asked, CoreBroker, Fault

from txnlog_kafka.errors import BrokerError, DeadlineExceeded, UnknownTopic
from txnlog_kafka.operations import admin
from txnlog_kafka.operations.admin import (
    GroupListing,
    describe_group,
    describe_producers,
    group_members,
    list_groups,
)
from txnlog_kafka.operations.effects import Reply, Unanswered
from txnlog_kafka.operations.offsets import CommittedOffset, commit_offsets
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TopicPartition

PLACE = TopicPartition("out", 0)


def refused(code: int) -> Fault:
    return Fault(applied=False, code=code)


def asked_nodes(cluster: CoreBroker, api_key: K) -> list[int]:
    """Return the nodes that requests of this kind went to."""
    return [asked.node for asked in cluster.asked if asked.api_key == api_key]


class StillLoading(CoreBroker):
    """Refuses the first list of groups."""

    def answer(self, asked: Asked, message: Any) -> Reply | Unanswered:
        if asked.api_key == K.LIST_GROUPS and len(self.requests(K.LIST_GROUPS)) == 1:
            message.error_code, message.groups = int(E.COORDINATOR_LOAD_IN_PROGRESS), []
        return super().answer(asked, message)


def test_the_producers_of_a_partition_are_asked_of_the_next_leader() -> None:
    cluster = CoreBroker(nodes=(1, 2), leaders={PLACE: 2})
    cluster.script(
        K.DESCRIBE_PRODUCERS, refused(E.NOT_LEADER_OR_FOLLOWER), Fault(applied=False, code=None)
    )
    # The leader moves when its first refusal is known.
    cluster.on_wait = lambda: cluster.leaders.update({PLACE: 1})
    session = cluster.session()
    assert cluster.run(describe_producers(session, PLACE)) == ()
    assert asked_nodes(cluster, K.DESCRIBE_PRODUCERS)[0] == 2
    assert len(asked_nodes(cluster, K.DESCRIBE_PRODUCERS)) == 3


def test_a_partition_without_a_leader_is_waited_for_until_the_time_is_over() -> None:
    cluster = CoreBroker(leaders={PLACE: -1})
    with pytest.raises(DeadlineExceeded, match=r"waiting for the leaders of .*out-0"):
        cluster.run(describe_producers(cluster.session(operation_timeout_ms=2_000), PLACE))
    assert asked_nodes(cluster, K.DESCRIBE_PRODUCERS) == []


def test_producers_are_refused_with_the_partition_and_the_code(cluster: CoreBroker) -> None:
    cluster.always[K.DESCRIBE_PRODUCERS] = refused(E.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match=r"describing the producers of out-0 .* topic 'out'"):
        cluster.run(describe_producers(cluster.session(), PLACE))
    with pytest.raises(UnknownTopic, match="topic 'out' has no partition 7"):
        cluster.run(describe_producers(cluster.session(), TopicPartition("out", 7)))


def test_groups_are_listed_by_state_when_all_brokers_have_loaded_theirs() -> None:
    cluster = StillLoading()
    session = cluster.session()
    cluster.run(commit_offsets(session, "g", {PLACE: CommittedOffset(1, "")}))
    assert cluster.run(list_groups(session)) == (GroupListing("g", "Empty", ""),)
    assert cluster.run(list_groups(session, ["Stable"])) == ()
    assert len(cluster.requests(K.LIST_GROUPS)) == 3


@pytest.mark.parametrize("version", [5, 6])
def test_a_group_that_does_not_exist_is_dead_and_has_no_members(version: int) -> None:
    cluster = CoreBroker(versions_max={K.DESCRIBE_GROUPS: version})
    session = cluster.session()
    cluster.script(K.DESCRIBE_GROUPS, refused(E.NOT_COORDINATOR))
    assert cluster.run(describe_group(session, "nowhere")).group_state == "Dead"
    assert cluster.run(group_members(session, "nowhere")) == ()


DECIDED = ["PrepareCommit", "PrepareAbort", "PrepareEpochFence"]


def description(state):
    return admin.TransactionDescription("t", state, 60_000, -1, 1, 0, ())


@pytest.fixture
def asked(monkeypatch):
    """Return the coordinator's answers, one for each question; the last repeats for ever."""
    states = []

    def describe(session, transactional_id):
        yield from ()
        state = states.pop(0) if len(states) > 1 else states[0]
        return None if state is None else description(state)

    monkeypatch.setattr(admin, "describe_transaction", describe)
    return states


@pytest.mark.parametrize("decided", DECIDED)
def test_the_markers_of_a_decided_transaction_are_waited_for(cluster, asked, decided):
    asked += [decided, decided, "CompleteCommit"]
    found = cluster.run(admin.describe_decided_transaction(cluster.session(), "t"))
    assert found == description("CompleteCommit")
    assert cluster.now_ms > 0


@pytest.mark.parametrize("state", ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort", None])
def test_another_transaction_is_described_at_once(cluster, asked, state):
    asked += [state]
    found = cluster.run(admin.describe_decided_transaction(cluster.session(), "t"))
    assert found == (state and description(state))
    assert cluster.now_ms == 0


def test_markers_that_do_not_come_are_named_with_the_state(cluster, asked):
    asked += ["PrepareCommit"]
    with pytest.raises(DeadlineExceeded, match=r"markers of transactional id 't'.*PrepareCommit"):
        cluster.run(admin.describe_decided_transaction(cluster.session(), "t"))
