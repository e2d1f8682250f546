"""Source offsets that survive a power loss: the records they cover must survive it as well."""

from __future__ import annotations

import pytest
from support.core.broker_build import BrokerOnDisk, offset_commit

from broker_sim.core.effects import Flush

SEEDS = range(10)
PRODUCED = 10


def broker_with_records(config: dict | None = None) -> BrokerOnDisk:
    """Topics and coordinators are there, and ten acknowledged records in `in`."""
    broker = BrokerOnDisk(config)
    broker.create_topic("in")
    broker.create_topic("out")
    broker.find_coordinators()
    for number in range(PRODUCED):
        assert broker.produce("in", f"v{number}").error_code == 0
    return broker


def commit_offset(broker: BrokerOnDisk) -> None:
    """A plain OffsetCommit of all that was produced."""
    answer = broker.ask(offset_commit(PRODUCED, "in"), 7)
    assert answer.topics[0].partitions[0].error_code == 0


def commit_transaction(broker: BrokerOnDisk) -> None:
    """A transaction with one record in `out` and the same offset."""
    producer = broker.producer()
    assert producer.init() == "NONE"
    assert producer.produce("out", 0, "o", version=12) == "NONE"
    assert producer.commit_offset("g", "in", 0, PRODUCED, version=5) == "NONE"
    assert producer.end(commit=True, version=5) == "NONE"


@pytest.mark.parametrize("commit", [commit_offset, commit_transaction])
def test_committed_offsets_do_not_outlive_the_records_they_cover(commit) -> None:
    for seed in SEEDS:
        broker = broker_with_records()
        commit(broker)
        broker.lose_power(seed)
        fetched = broker.parts.groups.offset_fetch("g", None, require_stable=True)
        assert [o.committed_offset for o in fetched.offsets] == [PRODUCED], seed
        assert broker.log("in").log_end_offset == PRODUCED, seed


def test_the_records_of_a_killed_broker_are_covered_too() -> None:
    """The records were recovered from the machine's memory, and no flush followed."""
    broker = broker_with_records()
    broker.kill()
    commit_offset(broker)
    broker.lose_power()
    assert broker.log("in").log_end_offset == PRODUCED


def test_a_second_commit_of_flushed_records_does_not_flush_them_again() -> None:
    broker = broker_with_records()
    commit_offset(broker)
    assert any("in-0" in path for path in _flushed_by_last_step(broker))
    commit_offset(broker)
    assert not any("in-0" in path for path in _flushed_by_last_step(broker))


def test_nothing_is_flushed_when_flush_on_commit_is_off() -> None:
    broker = broker_with_records({"flush.on.commit": "false"})
    commit_offset(broker)
    assert _flushed_by_last_step(broker) == []


def _flushed_by_last_step(broker: BrokerOnDisk) -> list[str]:
    flushes = [each for each in broker.steps[-1].storage if isinstance(each, Flush)]
    return [path for flush in flushes for path in flush.paths]
