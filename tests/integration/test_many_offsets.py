"""A batch whose offsets are more than one record batch of `__consumer_offsets` can hold."""

from __future__ import annotations

import pytest
from support.query.commit_plans import build_plan, changed, commit_on, new_checkpoint
from support.raw.raw import Connection
from support.raw.raw_admin import SET, TOPIC, change_configs

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.offsets import OFFSET_RECORDS_BYTES_MAX
from txnlog_kafka.wire.records import HEADER_BYTES
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.errors import FatalError

pytestmark = pytest.mark.live
WEEKLY_ON_KAFKA = [
    "broker_sim",
    pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.weekly]),
]
COUNT = 150
GROUP_LETTERS, TOPIC_LETTERS = 8_000, 240
LIMIT = OFFSET_RECORDS_BYTES_MAX + HEADER_BYTES
"""The size of a record batch that holds as many offsets as one request leads to."""


def plan_of(client, unique) -> CommitPlan:
    """Batch 0 of a query; names are long, so that 150 partitions do for thousands."""
    source, out, group = (unique(name) for name in ("in", "out", "g"))
    source, group = source.ljust(TOPIC_LETTERS, "-"), group.ljust(GROUP_LETTERS, "-")
    client.create_topic(source, partitions=COUNT)
    client.create_topic(out, partitions=1)
    return build_plan(
        staged=(),
        transactional_id=unique("t"),
        group_id=group,
        progress_group_id=unique("progress"),
        source_offsets={(source, number): number + 1 for number in range(COUNT)},
    )


def next_batch(plan: CommitPlan) -> CommitPlan:
    """Batch 1, which has read one record more of each partition."""
    ends = {p: end + 1 for p, end in plan.batch.source_offsets.items()}
    return changed(plan, batch_id=1, source_offsets=ends, source_digest="1", batch_hash="planned-1")


def test_a_batch_commits_the_offsets_of_many_partitions(broker, unique, requests):
    with Client(broker.bootstrap_servers) as client:
        plan, files = plan_of(client, unique), new_checkpoint()
        for each in (plan, next_batch(plan)):
            requests.clear()
            assert not commit_on(client, each, files).skipped
            group, ends = plan.committer.options.group_id, each.batch.source_offsets
            assert client.committed_offsets(group, partitions=ends) == ends
        # Three parts of the group, and the progress.
        assert requests["TXN_OFFSET_COMMIT"] == 4
        assert requests["END_TXN"] == 1
        assert commit_on(client, changed(next_batch(plan), run_id="run-2"), files).skipped


@pytest.mark.parametrize("new_broker", WEEKLY_ON_KAFKA, indirect=True)
def test_record_batches_are_no_larger_than_said_and_a_lower_limit_is_named(new_broker, unique):
    running = new_broker(transaction_version=1)
    with Client(running.bootstrap_servers) as client:
        plan, files = plan_of(client, unique), new_checkpoint()
        group, ends = plan.committer.options.group_id, plan.batch.source_offsets
        client.commit_offsets(group, dict.fromkeys(ends, 0))

        def limit(size: int) -> None:
            with Connection(running.port) as connection:
                changes = [("max.message.bytes", SET, str(size))]
                resource = (TOPIC, "__consumer_offsets", changes)
                assert change_configs(connection, resource) == ["NONE"]

        limit(LIMIT)
        assert commit_on(client, plan, files).transaction_version == 1
        assert client.committed_offsets(group, partitions=ends) == ends
        limit(LIMIT // 4)
        with pytest.raises(FatalError, match=r"raise message\.max\.bytes .* remove group\.id"):
            commit_on(client, next_batch(plan), files)
        assert client.committed_offsets(group, partitions=ends) == ends
