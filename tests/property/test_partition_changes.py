"""Decisions of the controller, in any order of events: a leader has all committed records.

After every single record every leader is up and in the ISR, and without unclean elections it comes
from the last ISR or from the ISR that the leader asked for. Requests that were made of an older
state change nothing, and a reassignment ends with exactly its target.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.core.replication import Controlled

from broker_sim.core.controller.election import Election
from broker_sim.core.controller.image import MetadataRecord
from broker_sim.core.controller.isr_changes import IsrChange
from broker_sim.core.controller.reassignment import in_progress
from broker_sim.core.controller.registrations import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
)
from broker_sim.core.controller.replication_control import Reassignment
from txnlog_kafka.wire.error_codes import ErrorCode

BROKERS = (1, 2, 3, 4, 5)
PARTITION_COUNT = 2
BROKER = st.sampled_from(BROKERS)
PARTITION = st.integers(0, PARTITION_COUNT - 1)
REPLICAS = st.lists(BROKER, min_size=1, max_size=4, unique=True).map(tuple)


class PartitionMachine(RuleBasedStateMachine):
    """A state machine of one topic, and of five brokers that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.next_epoch = 10
        self.requests: list[tuple[int, int, IsrChange]] = []
        self.targets: dict[int, tuple[int, ...]] = {}
        self.originals: dict[int, tuple[int, ...]] = {}

    @initialize(
        replicas=st.lists(REPLICAS, min_size=PARTITION_COUNT, max_size=PARTITION_COUNT),
        unclean=st.booleans(),
    )
    def start(self, replicas: list[tuple[int, ...]], unclean: bool) -> None:
        partitions = [PartitionRegistration.new(each, each) for each in replicas]
        self.cluster = Controlled(BROKERS, *partitions, unclean=unclean)
        self.unclean = unclean

    @property
    def image(self) -> Any:
        return self.cluster.image

    def apply(
        self,
        records: Sequence[MetadataRecord],
        *,
        asked: Sequence[int] = (),
        unclean: bool = False,
        cancels: bool = False,
    ) -> None:
        """Replay record by record; `asked` is the ISR that a leader asked for."""
        for record in json.loads(json.dumps(records)):
            delta = self.image.replay(record)
            if record["type"] == "partition-changed":
                clean = not (unclean or self.unclean)
                self.check_change(delta.before, delta.after, asked, clean)
                if not cancels and set(delta.before.replicas) - set(delta.after.replicas):
                    assert set(delta.after.isr) == set(delta.after.replicas)
                if in_progress(delta.before) and not in_progress(delta.after):
                    self.check_end(delta.partition, delta.after, cancels)
            self.check_partitions()

    @staticmethod
    def check_change(before: Any, after: Any, asked: Sequence[int], clean: bool) -> None:
        assert after.partition_epoch == before.partition_epoch + 1
        removed = set(before.replicas) - set(after.replicas)
        raised = after.leader_epoch - before.leader_epoch
        assert raised == (1 if removed or after.leader != before.leader else 0)
        same = {"leader_epoch": 0, "partition_epoch": 0}
        assert {**before.record_fields(), **same} != {**after.record_fields(), **same}
        if clean:
            assert after.leader in {NO_LEADER, *before.isr, *asked}
            assert set(after.isr) <= {*before.isr, *asked}

    def check_end(self, number: int, after: PartitionRegistration, cancelled: bool) -> None:
        target = self.targets.pop(number)
        original = self.originals.pop(number)
        if cancelled:
            assert set(after.replicas) == set(original)
        else:
            assert after.replicas == target

    def check_partitions(self) -> None:
        for number in range(PARTITION_COUNT):
            now = self.cluster[number]
            assert now.isr
            assert set(now.isr) <= set(now.replicas)
            assert {*now.adding, *now.removing} <= set(now.replicas)
            assert len({*now.replicas}) == len(now.replicas)
            if now.leader != NO_LEADER:
                assert now.leader in now.isr
                assert self.image.is_active(now.leader)

    @invariant()
    def a_partition_has_a_leader_when_one_of_its_isr_may_lead(self) -> None:
        for number in range(PARTITION_COUNT):
            now = self.cluster[number]
            assert any(map(self.image.is_active, now.isr)) == (now.leader != NO_LEADER)

    # -------------------------------------------------------------- events

    @rule(broker=BROKER)
    def up(self, broker: int) -> None:
        self.next_epoch += 1
        registration = BrokerRegistration(broker, self.next_epoch, {})
        again = broker in self.image.brokers
        self.apply(self.cluster.control.broker_up(registration))
        assert self.image.brokers[broker] == registration
        # It may have lost what it had, so of those that others have too it is in no ISR.
        isrs = [self.cluster[number].isr for number in range(PARTITION_COUNT)]
        assert not again or all(broker not in isr or isr == (broker,) for isr in isrs)

    @rule(broker=BROKER)
    def down(self, broker: int) -> None:
        self.apply(self.cluster.control.broker_down(broker))
        assert broker not in self.image.brokers
        assert all(self.cluster[n].leader != broker for n in range(PARTITION_COUNT))

    @rule(broker=BROKER)
    def controlled_shutdown(self, broker: int) -> None:
        if broker in self.image.brokers:
            self.next_epoch += 1
            stopping = BrokerRegistration(broker, self.next_epoch, {}, in_controlled_shutdown=True)
            self.apply(self.cluster.control.broker_up(stopping))
        assert not self.image.is_active(broker)

    @rule(partition=PARTITION, isr=REPLICAS)
    def request(self, partition: int, isr: tuple[int, ...]) -> None:
        """A leader asks for another ISR; when that arrives is left open."""
        leader = self.cluster[partition].leader
        if leader != NO_LEADER:
            change = self.cluster.change(*dict.fromkeys((leader, *isr)), partition=partition)
            self.requests.append((leader, self.image.brokers[leader].epoch, change))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), again=st.booleans())
    def arrive(self, data: st.DataObject, again: bool) -> None:
        place = data.draw(st.integers(0, len(self.requests) - 1))
        broker, epoch, change = self.requests[place]
        if not again:
            del self.requests[place]
        now = self.cluster[change.partition]
        known = self.image.brokers.get(broker)
        stale = (
            known is None
            or known.epoch != epoch
            or now.leader_epoch != change.leader_epoch
            or now.partition_epoch != change.partition_epoch
        )
        self.alter(broker, epoch, change, stale)

    def alter(self, broker: int, epoch: int, change: IsrChange, stale: bool) -> None:
        before = self.cluster[change.partition]
        decision = self.cluster.control.alter_partition(broker, epoch, [change])
        asked = [replica for replica, _ in change.new_isr]
        eligible = all(
            replica in self.image.brokers
            and self.image.brokers[replica].epoch == known_epoch
            and self.image.is_active(replica)
            and replica in before.replicas
            for replica, known_epoch in change.new_isr
        )
        if stale or not eligible:
            assert decision.records == []
        else:
            assert decision.answer[0].error in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED)
        self.apply(decision.records, asked=asked)

    @rule(partition=PARTITION, replicas=REPLICAS)
    def reassign(self, partition: int, replicas: tuple[int, ...]) -> None:
        original = self.cluster[partition].replicas
        asked = [Reassignment("t", partition, replicas)]
        decision = self.cluster.control.alter_reassignments(asked)
        if decision.answer[0].error is ErrorCode.NONE:
            self.targets[partition] = replicas
            self.originals.setdefault(partition, original)
            self.apply(decision.records)
            now = self.cluster[partition]
            if not in_progress(now):
                assert now.replicas == replicas
                self.targets.pop(partition, None)
                self.originals.pop(partition, None)
        else:
            assert not set(replicas) <= set(self.image.brokers)
            assert decision.records == []

    @rule(partition=PARTITION)
    def cancel(self, partition: int) -> None:
        asked = [Reassignment("t", partition, None)]
        decision = self.cluster.control.alter_reassignments(asked)
        if decision.answer[0].error is ErrorCode.NONE:
            self.apply(decision.records, cancels=True)
            assert partition not in self.targets
        assert not decision.records or decision.answer[0].error is ErrorCode.NONE

    @rule(
        election=st.sampled_from([Election.PREFERRED, Election.UNCLEAN]),
        partitions=st.none() | st.lists(st.tuples(st.just("t"), PARTITION)),
    )
    def elect(self, election: Election, partitions: list[tuple[str, int]] | None) -> None:
        decision = self.cluster.control.elect_leaders(election, partitions)
        self.apply(decision.records, unclean=election is Election.UNCLEAN)
        done = {each.partition for each in decision.answer if each.error is ErrorCode.NONE}
        assert len(done) == len(decision.records)
        if election is Election.UNCLEAN:
            assert all(self.cluster[number].leader != NO_LEADER for number in done)

    @rule(partition=PARTITION)
    def finish(self, partition: int) -> None:
        """Start all brokers, and let the leader find the target in sync."""
        target = self.targets.get(partition)
        for broker in BROKERS:
            if not self.image.is_active(broker):
                self.up(broker)
        now = self.cluster[partition]
        assert now.leader != NO_LEADER
        if partition not in self.targets or target is None:
            return
        isr = dict.fromkeys((now.leader, *now.isr, *target))
        epoch = self.image.brokers[now.leader].epoch
        change = self.cluster.change(*isr, partition=partition)
        self.alter(now.leader, epoch, change, stale=False)
        after = self.cluster[partition]
        assert (after.replicas, after.adding, after.removing) == (target, (), ())


TestPartitionChanges = PartitionMachine.TestCase
TestPartitionChanges.settings = settings(max_examples=100, stateful_step_count=40)
