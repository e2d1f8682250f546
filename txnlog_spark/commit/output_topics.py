"""The identity of the topics that a query writes to.

A topic that is deleted and created again under its name is another topic, with another id: what the
query committed in the former one is gone for its readers. So the ids are recorded with the batch
that is begun (`journal`), and compared before the next transaction begins.
"""

from __future__ import annotations

from collections.abc import Mapping

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import recreated_topics, require_leaders
from txnlog_kafka.operations.session import Session
from txnlog_spark.commit.attempt import TransactionTry
from txnlog_spark.commit.plan import CommitPlan, OutputTopic
from txnlog_spark.errors import DataLoss


def identify_topics(session: Session, attempt: TransactionTry) -> Operation[dict[str, OutputTopic]]:
    """Return all topics that the query has written to, with those of this batch.

    Raises DataLoss for a topic that was created again since the query wrote to it, unless the
    writer has failOnDataLoss=false; UnknownTopic.
    """
    plan = attempt.plan
    yield from require_leaders(session, attempt.written, allow_auto_create=True)
    known = {} if plan.begun is None else dict(plan.begun.topics)
    written = {partition.topic for partition in attempt.written}
    noted = {t: known[t].topic_id for t in written if t in known and known[t].topic_id}
    recreated = yield from recreated_topics(session, noted)
    cluster = session.cluster
    ids = cluster.topic_ids(written) | noted | recreated
    now = {t: OutputTopic(each, len(cluster.partitions(t))) for t, each in ids.items()}
    if recreated:
        _report(session, plan, {t: (known[t], now[t]) for t in recreated})
    return known | now


def _report(
    session: Session, plan: CommitPlan, changed: Mapping[str, tuple[OutputTopic, OutputTopic]]
) -> None:
    text = "; ".join(
        f"topic {topic} was deleted and created again (topic id {was.topic_id} with "
        f"{was.partitions} partitions before, {now.topic_id} with {now.partitions} now)"
        for topic, (was, now) in sorted(changed.items())
    )
    text = f"{text}: the rows that {plan.query} had committed in it are gone for its readers"
    if not plan.committer.options.fail_on_data_loss:
        session.notice(f"{text}; failOnDataLoss=false: the query goes on")
        return
    raise DataLoss(
        f"{text}. {plan.wrote_nothing}. Look whether the broker created it by itself "
        "(auto.create.topics.enable) with other partitions or another configuration than it had. "
        "To go on with the topic as it is now, start the query with the writer's option "
        "failOnDataLoss=false until the batch is done. To write all rows again, start a new "
        "checkpoint with another group.id and startingOffsets=earliest"
    )
