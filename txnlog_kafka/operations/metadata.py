"""Operations that keep the view of the cluster: metadata, leaders."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence

from txnlog_kafka.errors import TxnLogError, UnknownTopic
from txnlog_kafka.operations.calls import call_any
from txnlog_kafka.operations.cluster_view import NO_LEADER, topic_id_text
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.majority import find_missing, find_topic_ids
from txnlog_kafka.operations.retry import Subject, decide, error_of
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.version import __version__
from txnlog_kafka.wire.error_codes import RETRIABLE, ErrorCode, error_name
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

CLIENT_SOFTWARE_NAME = "txnlog-spark"
KAFKA_INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)

UNKNOWN_TOPIC_PATIENCE_MS = 3_000
"""Time for which a topic or a partition has to stay unknown; less under a short timeout."""
NEAR = 0.75
"""Ratio of likeness, by `difflib`, from which one name may be a typing error of another."""

_METADATA = APIS[ApiKey.METADATA]
_API_VERSIONS = APIS[ApiKey.API_VERSIONS]


def refresh_metadata(
    session: Session,
    topics: Iterable[str] | None,
    *,
    allow_auto_create: bool = False,
    deadline: Deadline | None = None,
) -> Operation[dict[str, int]]:
    """Ask for nodes and `topics` (None for all); return the error code of each topic that has one.

    Updates `session.cluster`. A cluster that was never reached has `bootstrap_timeout_ms` to
    answer, so that a wrong address is an error soon. Raises WrongCluster.
    """
    if not session.cluster.nodes:
        deadline = session.deadline(session.config.bootstrap_timeout_ms)
    deadline = deadline or session.deadline()
    names = None if topics is None else sorted(set(topics))
    message = _METADATA.request(
        topics=None
        if names is None
        else [_METADATA.request.MetadataRequestTopic(name=n) for n in names],
        allow_auto_topic_creation=allow_auto_create,
    )
    doing = "reading the cluster's metadata"
    reply = yield from call_any(message, doing=doing, deadline=deadline)
    session.check_cluster(reply.message)
    session.cluster = session.cluster.merged(reply.message, all_topics=names is None)
    return {t.name: int(t.error_code) for t in reply.message.topics if t.error_code != 0}


def require_cluster(session: Session) -> Operation[None]:
    """Ask for the nodes and the cluster's id, if they are not known yet."""
    if not session.cluster.nodes:
        yield from refresh_metadata(session, ())


def require_topics(
    session: Session,
    topics: Iterable[str],
    *,
    allow_auto_create: bool = False,
    deadline: Deadline | None = None,
) -> Operation[None]:
    """Wait until every topic is known. Raises UnknownTopic, or FatalError for a refusal.

    The client believes "unknown" only when it is answered repeatedly for a while, and in the end by
    most brokers: a restarting broker may not know its topics at once (librdkafka 1.9), and creating
    a topic takes time.
    """
    wanted = sorted(set(topics))
    deadline = deadline or session.deadline()
    doing = f"waiting for the topics {', '.join(wanted)}"
    wait_ms = session.config.topic_wait_ms if allow_auto_create else UNKNOWN_TOPIC_PATIENCE_MS
    patience_ms = deadline.patience_ms(wait_ms)
    unknown_since_ms: int | None = None
    while True:
        errors = yield from refresh_metadata(
            session, wanted, allow_auto_create=allow_auto_create, deadline=deadline
        )
        missing = tuple(t for t in wanted if not session.cluster.partitions(t))
        if not missing:
            return
        _check_topic_errors(errors)
        # Another error than "unknown" shows that the topic exists: the patience begins again.
        now_ms = session.monotonic_ms()
        if any(errors.get(t) != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for t in missing):
            unknown_since_ms = None
        elif unknown_since_ms is None:
            unknown_since_ms = now_ms
        elif now_ms - unknown_since_ms >= patience_ms:
            gone = yield from find_missing(
                session, [TopicPartition(t, 0) for t in missing], deadline=deadline
            )
            if gone:
                names = sorted({topic for topic, _ in gone})
                near = yield from _nearest(session, names, deadline.left_ms)
                raise _no_topics(names, near)
            if all(session.cluster.partitions(t) for t in wanted):
                return
        yield from deadline.backoff(doing, f"not known yet: {', '.join(missing)}")


def topic_partitions(
    session: Session, topics: Iterable[str], *, allow_auto_create: bool = False
) -> Operation[dict[str, tuple[int, ...]]]:
    """Return partition numbers by topic.

    Raises UnknownTopic naming every topic that is missing, DeadlineExceeded.
    """
    names = sorted(set(topics))
    yield from require_topics(session, names, allow_auto_create=allow_auto_create)
    return {name: session.cluster.partitions(name) for name in names}


def matching_topics(
    session: Session, selects: Callable[[str], bool]
) -> Operation[dict[str, tuple[int, ...]]]:
    """Return partition numbers by topic for all topics that `selects` accepts, without internal
    topics.

    Kafka has no question for names alone: the answer has every partition of every topic. The client
    forgets the topics that were not selected, so that it does not hold a large cluster. Raises
    DeadlineExceeded.
    """
    yield from refresh_metadata(session, None)
    names = sorted(set(session.cluster.topics) - KAFKA_INTERNAL_TOPICS)
    session.cluster = session.cluster.with_topics(filter(selects, names))
    return {name: session.cluster.partitions(name) for name in sorted(session.cluster.topics)}


def _nearest(session: Session, names: Sequence[str], left_ms: int) -> Operation[list[str]]:
    """Ask once more, for all topics, and return topics with nearly these names for the error."""
    before, deadline = session.cluster, session.deadline(min(left_ms, UNKNOWN_TOPIC_PATIENCE_MS))
    try:
        yield from refresh_metadata(session, None, deadline=deadline)
    except TxnLogError:
        return []  # the error about the topics is on its way, and says more than this one
    there = sorted(set(session.cluster.topics) - KAFKA_INTERNAL_TOPICS)
    session.cluster = before  # a client does not hold a large cluster
    found = [difflib.get_close_matches(name, there, n=1, cutoff=NEAR) for name in names]
    return [near for each in found for near in each]


def _no_topics(names: Sequence[str], near: Sequence[str]) -> UnknownTopic:
    advice = f" (did you mean {', '.join(near)}?)" if near else ""
    missing = (
        f"the topic {names[0]} does not exist: create it, or correct the name"
        if len(names) == 1
        else f"the topics {', '.join(names)} do not exist: create them, or correct the names"
    )
    return UnknownTopic(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{missing}{advice}", topics=tuple(names)
    )


def confirm_missing(
    session: Session, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> Operation[frozenset[TopicPartition]]:
    """Return the `partitions` that the metadata of most brokers does not have, repeatedly for a
    while.

    A partition counts as existing if one answer has it, or has any error but
    UNKNOWN_TOPIC_OR_PARTITION for its topic. Creates nothing. Raises DeadlineExceeded.
    """
    deadline = deadline or session.deadline()
    missing = frozenset(partitions)
    until_ms = session.monotonic_ms() + deadline.patience_ms(UNKNOWN_TOPIC_PATIENCE_MS)
    while missing:
        missing = yield from find_missing(session, missing, deadline=deadline)
        if session.monotonic_ms() >= until_ms:
            break
        if missing:
            names = ", ".join(f"{topic}-{number}" for topic, number in sorted(missing)[:5])
            yield from deadline.backoff(
                f"making sure that {len(missing)} partitions ({names}) are gone",
                error_name(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            )
    return missing


def _check_topic_errors(errors: dict[str, int]) -> None:
    for topic, code in sorted(errors.items()):
        if code in RETRIABLE:
            continue
        if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise UnknownTopic(code, f"the topic name {topic!r} is not allowed", topics=(topic,))
        subject = Subject(ApiKey.METADATA, (topic,))
        doing = f"reading the metadata of topic {topic!r}"
        raise error_of(decide(ApiKey.METADATA, code), code, doing, subject)


def require_leaders(
    session: Session,
    partitions: Iterable[TopicPartition],
    *,
    allow_auto_create: bool = False,
    deadline: Deadline | None = None,
) -> Operation[None]:
    """Wait until each partition has a known leader.

    Raises UnknownTopic for a topic or a partition number that stays unknown for a while: a broker
    may not have heard of added partitions yet. Raises DeadlineExceeded.
    """
    deadline = deadline or session.deadline()
    wanted = list(partitions)
    absent_since_ms: int | None = None
    while True:
        lost = [p for p in wanted if session.cluster.leader(p) == NO_LEADER]
        if not lost:
            return
        yield from require_topics(
            session,
            {topic for topic, _ in lost},
            allow_auto_create=allow_auto_create,
            deadline=deadline,
        )
        # A broker may not have heard of added partitions yet: only most brokers are believed.
        absent = [p for p in lost if p[1] not in session.cluster.partitions(p[0])]
        now_ms = session.monotonic_ms()
        if not absent:
            absent_since_ms = None
        elif absent_since_ms is None:
            absent_since_ms = now_ms
        elif now_ms - absent_since_ms >= deadline.patience_ms(UNKNOWN_TOPIC_PATIENCE_MS):
            gone = yield from find_missing(session, absent, deadline=deadline)
            if gone:
                raise _no_partition(session, *min(gone))
        # The partitions exist, and their leaders are being elected.
        lost = [p for p in wanted if session.cluster.leader(p) == NO_LEADER]
        if lost:
            names = ", ".join(f"{topic}-{number}" for topic, number in lost[:5])
            yield from deadline.backoff(
                f"waiting for the leaders of {len(lost)} partitions ({names})",
                error_name(ErrorCode.LEADER_NOT_AVAILABLE),
            )


def _no_partition(session: Session, topic: str, number: int) -> UnknownTopic:
    count = len(session.cluster.partitions(topic))
    return UnknownTopic(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic!r} has no partition {number}, only {count}",
        topics=(topic,),
    )


def api_versions_request(broker: tuple[str, int] | None = None) -> Message:
    """Return the first request to each broker, with this software's name.

    `broker` is the cluster and the node that is meant: another one refuses, from Kafka 4.4 on
    (KIP-1242).
    """
    message = _API_VERSIONS.request(
        client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=__version__
    )
    if broker is not None:
        message.cluster_id, message.node_id = broker
    return message


def recreated_topics(session: Session, noted: Mapping[str, str]) -> Operation[dict[str, str]]:
    """Return the new ids, as text, of topics that were deleted and created again since they had the
    `noted` ids.

    The client does not believe one broker alone: it may not know the current topic yet. Raises
    DeadlineExceeded.
    """
    unknown = [topic for topic in noted if not session.cluster.partitions(topic)]
    if unknown:
        yield from refresh_metadata(session, unknown)
    now = session.cluster.topic_ids(noted)
    suspects = {topic for topic, each in now.items() if each != noted[topic]}
    if not suspects:
        return {}
    most = yield from find_topic_ids(session, suspects, deadline=session.deadline())
    ids = {topic: topic_id_text(each) for topic, each in most.items()}
    return {topic: each for topic, each in ids.items() if each != noted[topic]}
