"""Have connections, topics, groups, transactional ids and producers come to a broker and go again.

Each function gets names. Something with each name comes, is used and goes, or is left to what
removes it from a broker after a while: the end of a session, the expiry of offsets, ids and
producers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.raw.raw import RawProducer
from support.raw.raw_admin import create_topics, new_topic
from support.raw.requests import request
from support.raw.swarm import Peer, connect

from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import ApiKey

ORDERS = "orders"
"""A topic that stays."""
AT_ONCE = 100
SESSION_MS = 3000
RETENTION_MS = 1000
DELETED, EXPIRED, LEFT, SILENT, NEVER_JOINED = range(5)
"""Ways in which groups go."""

Churn = Callable[[Any, Sequence[str]], None]
"""(what has the method `ask` of a connection, and finds the right broker; names)"""


async def connect_and_close(port: int, count: int) -> None:
    """Open and close `count` connections, which say all sorts of things, or nothing."""
    for done in range(0, count, AT_ONCE):
        for number, peer in enumerate(await connect(port, min(AT_ONCE, count - done))):
            await SAYINGS[number % len(SAYINGS)](peer)
            peer.close()


async def _say_nothing(_peer: Peer) -> None:
    pass


async def _ask_for_versions(peer: Peer) -> None:
    names = {"client_software_name": "s", "client_software_version": "1"}
    await peer.ask(request(ApiKey.API_VERSIONS, **names), 3)


async def _ask_in_an_unknown_version(peer: Peer) -> None:
    peer.writer.write(b"\0\0\0\x0c" + b"\0\1\x7f\0" + b"\0\0\0\1" + b"\0\2me")
    assert await peer.is_closed()


async def _say_nonsense(peer: Peer) -> None:
    peer.writer.write(b"\xff" * 40)
    assert await peer.is_closed()


async def _say_half_a_frame(peer: Peer) -> None:
    peer.writer.write(b"\0\0\1\0abc")


SAYINGS = (
    _say_nothing,
    _ask_for_versions,
    _ask_in_an_unknown_version,
    _say_nonsense,
    _say_half_a_frame,
)


def churn_topics(connection: Any, names: Sequence[str]) -> None:
    """Created, written to, and deleted."""
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        created = create_topics(connection, *(new_topic(name, 1) for name in some))
        assert {each.error_code for each in created.values()} == {0}
        for name in some:
            churn_producers(connection, [name], topic=name)
        message = request(
            ApiKey.DELETE_TOPICS, topics=[{"name": name} for name in some], timeout_ms=30_000
        )
        answer = connection.ask(message, 6)
        assert {each.error_code for each in answer.responses} == {0}


def churn_producers(connection: Any, names: Sequence[str], topic: str = ORDERS) -> None:
    """Have idempotent producers come, each of which writes once."""
    for name in names:
        producer = RawProducer(connection)
        assert producer.init() == "NONE"
        assert producer.produce(topic, 0, name) == "NONE"


def churn_transactional_ids(connection: Any, names: Sequence[str]) -> None:
    """Have transactional ids come: each writes, commits an offset, and commits or aborts."""
    for number, name in enumerate(names):
        producer = RawProducer(connection, name)
        assert producer.init() == "NONE"
        bumps = number % 2 == 0
        if not bumps:
            assert producer.add_partitions(ORDERS, 0) == "NONE"
            assert producer.add_offsets(ORDERS) == "NONE"
        assert producer.produce(ORDERS, 0, name, version=12 if bumps else 11) == "NONE"
        committed = producer.commit_offset(ORDERS, ORDERS, 0, number, version=5 if bumps else 4)
        assert committed == "NONE"
        assert producer.end(commit=number % 3 > 0, version=5 if bumps else 4) == "NONE"


def churn_groups(connection: Any, names: Sequence[str]) -> None:
    """Have groups come: with offsets that are deleted or expire, and with a member that leaves, or
    that falls silent once it has joined, or once it has a member id."""
    for number, name in enumerate(names):
        way = number % (NEVER_JOINED + 1)
        if way in (DELETED, EXPIRED):
            _commit(connection, name, retention_ms=-1 if way == DELETED else RETENTION_MS)
            if way == DELETED:
                answer = connection.ask(request(ApiKey.DELETE_GROUPS, groups_names=[name]), 2)
                assert answer.results[0].error_code == 0
        else:
            _join(connection, name, way)


def _commit(connection: Any, group: str, retention_ms: int) -> None:
    place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": group}
    message = request(
        ApiKey.OFFSET_COMMIT,
        group_id=group,
        retention_time_ms=retention_ms,
        topics=[{"name": ORDERS, "partitions": [place]}],
    )
    (answer,) = connection.ask(message, 4).topics[0].partitions
    assert error_name(answer.error_code) == "NONE"


def _join(connection: Any, group: str, way: int) -> None:
    message = request(
        ApiKey.JOIN_GROUP,
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    message.member_id = connection.ask(message, 5).member_id
    if way == NEVER_JOINED:
        return None
    joined = connection.ask(message, 5)
    if error_name(joined.error_code) == "UNKNOWN_MEMBER_ID":
        # The sweep of expired offsets took the group, which had none yet, as in Kafka.
        return _join(connection, group, way)
    assert joined.error_code == 0
    member = {"member_id": joined.member_id}
    sync = request(
        ApiKey.SYNC_GROUP,
        group_id=group,
        generation_id=joined.generation_id,
        **member,
        assignments=[member | {"assignment": b"all"}],
    )
    assert connection.ask(sync, 3).error_code == 0
    if way == LEFT:
        leave = request(ApiKey.LEAVE_GROUP, group_id=group, members=[member])
        assert connection.ask(leave, 4).error_code == 0
    return None


CHURN: dict[str, Churn] = {
    "topics": churn_topics,
    "groups": churn_groups,
    "transactional ids": churn_transactional_ids,
    "producers": churn_producers,
}
