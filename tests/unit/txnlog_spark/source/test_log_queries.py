"""Selection of partitions for a read, from answers that a lagging broker may give."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from support.query.source_cluster import run

from txnlog_kafka.operations import metadata, offsets
from txnlog_kafka.operations.cluster_view import NO_TOPIC_ID, ClusterView, TopicView, topic_id_text
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.offsets import ListedOffset
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DeadlineExceeded, OptionError, UnknownTopic
from txnlog_spark.source.log_queries import LogQueries
from txnlog_spark.source.settings import SourceSettings, read_source_settings


class Topics:
    """Partition counts by topic, and the gaps in the knowledge of the broker that is asked first.

    That broker's list of all topics lacks the topics in `unlisted`, and the last `lag` partitions
    of each topic.
    """

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.unlisted: set[str] = set()
        self.lag: dict[str, int] = {}
        self.asked: list[set[str] | None] = []

    def matching_topics(
        self, session: Session, selects: Callable[[str], bool]
    ) -> Operation[dict[str, tuple[int, ...]]]:
        listed = filter(selects, set(self.counts) - self.unlisted)
        found = yield from self.topic_partitions(session, listed)
        self.asked[-1] = None
        return found

    def topic_partitions(
        self, _session: Session, topics: Iterable[str]
    ) -> Operation[dict[str, tuple[int, ...]]]:
        yield from ()
        names = set(topics)
        self.asked.append(names)
        missing = tuple(sorted(names - set(self.counts)))
        if missing:
            raise UnknownTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone", topics=missing)
        return {name: tuple(range(self.counts[name] - self.lag.get(name, 0))) for name in names}

    def confirm_missing(
        self, _session: Session, partitions: Iterable[TopicPartition]
    ) -> Operation[frozenset[TopicPartition]]:
        yield from ()
        return frozenset(p for p in partitions if p.partition >= self.counts.get(p.topic, 0))


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    made = Topics(a1=2, a2=1, b=1)
    for name in ("matching_topics", "topic_partitions", "confirm_missing"):
        monkeypatch.setattr(metadata, name, getattr(made, name))
    return made


def asked(settings: SourceSettings) -> LogQueries:
    return LogQueries(Session(lambda: 0), settings)


def discover(settings: SourceSettings, **known: object) -> tuple[TopicPartition, ...]:
    return run(asked(settings).discover(**known))


def settings(**options: str) -> SourceSettings:
    return read_source_settings({"kafka.bootstrap.servers": "h:1", **options}, streaming=True)


A1 = (TopicPartition("a1", 0), TopicPartition("a1", 1))
A2 = (TopicPartition("a2", 0),)
B = (TopicPartition("b", 0),)
PATTERN = {"subscribePattern": "a."}


def test_a_topic_that_is_read_is_not_given_up_because_one_broker_does_not_list_it(
    topics: Topics,
) -> None:
    # Given up and found again it would be a new topic, read once more from its start.
    topics.unlisted = {"a1", "b"}
    assert discover(settings(**PATTERN)) == A2
    assert discover(settings(**PATTERN), known=(*A1, *A2, *B)) == A1 + A2


@pytest.mark.parametrize("options", [PATTERN, {"subscribe": "a1,a2"}])
def test_a_partition_that_is_read_is_not_given_up_because_one_broker_has_not_heard_of_it(
    topics: Topics, options: dict[str, str]
) -> None:
    topics.lag = {"a1": 1}
    assert discover(settings(**options)) == A1[:1] + A2
    assert discover(settings(**options), known=A1 + A2) == A1 + A2


def test_an_assigned_partition_is_refused_only_when_it_is_asked_for_in_vain(topics: Topics) -> None:
    topics.lag = {"a1": 1}
    assert discover(settings(assign='{"a1":[0,1]}')) == A1
    with pytest.raises(OptionError, match="a1-2"):
        discover(settings(assign='{"a1":[0,2]}'))


def test_what_is_gone_is_given_up(topics: Topics) -> None:
    topics.counts = {"a1": 1, "b": 1}
    assert discover(settings(**PATTERN), known=(*A1, *A2, *B)) == A1[:1]
    with pytest.raises(UnknownTopic) as caught:
        discover(settings(subscribe="a1,a2"), known=A1 + A2)
    assert caught.value.topics == ("a2",)
    assert discover(settings(subscribe="a1,a2"), known=A1 + A2, without={"a2"}) == A1[:1]


@pytest.mark.parametrize(
    "options", [{"subscribe": "a1,a2"}, {"assign": '{"a1":[0,1],"a2":[0]}'}, PATTERN]
)
def test_a_topic_can_be_left_out_of_any_selection(topics: Topics, options: dict[str, str]) -> None:
    assert discover(settings(**options)) == A1 + A2
    assert discover(settings(**options), without={"a2"}) == A1
    assert discover(settings(**options), without={"a1", "a2"}) == ()


def test_the_topics_that_a_pattern_matched_are_asked_for_by_name(topics: Topics) -> None:
    topics.counts["a3"] = 1
    assert discover(settings(**PATTERN), known=A1, matching={"a1", "a2"}) == A1 + A2
    assert topics.asked == [{"a1", "a2"}]
    assert discover(settings(**PATTERN), without={"a1"}, matching={"a1", "a2"}) == A2
    assert topics.asked[1:] == [{"a2"}]


def test_all_topics_are_listed_when_one_that_a_pattern_matched_is_gone(topics: Topics) -> None:
    topics.counts = {"a1": 2, "a3": 1, "b": 1}
    found = discover(settings(**PATTERN), known=A1 + A2, matching={"a1", "a2"})
    assert found == (*A1, TopicPartition("a3", 0))
    assert topics.asked == [{"a1", "a2"}, None]


def test_offsets_are_asked_for_as_often_as_the_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [
        DeadlineExceeded("listing", 5, "no broker"),
        DeadlineExceeded("listing", 5, "no broker"),
    ]

    def listed(_session: Session, specs: dict, **_how: object) -> Operation[dict]:
        yield from ()
        if fails:
            raise fails.pop()
        return {name: ListedOffset(7, -1) for name in specs}

    monkeypatch.setattr(offsets, "list_offsets", listed)
    given = {"fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "40"}
    asking = asked(settings(subscribe="b", **given)).latest(B)
    assert [next(asking), next(asking)] == [Sleep(40), Sleep(40)]
    assert run(asking) == {B[0]: 7}
    fails[:] = [DeadlineExceeded("listing", 5, "no broker")]
    with pytest.raises(DeadlineExceeded):
        run(asked(settings(subscribe="b")).latest(B))


FIRST, SECOND = bytes(15) + b"\x01", bytes(15) + b"\x02"


@pytest.mark.parametrize(
    ("said", "most", "recreated"),
    [
        (FIRST, SECOND, {}),
        (SECOND, SECOND, {"t": topic_id_text(SECOND)}),
        (SECOND, FIRST, {}),
        (SECOND, None, {}),
        (NO_TOPIC_ID, SECOND, {}),
    ],
)
def test_a_topic_is_recreated_when_most_brokers_say_so_and_they_are_asked_only_if_one_does(
    monkeypatch: pytest.MonkeyPatch, said: bytes, most: bytes | None, recreated: dict[str, str]
) -> None:
    asked = []

    def find_topic_ids(_session, topics, *, deadline) -> Operation[dict[str, bytes]]:
        yield from ()
        asked.append(sorted(topics))
        return {} if most is None else {"t": most}

    monkeypatch.setattr(metadata, "find_topic_ids", find_topic_ids)
    session = Session(lambda: 0, cluster=ClusterView(topics={"t": TopicView(said, {0: 1})}))
    settings = read_source_settings({"path": "p", "subscribe": "t"}, streaming=True)
    noted = {"t": topic_id_text(FIRST)}
    assert run(LogQueries(session, settings).recreated(noted)) == recreated
    assert asked == ([["t"]] if said == SECOND else [])
