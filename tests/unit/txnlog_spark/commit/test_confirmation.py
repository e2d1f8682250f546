"""A former group coordinator answers from its memory: no decision rests on its answers."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.core_broker import Asked, CoreBroker
from support.core.scripted_faults import refused
from support.query.commit_plans import EXPECTED, build_plan, commit, logged, nothing_is_written

from txnlog_kafka.operations.admin import list_groups
from txnlog_kafka.operations.transaction import init_producer_id
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import SourceEnd
from txnlog_spark.commit.set_progress import set_progress
from txnlog_spark.errors import CommittedOffsetsMoved, ProgressError
from txnlog_spark.offsets import SourceNote, positions_digest

PART = ("in", 0)


class FormerCoordinator:
    """A former coordinator that answers OffsetFetch until another broker answers TxnOffsetCommit.

    Its answers come from the memory that it had as coordinator. `groups` limits the groups that it
    coordinated. The first `refuses` TxnOffsetCommits fail with NOT_COORDINATOR.
    """

    def __init__(self, cluster: CoreBroker, *groups: str, refuses: int = 0) -> None:
        self.is_asked = True
        self.refuses = refuses
        cluster.script(K.TXN_OFFSET_COMMIT, *[refused(ErrorCode.NOT_COORDINATOR)] * refuses)
        self.memory = cluster.fork()
        self._groups, self._handle = groups, cluster.handle
        cluster.handle = self._answer  # type: ignore[method-assign]

    def _answer(self, asked: Asked) -> Any:
        if asked.api_key == K.TXN_OFFSET_COMMIT:
            self.is_asked = self.refuses > 0
            self.refuses -= 1
        if asked.api_key != K.OFFSET_FETCH or not self.is_asked:
            return self._handle(asked)
        (group,) = asked.message.groups
        is_its_own = not self._groups or group.group_id in self._groups
        return self.memory.handle(asked) if is_its_own else self._handle(asked)


@pytest.mark.invariant(38)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("done", [0, 1])
def test_what_a_former_coordinator_says_of_progress_does_not_commit_a_batch_twice(
    version: int, done: int
) -> None:
    cluster = CoreBroker(version)
    for batch_id in range(done):
        commit(cluster, build_plan(batch_id))
    former = FormerCoordinator(cluster)
    former.is_asked = False
    commit(cluster, build_plan(done))
    former.is_asked = True
    outcome = commit(cluster, build_plan(done, run_id="run-2"))
    assert not former.is_asked
    assert outcome.skipped
    for partition, values in EXPECTED.items():
        assert cluster.committed_values(*partition) == values * (done + 1)


@pytest.mark.invariant(38)
@pytest.mark.parametrize("version", [1, 2])
def test_what_a_former_coordinator_says_behind_its_refusal_does_not_count(version: int) -> None:
    cluster = CoreBroker(version)
    commit(cluster, build_plan(0))
    memory = cluster.fork()
    commit(cluster, build_plan(1))
    former = FormerCoordinator(cluster, refuses=2)
    former.memory = memory
    assert commit(cluster, build_plan(1, run_id="run-2")).skipped
    assert not former.is_asked
    for partition, values in EXPECTED.items():
        assert cluster.committed_values(*partition) == values * 2


@pytest.mark.invariant(38)
@pytest.mark.parametrize("version", [1, 2])
def test_a_start_from_what_a_former_coordinator_says_of_the_group_is_refused(version: int) -> None:
    """A driver of the lost checkpoint committed for the group, and only the new one knows it."""
    cluster = CoreBroker(version)
    cluster.commit_offsets("g", {PART: (4, "")})
    former = FormerCoordinator(cluster)
    cluster.commit_offsets("g", {PART: (9, "")})
    start = positions_digest({TopicPartition(*PART): 4})
    source = SourceEnd("", {TopicPartition(*PART): 4}, SourceNote("c", "g", group_start=start))
    plan = build_plan(0, sources=(source,), source_offsets={PART: 4})
    with pytest.raises(CommittedOffsetsMoved, match="in-0 from 4 to 9"):
        commit(cluster, plan)
    assert not former.is_asked
    assert cluster.offsets("g")[PART] == (9, "")
    assert not any(cluster.committed_values(*partition) for partition in EXPECTED)


def at_batch_1(version: int) -> CoreBroker:
    """Return a cluster on which batch 0 has moved the group to 5."""
    cluster = CoreBroker(version)
    batch_hash = logged(cluster, 0, 'v1\n{}\n{"in":{"0":5}}')
    commit(cluster, build_plan(0, batch_hash=batch_hash))
    return cluster


@pytest.mark.invariant(41)
@pytest.mark.parametrize("version", [1, 2])
def test_no_person_has_to_look_for_what_a_former_coordinator_says(version: int) -> None:
    """Progress is read of its coordinator, and the offsets of the group of a former one."""
    cluster = at_batch_1(version)
    former = FormerCoordinator(cluster, "g")
    former.memory.commit_offsets("g", {PART: (2, "")})
    assert not commit(cluster, build_plan(1)).skipped
    assert not former.is_asked


@pytest.mark.invariant(41)
@pytest.mark.parametrize("version", [1, 2])
def test_what_the_coordinator_itself_says_is_refused_and_its_transaction_aborted(
    version: int,
) -> None:
    cluster = at_batch_1(version)
    cluster.commit_offsets("g", {PART: (9, "")})
    before, asked = cluster.offsets("g"), len(cluster.asked)
    with pytest.raises(CommittedOffsetsMoved, match="in-0 from 5 to 9"):
        commit(cluster, build_plan(1))
    assert nothing_is_written(cluster, asked)
    assert not cluster.requests(K.END_TXN)[-1].committed
    assert cluster.offsets("g") == before
    cluster.run(init_producer_id(cluster.session(), "other", 60_000))


def all_offsets(cluster: CoreBroker) -> dict[str, Any]:
    """Return the offsets of all groups."""
    groups = cluster.run(list_groups(cluster.session()))
    return {group.group_id: cluster.offsets(group.group_id) for group in groups}


def test_progress_is_not_set_back_by_what_a_former_coordinator_says(cluster: CoreBroker) -> None:
    commit(cluster, build_plan(0))
    former = FormerCoordinator(cluster)
    former.is_asked = False
    commit(cluster, build_plan(1))
    former.is_asked = True
    before = all_offsets(cluster)
    with pytest.raises(ProgressError, match=r"the next batch of query .* is 2"):
        cluster.run(set_progress(cluster.session(), build_plan(0), TopicPartition(*PART)))
    assert all_offsets(cluster) == before
