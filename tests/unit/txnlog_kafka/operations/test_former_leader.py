"""Node 1 leads no more and does not know it: no record is taken to be gone because it says so.

Clients reach it and the other brokers do not, so that it answers from what it knew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from txnlog_kafka.errors import DeadlineExceeded, OffsetOutOfRange, UnknownTopic
from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.operations.effects import (
    ANOTHER_NODE,
    ANY_NODE,
    Call,
    Calls,
    Reply,
    Sleep,
    Unanswered,
)
from txnlog_kafka.operations.fetch import fetch_next
from txnlog_kafka.operations.fetch_cursor import FetchCursor
from txnlog_kafka.operations.majority import find_topic_ids
from txnlog_kafka.operations.metadata import (
    UNKNOWN_TOPIC_PATIENCE_MS,
    confirm_missing,
    require_leaders,
    require_topics,
)
from txnlog_kafka.operations.offsets import confirm_log_ends
from txnlog_kafka.operations.session import Session, SessionConfig
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import Record, encode_batch

P = ("in", 0)
ID, OTHER_ID = UUID(int=7), UUID(int=8)
FORMER, LEADER = 1, 2
METADATA = APIS[ApiKey.METADATA].response
LIST = APIS[ApiKey.LIST_OFFSETS].response
FETCH = APIS[ApiKey.FETCH].response
GONE = Unanswered("connection refused", sent=False)


@dataclass
class Known:
    """View of one node: the leader of P and its epoch, and the end of the node's own log."""

    leader: int = FORMER
    epoch: int = 4
    end: int = 10
    topic_id: UUID = ID
    has_topic: bool = True
    brokers: tuple[tuple[int, str], ...] = ()
    """Brokers that the node lists, with their hosts; empty for all brokers."""


@dataclass
class Brokers:
    """Nodes with a view of their own each; node 1 answers requests that may go to any node."""

    nodes: dict[int, Known | None] = field(
        default_factory=lambda: {1: Known(), 2: Known(LEADER, 5, 30), 3: Known(LEADER, 5, 30)}
    )
    now_ms: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)
    asking: Session | None = None

    def session(self, timeout_ms: int = 20_000) -> Session:
        self.asking = Session(lambda: self.now_ms, SessionConfig(operation_timeout_ms=timeout_ms))
        return self.asking

    def run(self, operation: Any) -> Any:
        try:
            ask = next(operation)
            while True:
                ask = operation.send(self._perform(ask))
        except StopIteration as stop:
            return stop.value

    def _perform(self, ask: Any) -> Any:
        if isinstance(ask, Sleep):
            self.now_ms += ask.duration_ms
            return None
        assert isinstance(ask, Calls)
        self.now_ms += 1
        return tuple(map(self._call, ask.calls))

    def _call(self, call: Call) -> Reply | Unanswered:
        node = FORMER if call.node in (ANY_NODE, ANOTHER_NODE) else call.node
        known = self.nodes[node]
        if self.asking is not None and call.node >= 0:
            address = self.asking.cluster.nodes.get(node)
            if address is None or address[0] != f"b{node}":
                return GONE
        name = type(call.message).__name__.removesuffix("Request")
        self.asked.append((name, node))
        if known is None:
            return GONE
        if name == "Metadata":
            return Reply(self._metadata(known), 12)
        if name == "ListOffsets":
            topic = LIST.ListOffsetsTopicResponse
            (asked,) = call.message.topics[0].partitions
            part = topic.ListOffsetsPartitionResponse(
                partition_index=0,
                error_code=E.NONE if known.leader == node else E.NOT_LEADER_OR_FOLLOWER,
                offset=known.end if asked.timestamp == -1 else 0,
            )
            return Reply(LIST(topics=[topic(name=P[0], partitions=[part])]), 7)
        (wanted,) = call.message.topics[0].partitions
        return Reply(self._fetched(known, wanted.fetch_offset), 12)

    def _metadata(self, known: Known) -> Any:
        topic = METADATA.MetadataResponseTopic
        part = topic.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=known.leader, leader_epoch=known.epoch
        )
        return METADATA(
            brokers=[
                METADATA.MetadataResponseBroker(node_id=node, host=host, port=9092)
                for node, host in known.brokers or [(n, f"b{n}") for n in self.nodes]
            ],
            cluster_id="c",
            controller_id=1,
            topics=[
                topic(
                    name=P[0],
                    topic_id=known.topic_id,
                    error_code=0 if known.has_topic else E.UNKNOWN_TOPIC_OR_PARTITION,
                    partitions=[part] if known.has_topic else [],
                )
            ],
        )

    def _fetched(self, known: Known, offset: int) -> Any:
        topic = FETCH.FetchableTopicResponse
        records = b""
        if offset < known.end:
            records = encode_batch([Record(None, b"v", 1)], base_offset=offset)
        part = topic.PartitionData(
            partition_index=0,
            error_code=E.NONE if offset <= known.end else E.OFFSET_OUT_OF_RANGE,
            high_watermark=known.end,
            last_stable_offset=known.end,
            log_start_offset=0,
            aborted_transactions=[],
            records=records,
            preferred_read_replica=-1,
        )
        return FETCH(responses=[topic(topic=P[0], partitions=[part])])


def read(brokers: Brokers, start: int, end: int) -> int:
    cursor = FetchCursor(P, start, end, True, 1000)
    return int(brokers.run(fetch_next(brokers.session(), cursor)).next_offset)


@pytest.mark.invariant(75)
def test_a_range_that_begins_beyond_the_former_leaders_log_is_read_of_the_leader() -> None:
    brokers = Brokers()
    assert read(brokers, 20, 25) == 21
    assert brokers.asked[-1] == ("Fetch", LEADER)


@pytest.mark.invariant(75)
def test_a_range_that_goes_on_beyond_the_former_leaders_log_is_not_loss() -> None:
    brokers = Brokers()
    assert read(brokers, 10, 25) == 11
    assert brokers.asked[-1] == ("Fetch", LEADER)


def test_a_log_that_ends_before_the_offset_at_the_leader_too_is_loss() -> None:
    brokers = Brokers()
    with pytest.raises(OffsetOutOfRange, match="30") as caught:
        read(brokers, 40, 45)
    assert caught.value.log_end_offset == 30
    assert brokers.now_ms >= UNKNOWN_TOPIC_PATIENCE_MS


@pytest.mark.invariant(75)
def test_while_most_brokers_do_not_answer_nothing_is_taken_to_be_gone() -> None:
    brokers = Brokers({1: Known(), 2: None, 3: None})
    with pytest.raises(DeadlineExceeded, match="1 of 3 answered: connection refused"):
        read(brokers, 20, 25)


@pytest.mark.invariant(75)
def test_while_the_leader_of_most_brokers_does_not_answer_nothing_is_taken_to_be_gone() -> None:
    """The client does not trust node 1, which says that it leads (cluster 5612)."""
    brokers = Brokers({1: Known(), 2: None, 3: Known(LEADER, 5, 30)})
    with pytest.raises(DeadlineExceeded, match=r"in-0 .*connection refused"):
        read(brokers, 20, 25)


@pytest.mark.invariant(75)
def test_the_next_leader_is_asked_after_one_that_does_not_answer() -> None:
    brokers = Brokers({1: Known(), 2: None, 3: Known(LEADER, 5, 30)})
    operation = fetch_next(brokers.session(), FetchCursor(P, 20, 25, True, 1000))
    ask = next(operation)
    with pytest.raises(StopIteration) as done:
        while True:
            if brokers.now_ms > 2 * UNKNOWN_TOPIC_PATIENCE_MS:
                brokers.nodes[3] = Known(3, 6, 30)
            ask = operation.send(brokers._perform(ask))
    assert done.value.value.next_offset == 21
    assert brokers.asked[-1] == ("Fetch", 3)


def test_a_log_whose_topic_is_deleted_meanwhile_has_no_end() -> None:
    brokers = Brokers()
    session = brokers.session()
    operation = confirm_log_ends_of(session, brokers, 50)
    ask = next(operation)
    for _ in range(3):
        ask = operation.send(brokers._perform(ask))
    for known in brokers.nodes.values():
        assert known is not None
        known.has_topic, known.leader = False, 9
    with pytest.raises(UnknownTopic):
        while True:
            ask = operation.send(brokers._perform(ask))


@pytest.mark.parametrize("timeout_ms", [300, 620, 1_000, 1_280, 2_000, 3_000, 5_000])
@pytest.mark.parametrize("creates", [False, True])
def test_under_a_short_timeout_the_error_names_the_topic_and_not_the_deadline(
    timeout_ms: int, creates: bool
) -> None:
    gone = Brokers({node: Known(has_topic=False) for node in (1, 2, 3)})
    with pytest.raises(UnknownTopic, match="the topic in does not exist"):
        gone.run(require_topics(gone.session(timeout_ms), [P[0]], allow_auto_create=creates))
    assert gone.now_ms < timeout_ms
    smaller = Brokers({1: Known()})
    with pytest.raises(UnknownTopic, match="topic 'in' has no partition 1, only 1"):
        smaller.run(require_leaders(smaller.session(timeout_ms), [(P[0], 1)]))
    missing = Brokers({1: Known()})
    lost = frozenset({(P[0], 1)})
    assert missing.run(confirm_missing(missing.session(timeout_ms), lost)) == lost
    short = Brokers()
    asking = confirm_log_ends_of(short.session(timeout_ms), short, 50)
    assert short.run(asking) == {P: 30}


def test_one_broker_alone_is_believed_at_once() -> None:
    brokers = Brokers({1: Known()})
    with pytest.raises(OffsetOutOfRange):
        read(brokers, 20, 25)
    assert brokers.now_ms < UNKNOWN_TOPIC_PATIENCE_MS


def test_a_topic_that_was_created_again_is_that_of_most_brokers() -> None:
    """Its epochs begin anew, and the former leader still has the one of before."""
    brokers = Brokers({1: Known(epoch=9), 2: Known(2, 0, 3, OTHER_ID), 3: Known(2, 0, 3, OTHER_ID)})
    session = brokers.session()
    found = brokers.run(confirm_log_ends_of(session, brokers, 20))
    assert found == {P: 3}


@pytest.mark.parametrize("newer", [UUID(int=6), UUID(int=8)])
def test_of_two_topics_that_equally_many_brokers_know_neither_is_believed(newer: UUID) -> None:
    """The topic was created again, node 1 has not heard of it, and node 3 does not answer."""
    brokers = Brokers({1: Known(epoch=9), 2: Known(2, 0, 30, newer), 3: None})
    session = brokers.session()
    with pytest.raises(DeadlineExceeded):
        brokers.run(confirm_log_ends_of(session, brokers, 20))


@pytest.mark.parametrize("listed", [((1, "b1"), (2, "b2")), ((1, "b1"), (2, "b2"), (3, "former"))])
def test_a_leader_that_came_back_is_asked_though_the_former_one_does_not_know_where_it_is(
    listed: tuple[tuple[int, str], ...],
) -> None:
    """Node 1 was cut off while node 3 was down, or had another address."""
    brokers = Brokers({1: Known(brokers=listed), 2: Known(3, 5, 30), 3: Known(3, 5, 30)})
    session = brokers.session()
    brokers.run(require_topics(session, [P[0]]))
    assert dict(listed) == {node: host for node, (host, _) in session.cluster.nodes.items()}
    assert brokers.run(confirm_log_ends(session, {P: 20}, {P: 10})) == {P: 30}
    assert brokers.now_ms < UNKNOWN_TOPIC_PATIENCE_MS, "asked at once, by its address"


STALE = ((1, "b1"), (2, "former"), (3, "b3"))


@pytest.mark.parametrize(("leader", "epoch", "said"), [(2, 7, 2), (1, 5, 1)])
def test_addresses_of_before_do_not_replace_those_that_answer(
    leader: int, epoch: int, said: int
) -> None:
    """Node 2 came back with another address, and leads or does not; node 3 is cut off since."""
    brokers = Brokers(
        {
            1: Known(leader, epoch, 30),
            2: Known(leader, epoch, 30),
            3: Known(said, 5, 10, brokers=STALE),
        }
    )
    session = brokers.session()
    brokers.run(require_topics(session, [P[0]]))
    for _ in range(2):
        assert brokers.run(confirm_log_ends(session, {P: 20}, {P: 10})) == {P: 30}
    assert session.cluster.nodes[2] == ("b2", 9092)


def test_addresses_do_not_come_from_what_was_said_of_a_topic_of_before() -> None:
    """The topic was deleted and created again, so that its epochs begin anew; node 3 is cut off."""
    brokers = Brokers(
        {1: Known(2, 0, 30, OTHER_ID), 2: Known(2, 0, 30, OTHER_ID), 3: Known(2, 9, brokers=STALE)}
    )
    session = brokers.session()
    brokers.run(require_topics(session, [P[0]]))
    for _ in range(2):
        assert brokers.run(confirm_log_ends(session, {P: 20}, {P: 10})) == {P: 30}


def test_brokers_that_were_taken_away_do_not_count_among_those_that_have_to_answer() -> None:
    """Node 3 was cut off before that, and still lists them."""
    listed = tuple((node, f"b{node}") for node in range(1, 7))
    three = listed[:3]
    brokers = Brokers(
        {
            1: Known(1, 7, 30, brokers=three),
            2: Known(1, 7, 30, brokers=three),
            3: Known(3, 5, 10, brokers=listed),
            **dict.fromkeys((4, 5, 6)),
        }
    )
    session = brokers.session()
    brokers.run(require_topics(session, [P[0]]))
    for _ in range(2):
        assert brokers.run(confirm_log_ends(session, {P: 20}, {P: 10})) == {P: 30}


@pytest.mark.parametrize(
    ("said", "most"),
    [
        ([OTHER_ID, OTHER_ID, OTHER_ID], OTHER_ID),
        ([ID, OTHER_ID, OTHER_ID], OTHER_ID),
        ([ID, ID, OTHER_ID], ID),
        ([UUID(int=0), OTHER_ID, UUID(int=0)], OTHER_ID),
        ([None, OTHER_ID, OTHER_ID], OTHER_ID),
        ([None, ID, OTHER_ID], None),
        ([UUID(int=0)] * 3, None),
    ],
)
def test_the_id_of_a_topic_is_the_one_that_most_brokers_say(
    said: list[UUID | None], most: UUID | None
) -> None:
    nodes = {n: None if each is None else Known(topic_id=each) for n, each in enumerate(said, 1)}
    brokers = Brokers(nodes)
    session = brokers.session()
    session.cluster = ClusterView({n: (f"b{n}", 9092) for n in nodes})
    found = brokers.run(find_topic_ids(session, [P[0]], deadline=session.deadline()))
    assert found == ({} if most is None else {P[0]: most.bytes})


def test_a_broker_that_says_no_topic_ids_knows_the_same_topic_as_one_that_does() -> None:
    brokers = Brokers({1: Known(2, 5, 30, UUID(int=0)), 2: Known(2, 5, 30, ID)})
    session = brokers.session()
    brokers.run(require_topics(session, [P[0]]))
    assert brokers.run(confirm_log_ends(session, {P: 20}, {P: 10})) == {P: 30}


def confirm_log_ends_of(session: Session, brokers: Brokers, position: int) -> Any:
    nodes = {node: (f"b{node}", 9092) for node in brokers.nodes}
    session.cluster = ClusterView(nodes=nodes)
    return confirm_log_ends(session, {P: position}, {P: 10})


@pytest.mark.invariant(75)
@pytest.mark.parametrize("ask", ["missing", "topics", "leaders"])
def test_a_topic_that_one_broker_does_not_know_exists(ask: str) -> None:
    brokers = Brokers()
    former = brokers.nodes[FORMER]
    assert former is not None
    former.has_topic = False
    session = brokers.session()
    if ask == "missing":
        assert brokers.run(confirm_missing(session, [P])) == frozenset()
    elif ask == "topics":
        brokers.run(require_topics(session, [P[0]]))
    else:
        brokers.run(require_leaders(session, [P]))
    assert session.cluster.leader(P) == LEADER


@pytest.mark.parametrize("ask", ["missing", "topics", "partition"])
def test_what_no_broker_knows_does_not_exist(ask: str) -> None:
    brokers = Brokers()
    session = brokers.session()
    if ask == "partition":
        with pytest.raises(UnknownTopic, match="has no partition 4"):
            brokers.run(require_leaders(session, [(P[0], 4)]))
        return
    for known in brokers.nodes.values():
        assert known is not None
        known.has_topic = False
    if ask == "missing":
        assert brokers.run(confirm_missing(session, [P])) == {P}
        return
    with pytest.raises(UnknownTopic):
        brokers.run(require_topics(session, [P[0]]))


def test_after_a_failure_another_node_is_asked() -> None:
    """A node whose answer does not help would otherwise be asked for ever."""
    brokers = Brokers()
    session, asked = brokers.session(), []
    perform = brokers._call

    def note(call: Call) -> Reply | Unanswered:
        asked.append(call.node)
        return perform(call)

    brokers._call = note  # type: ignore[method-assign]
    for known in brokers.nodes.values():
        assert known is not None
        known.has_topic = False
    with pytest.raises(UnknownTopic):
        brokers.run(require_topics(session, [P[0]]))
    assert asked[0] == ANY_NODE
    assert set(asked[1:-1]) == {ANOTHER_NODE, 1, 2, 3}
    assert asked[-1] == ANY_NODE, "for a name that is near"
    asked.clear()
    brokers.nodes = {1: Known()}
    brokers.run(require_topics(session, [P[0]]))
    assert asked == [ANY_NODE]
