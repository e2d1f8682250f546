"""The identity of the topics that a query writes to.

A topic that is deleted and created again under its name is another topic, with another id: what the
query committed in the former one is gone for its readers. So the ids are recorded with the batch
that is begun (`journal`), and compared before the next transaction begins.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnlog_kafka.operations.cluster_view import NO_TOPIC_ID, topic_id_text
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.majority import find_topic_ids
from txnlog_kafka.operations.metadata import require_leaders
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.attempt import TransactionTry
from txnlog_spark.commit.plan import CommitPlan, OutputTopic
from txnlog_spark.commit.refusals import nothing_written
from txnlog_spark.errors import DataLoss


def identify_topics(session: Session, attempt: TransactionTry) -> Operation[dict[str, OutputTopic]]:
    """Return all topics that the query has written to, with those of this batch.

    Raises DataLoss for a topic that was created again since the query wrote to it, unless the
    writer has failOnDataLoss=false; UnknownTopic.
    """
    plan = attempt.plan
    staged = sorted({TopicPartition(part.topic, part.partition) for part in attempt.staged})
    yield from require_leaders(session, staged, allow_auto_create=True)
    known = {} if plan.begun is None else dict(plan.begun.topics)
    now = {topic: _identity(session, topic) for topic in {p.topic for p in staged}}
    suspects = [t for t, each in now.items() if t in known and each.topic_id != known[t].topic_id]
    if suspects:
        # One broker is not believed: it may not know the topic of today yet.
        ids = yield from find_topic_ids(session, suspects, deadline=session.deadline())
        for topic, found in ids.items():
            now[topic] = OutputTopic(topic_id_text(found), now[topic].partitions)
        _report(session, plan, {t: (known[t], now[t]) for t in ids if now[t] != known[t]})
    return known | {topic: each for topic, each in now.items() if each.topic_id}


def _identity(session: Session, topic: str) -> OutputTopic:
    """As the broker that was asked last knows it; without an id before Kafka 2.8."""
    found = session.cluster.topic_id(topic)
    topic_id = "" if found == NO_TOPIC_ID else topic_id_text(found)
    return OutputTopic(topic_id, len(session.cluster.partitions(topic)))


def _report(
    session: Session, plan: CommitPlan, changed: Mapping[str, tuple[OutputTopic, OutputTopic]]
) -> None:
    recreated = {t: pair for t, pair in changed.items() if pair[0].topic_id != pair[1].topic_id}
    if not recreated:
        return
    text = "; ".join(
        f"topic {topic} was deleted and created again (topic id {was.topic_id} with "
        f"{was.partitions} partitions before, {now.topic_id} with {now.partitions} now)"
        for topic, (was, now) in sorted(recreated.items())
    )
    text = f"{text}: the rows that {plan.query} had committed in it are gone for its readers"
    if not plan.committer.options.fail_on_data_loss:
        session.notice(f"{text}; failOnDataLoss=false: the query goes on")
        return
    raise DataLoss(
        f"{text}. {nothing_written(plan)}. Look whether the broker created it by itself "
        "(auto.create.topics.enable) with other partitions or another configuration than it had. "
        "To go on with the topic as it is now, start the query with the writer's option "
        "failOnDataLoss=false until the batch is done. To write all rows again, start a new "
        "checkpoint with another group.id and startingOffsets=earliest"
    )
