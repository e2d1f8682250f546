"""Apache Kafka's Java client on both brokers: each test names what one of our programs saw.

The programs are in `support/kafka/java`; they run in one JVM and print what the client told them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.clients.librdkafka import create_topic

pytestmark = pytest.mark.kafka


@pytest.fixture
def seen(java, broker, unique) -> Callable[..., dict[str, Any]]:
    """Runs a program on a new topic (none is made when `partitions` is 0); what it saw."""

    def run(main_class: str, what: str, *words: str, partitions: int = 1) -> dict[str, Any]:
        topic = unique(what)
        if partitions:
            create_topic(broker.bootstrap_servers, topic, partitions)
        name = unique(f"{what}-id")
        return java.ok(main_class, what, broker.bootstrap_servers, topic, name, *words).json

    return run


def test_a_topic_is_created_described_by_name_id_and_page_and_deleted_by_id(seen):
    assert seen("AdminCalls", "topicLife", partitions=0) == {
        "made by validateOnly": False,
        "partitions": 5,
        "replication": 1,
        "segment.ms": "60000",
        "same id": True,
        "name by id": True,
        "paged": [0, 1, 2, 3, 4],
        "twice": "TopicExistsException",
        "unknown id": "UnknownTopicIdException",
    }


@pytest.mark.no_kill("a change whose answer is lost is refused when the client asks for it again")
def test_create_partitions_validates_refuses_and_adds(seen):
    assert seen("AdminCalls", "partitions", partitions=2) == {
        "validated": 2,
        "same": "InvalidPartitionsException",
        "fewer": "InvalidPartitionsException",
        "unknown topic": "UnknownTopicOrPartitionException",
        "odd assignment": "InvalidReplicaAssignmentException",
    }


def test_incremental_alter_configs_sets_appends_subtracts_deletes_and_refuses(seen):
    assert seen("AdminCalls", "configs") == {
        "appended": "delete,compact",
        "subtracted": "compact",
        "set": "1000 DYNAMIC_TOPIC_CONFIG false",
        "deleted": "604800000 DEFAULT_CONFIG true",
        "type": "LONG",
        "no list": "InvalidConfigurationException",
        "bad value": "InvalidConfigurationException",
        "unknown topic": "UnknownTopicOrPartitionException",
        "describe unknown topic": "UnknownTopicOrPartitionException",
    }


@pytest.mark.no_kill("tells which brokers are there")
def test_the_cluster_its_log_folder_and_its_features_are_described(seen, broker):
    assert seen("AdminCalls", "cluster") == {
        "addresses": sorted(broker.bootstrap_servers.split(",")),
        "controller": True,
        "id length": 22,
        "folders": 1,
        "folder error": "null",
        "size": 0,
        "transaction.version": 2,
    }


def test_list_offsets_answers_every_specification_at_both_isolation_levels(seen):
    found = seen("AdminCalls", "offsets")
    # The marker at 4 and the open record at 5 are of about the same time.
    assert found.pop("max timestamp") in (4, 5)
    assert found == {
        "earliest": 0,
        "earliest local": 0,
        "latest": 6,
        "latest committed": 5,
        "at 0": 0,
        "in a year": -1,
        "unknown partition": "UnknownTopicOrPartitionException",
    }


def test_records_are_deleted_up_to_an_offset_and_not_beyond_the_end(seen):
    assert seen("AdminCalls", "deleteRecords") == {
        "low watermark": 7,
        "earliest": 7,
        "left": ["v7", "v8", "v9"],
        "too far": "OffsetOutOfRangeException",
    }


def test_group_offsets_are_altered_with_metadata_listed_and_deleted(seen):
    assert seen("AdminCalls", "groupOffsets", partitions=2) == {
        "first": "3 a note 0",
        "second": "4 []",
        "left": [1],
        "after the group": 0,
        "delete again": "GroupIdNotFoundException",
    }


@pytest.mark.no_kill("who was removed is back if the coordinator dies before the others join again")
def test_members_are_removed_from_a_group_by_instance_id_and_all_at_once(seen):
    assert seen("AdminCalls", "removeMembers", partitions=4) == {
        "absent": "UnknownMemberIdException",
        "left": 1,
        "in the end": 0,
    }


@pytest.mark.no_kill("a list lacks the transactions of a coordinator that moves")
def test_a_transaction_is_described_listed_and_seen_in_its_partition(seen):
    assert seen("AdminCalls", "transactions") == {
        "empty": "Empty",
        "open": "Ongoing true 60000 true",
        "producer": "true true 0 0",
        "ongoing": True,
        "by producer": True,
        "an hour old": False,
        "after": -1,
        "epoch after": 1,
        "absent": "TransactionalIdNotFoundException",
    }


def test_fence_producers_aborts_the_transaction_and_fences_the_producer(seen):
    assert seen("AdminCalls", "fence") == {
        "commit": "ProducerFencedException",
        "epoch grew": True,
        "readable": [],
    }


def test_abort_transaction_ends_it_in_the_partition_only(seen):
    assert seen("AdminCalls", "abort") == {
        "stale epoch": "InvalidProducerEpochException",
        "start after": -1,
        "coordinator's state": "Ongoing",
        "commit": "none",
        "readable": [],
    }


def test_a_zombie_producer_is_fenced_whatever_it_does_next(seen):
    assert seen("ProducerCalls", "zombie") == {
        # The partition knows the epoch only, the coordinator knows that there is an heir.
        "send": "InvalidProducerEpochException",
        "commit": "InvalidProducerEpochException",
        "abort": "ProducerFencedException",
        "begin": "ProducerFencedException",
        "first send": "InvalidProducerEpochException",
        "offsets": "InvalidProducerEpochException",
        "readable": ["heir"],
    }


def test_a_commit_after_the_timeout_is_refused_for_good(seen):
    assert seen("ProducerCalls", "timeout") == {
        "epoch grew": True,
        "commit": "InvalidTxnStateException",
        "abort": "KafkaException/InvalidTxnStateException",
        "again": "KafkaException/InvalidTxnStateException",
        "readable": [],
    }


def test_a_send_after_the_timeout_is_refused_and_the_producer_goes_on_after_an_abort(seen):
    assert seen("ProducerCalls", "sendAfterTimeout") == {
        "send": "InvalidProducerEpochException",
        "commit": "InvalidProducerEpochException",
        "abort": "none",
        "again": "none",
        "readable": ["again"],
    }


def test_a_refused_record_makes_the_transaction_abortable_and_the_next_one_works(seen):
    assert seen("ProducerCalls", "abortable") == {
        "send": "RecordTooLargeException",
        "commit": "KafkaException/RecordTooLargeException",
        # One epoch for the abort, one for the commit.
        "epochs": 2,
        "readable": ["kept"],
    }


def test_empty_and_unfinished_transactions_leave_nothing(seen):
    assert seen("ProducerCalls", "edges") == {
        "after an empty commit": "Empty",
        "after close": "IllegalStateException",
        "after init": "Empty",
        "readable": ["flushed 0", "flushed 1", "flushed 2"],
    }


def test_offsets_of_a_transaction_need_the_group_s_present_generation_and_member(seen):
    assert seen("ProducerCalls", "staleGeneration") == {
        "stale": "CommitFailedException",
        "unknown": "CommitFailedException",
        "pending": 0,
        "committed": "7 from the transaction",
    }


def test_a_consumer_commits_seeks_pauses_and_finds_times_and_ends(seen):
    assert seen("ConsumerCalls", "offsets") == {
        "read_committed end": 11,
        "read_committed position": 11,
        "read_uncommitted end": 12,
        "read_uncommitted position": 12,
        "beginning": 0,
        "time": "4 1700000004000",
        "after the last": "null",
        "sync": "3 three",
        "async": "none 4 four",
        "from 8": ["8", "9"],
        "paused": 0,
        "resumed": "0",
    }


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_all_fields_of_a_record_come_back_from_the_java_client(java, broker, unique, codec):
    topic = create_topic(broker.bootstrap_servers, unique("fields"))
    assert java.ok("ConsumerCalls", "fields", broker.bootstrap_servers, topic, codec).json == {
        "first": "key value 1700000000123",
        "create time": True,
        "headers": ["h=[1, 2]", "h=null"],
        "second": "null null",
    }


def test_eager_members_give_up_all_at_each_rebalance(seen):
    assert seen("ConsumerCalls", "rebalance", "RangeAssignor", partitions=4) == {
        "apart": True,
        "kept": [0, 1],
        "told": [
            "assigned [0, 1, 2, 3]",
            "revoked [0, 1, 2, 3]",
            "assigned [0, 1]",
            "revoked [0, 1]",
            "assigned [0, 1, 2, 3]",
        ],
    }


def test_cooperative_members_give_up_only_what_moves(seen):
    found = seen("ConsumerCalls", "rebalance", "CooperativeStickyAssignor", partitions=4)
    told = [each for each in found["told"] if each != "assigned []"]
    moved = sorted({0, 1, 2, 3} - set(found["kept"]))
    assert (found["apart"], len(moved)) == (True, 2)
    assert told == ["assigned [0, 1, 2, 3]", f"revoked {moved}", f"assigned {moved}"]


@pytest.mark.one_broker("the heartbeat of the older self may be told before its commit is")
def test_a_static_member_comes_back_without_a_rebalance_and_fences_its_older_self(seen):
    assert seen("ConsumerCalls", "staticMember", partitions=4) == {
        "generations": 0,
        "told": [],
        "fenced": "FencedInstanceIdException",
    }


def test_a_member_that_was_thrown_out_cannot_commit(seen):
    assert seen("ConsumerCalls", "thrownOut") == {
        "before": "none",
        "after": "CommitFailedException",
        "committed": 1,
    }


def test_batches_over_the_consumer_s_limits_come_all_the_same_and_a_long_wait_ends(seen):
    assert seen("ConsumerCalls", "limits") == {"sizes": [200_001] * 3, "waited for": 3}


def test_a_consumer_without_a_position_starts_where_its_policy_says(seen):
    assert seen("ConsumerCalls", "resets") == {
        "earliest": 0,
        "latest": 3,
        "by_duration:PT2H30M": 1,
        "none": "NoOffsetForPartitionException",
        "out of range": "OffsetOutOfRangeException",
        "read again from the start": 3,
    }


def test_a_topic_may_take_the_broker_s_time(java, broker, unique):
    config = {"message.timestamp.type": "LogAppendTime"}
    topic = create_topic(broker.bootstrap_servers, unique("times"), config=config)
    assert java.ok("ConsumerCalls", "appendTime", broker.bootstrap_servers, topic).json == {
        "type": "LogAppendTime",
        "acknowledged": True,
        "the same": True,
        "found": 0,
    }


@pytest.mark.no_kill("with acks=0 and 1, and no idempotence, records are lost and doubled then")
def test_a_producer_is_told_offsets_by_acks_and_why_a_record_is_refused(seen):
    assert seen("ProducerCalls", "refusals") == {
        "acks 0": -1,
        "acks 1": 1,
        "acks all": 2,
        "too large": "RecordTooLargeException",
        "from tomorrow": "InvalidTimestampException",
        "unknown partition": "TimeoutException",
        "illegal topic": "InvalidTopicException",
        "goes on": 3,
    }
