"""Reading a range and listing offsets: gaps, torn tails, moved leaders, lost data."""

from __future__ import annotations

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from support.core.core_broker import CoreBroker

from txnlog_kafka.errors import (
    CorruptData,
    DataLoss,
    DeadlineExceeded,
    FatalError,
    OffsetOutOfRange,
    OldMessageFormat,
    RemoteProtocolError,
    UnknownTopic,
)
from txnlog_kafka.operations import metadata
from txnlog_kafka.operations.cluster_view import ClusterView, TopicView
from txnlog_kafka.operations.effects import Calls, Give, Receive, Reply, Send, Sleep, Unanswered
from txnlog_kafka.operations.fetch import fetch_ahead, fetch_call, fetch_next
from txnlog_kafka.operations.fetch_cursor import FetchCursor
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import Record, encode_batch

FETCH = APIS[ApiKey.FETCH].response
LIST = APIS[ApiKey.LIST_OFFSETS].response
P = ("out", 0)
FIRST, SECOND = bytes([1] * 16), bytes([2] * 16)


def batch(base_offset: int, count: int = 2) -> bytes:
    return encode_batch([Record(None, b"v", 1)] * count, base_offset=base_offset)


def fetched(
    records: bytes = b"", code: int = E.NONE, aborted=(), partition: int = 0, replica: int = -1
):
    topic = FETCH.FetchableTopicResponse
    part = topic.PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=100,
        last_stable_offset=90,
        log_start_offset=0,
        aborted_transactions=[
            topic.PartitionData.AbortedTransaction(producer_id=p, first_offset=o)
            for p, o in aborted
        ],
        records=records,
        preferred_read_replica=replica,
    )
    return Reply(FETCH(responses=[topic(topic="out", partitions=[part])]), 12)


def listed(offset: int, code: int = E.NONE, partition: int = 0):
    topic = LIST.ListOffsetsTopicResponse
    part = topic.ListOffsetsPartitionResponse(
        partition_index=partition, error_code=code, offset=offset
    )
    return Reply(LIST(topics=[topic(name="out", partitions=[part])]), 7)


class Answers:
    """A host that gives prepared outcomes; metadata always knows the leader."""

    def __init__(self, *outcomes):
        self.cluster = CoreBroker(2)
        self.session = self.cluster.session()
        self.outcomes = list(outcomes)
        self.ends = []
        self.late = fetched()
        self.asked = []
        self.given = []

    def run(self, operation):
        """Scripted outcomes for fetches and offsets, the scripted cluster's for the rest."""
        original = self.cluster.perform

        def perform(ask):
            if isinstance(ask, Calls):
                name = type(ask.calls[0].message).__name__
                if name in ("FetchRequest", "ListOffsetsRequest"):
                    self.asked.append(ask.calls[0])
                    if name == "ListOffsetsRequest" and self.ends:
                        return (self.ends.pop(0),)
                    outcome = self.outcomes.pop(0) if self.outcomes else self.late
                    if isinstance(outcome, Reply):  # the host waits so long before the next request
                        self.cluster.core.monotonic_ms += outcome.message.throttle_time_ms
                    return (outcome,)
            if isinstance(ask, Send):
                self.asked.append(ask.call)
                return len(self.asked)
            if isinstance(ask, Receive):
                (ticket,) = ask.tickets
                return ticket, self.outcomes.pop(0)
            if isinstance(ask, Give):
                self.given.append((ask.item.next_offset, len(self.asked)))
                return None
            return original(ask)

        self.cluster.perform = perform
        return self.cluster.run(operation)


def cursor(start=0, end=90, read_committed=True):
    return FetchCursor(P, start, end, read_committed, 1000)


def test_batches_and_aborted_transactions_are_handed_on():
    answers = Answers(fetched(batch(0) + batch(2), aborted=[(7, 0)]))
    at = cursor()
    got = answers.run(fetch_next(answers.session, at))
    assert (got.next_offset, at.next_offset) == (4, 4)
    assert got.aborted == [(7, 0)]
    assert (got.high_watermark, got.last_stable_offset) == (100, 90)
    request = answers.asked[0].message
    assert (request.isolation_level, request.min_bytes) == (1, 1)


def throttled(for_ms: int):
    return Reply(FETCH(throttle_time_ms=for_ms, responses=[]), 12)


def test_a_broker_that_throttles_answers_with_nothing_and_is_asked_for_as_long_as_it_does():
    quota = [throttled(20_000)] * 9  # three times what an operation may take
    answers = Answers(*quota, fetched(batch(0)))
    at = cursor()
    assert answers.run(fetch_next(answers.session, at)).next_offset == 2
    assert len(answers.asked) == 10
    assert len({call.timeout_ms for call in answers.asked}) == 1
    assert at.last_error == "the broker throttles this client for 20000 ms: it is over a quota"


def test_of_a_range_that_is_read_ahead_a_throttled_answer_is_asked_for_again():
    answers = Answers(fetched(batch(0)), throttled(500), fetched(batch(2)))
    answers.run(fetch_ahead(answers.session, cursor(0, 4)))
    assert [at for at, _ in answers.given] == [2, 4]


def test_one_request_is_ahead_of_the_consumer_and_none_beyond_the_end():
    answers = Answers(fetched(batch(0)), fetched(batch(2)), fetched(batch(4)))
    answers.run(fetch_ahead(answers.session, cursor(0, 6)))
    assert answers.given == [(2, 2), (4, 3), (6, 3)]
    offsets = [c.message.topics[0].partitions[0].fetch_offset for c in answers.asked]
    assert offsets == [0, 2, 4]


def test_a_request_ahead_that_brought_nothing_is_asked_again():
    answers = Answers(
        fetched(batch(0)), Unanswered("gone", sent=True), fetched(code=E.NOT_LEADER_OR_FOLLOWER),
        fetched(batch(2)),
    )  # fmt: skip
    answers.run(fetch_ahead(answers.session, cursor(0, 4)))
    assert [next_offset for next_offset, _ in answers.given] == [2, 4]


def test_a_first_answer_that_was_had_elsewhere_is_given_first():
    answers = Answers(fetched(batch(2)))
    at = cursor(2, 4)
    had = Answers(fetched(batch(0)))
    first = had.run(fetch_next(had.session, cursor(0, 4)))
    answers.session.cluster = had.session.cluster
    answers.run(fetch_ahead(answers.session, at, first))
    assert answers.given == [(2, 1), (4, 1)]


def test_read_uncommitted_has_no_aborted_list():
    answers = Answers(fetched(batch(0), aborted=[(7, 0)]))
    got = answers.run(fetch_next(answers.session, cursor(read_committed=False)))
    assert got.aborted is None
    assert answers.asked[0].message.isolation_level == 0


def test_a_gap_is_no_data_loss():
    answers = Answers(fetched(batch(50)))
    assert answers.run(fetch_next(answers.session, cursor(3))).next_offset == 52


def test_a_torn_last_batch_is_fetched_again():
    answers = Answers(fetched(batch(0) + batch(2)[:-5]), fetched(batch(2)))
    at = cursor()
    answers.run(fetch_next(answers.session, at))
    assert at.next_offset == 2
    answers.run(fetch_next(answers.session, at))
    assert at.next_offset == 4
    assert answers.asked[1].message.topics[0].partitions[0].fetch_offset == 2


def with_magic_3() -> bytes:
    data = bytearray(batch(0))
    data[16] = 3
    return bytes(data)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        pytest.param(
            fetched(batch(0)[:-1]), RemoteProtocolError, "without one whole", id="half a batch"
        ),
        pytest.param(
            fetched(code=E.CORRUPT_MESSAGE),
            CorruptData,
            "log is damaged",
            id="corrupt at the broker",
        ),
        pytest.param(fetched(with_magic_3()), CorruptData, "magic 3", id="no such header"),
        pytest.param(
            fetched(code=E.TOPIC_AUTHORIZATION_FAILED),
            FatalError,
            "TOPIC_AUTHORIZATION_FAILED",
            id="not authorized",
        ),
        pytest.param(
            fetched(batch(0), partition=9),
            RemoteProtocolError,
            "has 1 partitions",
            id="another partition",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_clear_error(answer, kind, said):
    answers = Answers(answer)
    with pytest.raises(kind, match=said):
        answers.run(fetch_next(answers.session, cursor()))


def test_an_end_beyond_the_readable_end_is_a_deadline_that_names_it():
    answers = Answers()
    with pytest.raises(DeadlineExceeded, match="readable end is 90"):
        answers.run(fetch_next(answers.session, cursor(95, 99)))
    assert {type(call.message).__name__ for call in answers.asked} == {"FetchRequest"}


def test_a_log_that_ends_inside_the_range_and_stays_so_is_data_loss():
    # The topic was made anew after the batch was planned: what is asked for will never come.
    answers = Answers()
    answers.ends = [listed(0), listed(100)]
    with pytest.raises(OffsetOutOfRange, match=r"offset 100 .*\[0, 100\)") as caught:
        answers.run(fetch_next(answers.session, cursor(100, 120)))
    assert caught.value.start_offset == 100


def test_the_leader_is_left_time_to_answer_that_there_is_nothing():
    # Asked to wait as long as the client does, it would never answer at the end of the deadline.
    answers = Answers()
    with pytest.raises(DeadlineExceeded):
        answers.run(fetch_next(answers.session, cursor(95, 99)))
    waits = [(call.message.max_wait_ms, call.timeout_ms) for call in answers.asked]
    assert all(2 * wait_ms <= timeout_ms for wait_ms, timeout_ms in waits), waits[-3:]


def test_a_log_that_ends_inside_the_range_is_data_loss_also_when_the_last_answer_is_late():
    answers = Answers(*[fetched()] * 3)
    answers.late = Unanswered("late", sent=True)
    answers.ends = [listed(0), listed(100)]
    with pytest.raises(OffsetOutOfRange):
        answers.run(fetch_next(answers.session, cursor(100, 120)))


def test_a_log_that_ended_inside_the_range_and_has_grown_since_is_only_slow():
    answers = Answers()
    answers.ends = [listed(0), listed(130)]
    with pytest.raises(DeadlineExceeded, match="readable end is 90"):
        answers.run(fetch_next(answers.session, cursor(100, 120)))


@pytest.mark.parametrize(
    "outcome",
    [
        fetched(),
        fetched(code=E.NOT_LEADER_OR_FOLLOWER),
        fetched(code=E.UNKNOWN_LEADER_EPOCH),
        fetched(code=E.KAFKA_STORAGE_ERROR),
        Unanswered("gone", sent=True),
    ],
    ids=["nothing, as of a follower that hears of nothing", "leader", "epoch", "storage", "none"],
)
def test_a_passing_failure_looks_the_leader_up_again(outcome):
    answers = Answers(outcome, fetched(batch(0)))
    assert answers.run(fetch_next(answers.session, cursor())).next_offset == 2
    assert answers.cluster.apis().count(K.METADATA) == 2


@pytest.mark.parametrize(("start", "low", "high"), [(3, 40, 100), (50, 0, 10)])
def test_an_offset_outside_the_log_is_data_loss_with_the_range(start, low, high):
    answers = Answers(fetched(code=E.OFFSET_OUT_OF_RANGE), listed(low), listed(high))
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss") as caught:
        answers.run(fetch_next(answers.session, cursor(start)))
    error = caught.value
    assert (error.log_start_offset, error.log_end_offset, error.start_offset) == (low, high, start)


def test_an_offset_that_is_in_range_after_all_is_asked_again():
    """A leader that has just changed may not know its high watermark yet."""
    answers = Answers(
        fetched(code=E.OFFSET_OUT_OF_RANGE), listed(0), listed(100), fetched(batch(3))
    )
    assert answers.run(fetch_next(answers.session, cursor(3))).next_offset == 5


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression_type", [0, 1])
@pytest.mark.parametrize("value_bytes", [1, 100])
def test_records_of_an_old_message_format_are_named_and_not_taken_for_damage(
    magic, compression_type, value_bytes
):
    """Brokers serve them as they were written; one record is shorter than a header of today's."""
    old = LegacyRecordBatchBuilder(magic, compression_type, 1 << 20)
    old.append(offset=0, timestamp=1, key=None, value=bytes(value_bytes))
    for data in (bytes(old.build()), batch(-3, 3) + bytes(old.build())):
        answers = Answers(fetched(data))
        with pytest.raises(OldMessageFormat) as caught:
            answers.run(fetch_next(answers.session, cursor()))
        text = str(caught.value)
        assert text.startswith("[TXNLOG_OLD_MESSAGE_FORMAT] fetching out-0 from offset 0: ")
        assert f"the record at offset 0 is of message format v{magic}" in text
        assert "format('kafka')" in text
        assert "startingOffsets" in text
        assert "damaged" not in text


def test_topic_ids_are_used_where_they_are_known():
    session = CoreBroker(2).session()
    deadline = session.deadline()
    assert fetch_call(session, (cursor(),), deadline).version_max == 12
    session.cluster = ClusterView(topics={"out": TopicView(bytes(range(16)), {0: 1})})
    call = fetch_call(session, (cursor(),), deadline)
    assert call.version_max is None
    assert call.message.topics[0].topic_id.bytes == bytes(range(16))


# ------------------------------------------------------------------ offsets


def test_offsets_are_listed_and_moved_leaders_followed():
    answers = Answers(listed(-1, E.NOT_LEADER_OR_FOLLOWER), Unanswered("x", sent=False), listed(12))
    found = answers.run(list_offsets(answers.session, {P: LATEST_TIMESTAMP}, read_committed=True))
    assert found[P].offset == 12
    assert answers.asked[0].message.isolation_level == 1


def test_listing_an_unknown_partition_names_it():
    answers = Answers()
    specs = {("out", 9): EARLIEST_TIMESTAMP}
    with pytest.raises(UnknownTopic, match="no partition 9"):
        answers.run(list_offsets(answers.session, specs, read_committed=False))


def test_a_partition_that_one_broker_has_not_heard_of_yet_is_waited_for():
    # Believed at once, a task would fail, or leave its range out where records may be lost.
    answers = Answers()
    added = ("out", 1)
    del answers.cluster.leaders[added]
    original = answers.cluster.perform

    def perform(ask):
        if isinstance(ask, Sleep) and answers.cluster.now_ms > 1_000:
            answers.cluster.leaders[added] = 1
        return original(ask)

    answers.cluster.perform = perform
    answers.ends = [listed(12, partition=1)]
    found = answers.run(
        list_offsets(answers.session, {added: LATEST_TIMESTAMP}, read_committed=True)
    )
    assert found[added].offset == 12


# --------------------------------------------------------------------------- replicas (KIP-392)

SENT_ON = {"replica": 2}


def in_rack(*outcomes, **config) -> Answers:
    """A client in a rack, of a cluster with a second node."""
    answers = Answers(*outcomes)
    answers.cluster.nodes = (1, 2)
    answers.session = answers.cluster.session(rack_id="b", **config)
    return answers


def nodes(answers: Answers) -> list[int]:
    return [call.node for call in answers.asked if type(call.message).__name__ == "FetchRequest"]


def test_a_client_says_its_rack_and_reads_from_the_replica_that_the_leader_names():
    answers = in_rack(fetched(**SENT_ON), fetched(batch(0)), fetched(batch(2)))
    at = cursor()
    assert answers.run(fetch_next(answers.session, at)).next_offset == 2
    assert answers.run(fetch_next(answers.session, at)).next_offset == 4
    assert nodes(answers) == [1, 2, 2]
    assert {call.message.rack_id for call in answers.asked} == {"b"}
    assert answers.cluster.slept_ms == []


def test_a_named_replica_is_read_from_for_a_time_then_the_leader_is_asked_again():
    answers = in_rack(
        fetched(**SENT_ON), fetched(batch(0)), fetched(batch(2)), read_replica_ms=5_000
    )
    at = cursor()
    answers.run(fetch_next(answers.session, at))
    answers.cluster.now_ms += 5_000
    answers.run(fetch_next(answers.session, at))
    assert nodes(answers) == [1, 2, 1]


def test_with_no_time_at_all_a_named_replica_is_asked_once_all_the_same():
    answers = in_rack(fetched(**SENT_ON), fetched(batch(0)), read_replica_ms=0)
    answers.run(fetch_next(answers.session, cursor()))
    assert nodes(answers) == [1, 2]


@pytest.mark.parametrize(
    "outcome",
    [
        fetched(),
        fetched(code=E.OFFSET_OUT_OF_RANGE),
        fetched(code=E.NOT_LEADER_OR_FOLLOWER),
        fetched(code=E.FENCED_LEADER_EPOCH),
        fetched(code=E.OFFSET_NOT_AVAILABLE),
        Unanswered("gone", sent=True),
    ],
    ids=["empty", "range", "leader", "epoch", "offset", "unanswered"],
)
def test_what_a_replica_has_not_the_leader_is_asked_for(outcome):
    answers = in_rack(fetched(**SENT_ON), outcome, fetched(batch(0)))
    assert answers.run(fetch_next(answers.session, cursor())).next_offset == 2
    assert nodes(answers) == [1, 2, 1]


def test_an_offset_that_the_leader_refuses_too_is_data_loss():
    out_of_range = fetched(code=E.OFFSET_OUT_OF_RANGE)
    answers = in_rack(fetched(**SENT_ON), out_of_range, out_of_range, listed(40), listed(100))
    with pytest.raises(OffsetOutOfRange):
        answers.run(fetch_next(answers.session, cursor(3)))
    assert nodes(answers) == [1, 2, 1]


def test_a_replica_that_the_metadata_does_not_know_is_no_place_to_read_from():
    answers = in_rack(fetched(replica=7), fetched(batch(0)))
    answers.run(fetch_next(answers.session, cursor()))
    assert nodes(answers) == [1, 1]


def test_a_log_end_at_a_replica_that_is_behind_is_not_the_logs_end():
    answers = in_rack(fetched(**SENT_ON))
    answers.late = fetched()
    at = cursor(start=100, end=110)
    outcomes = [fetched(**SENT_ON), fetched()] * 200
    answers.outcomes = outcomes
    with pytest.raises(DeadlineExceeded):
        answers.run(fetch_next(answers.session, at))
    assert set(nodes(answers)) == {1, 2}


def test_a_stream_goes_on_from_the_replica():
    answers = in_rack(fetched(**SENT_ON), fetched(batch(0)), fetched(batch(2)))
    answers.run(fetch_ahead(answers.session, cursor(end=4)))
    assert [offset for offset, _ in answers.given] == [2, 4]
    assert nodes(answers) == [1, 2, 2]


# ------------------------------------------------------------------ recreated topics


@pytest.mark.parametrize("code", [E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID])
@pytest.mark.parametrize("most", [SECOND, FIRST, None])
def test_a_topic_of_another_id_is_data_loss_at_once_if_most_brokers_say_so(
    monkeypatch: pytest.MonkeyPatch, code: int, most: bytes | None
) -> None:
    def find_topic_ids(session, topics, *, deadline):
        yield from ()
        return {} if most is None else {"out": most}

    monkeypatch.setattr(metadata, "find_topic_ids", find_topic_ids)
    answers = Answers(fetched(code=code), fetched(code=code), fetched(batch(0)))
    session = answers.session
    session.cluster = ClusterView(topics={"out": TopicView(SECOND, {0: 1})})
    asked = FetchCursor(P, 0, 2, read_committed=True, max_bytes=1000, topic_id=FIRST)
    if most == SECOND:
        with pytest.raises(DataLoss, match=r"out-0 from offset 0 to 2.*deleted and created again"):
            answers.run(fetch_next(session, asked))
        assert len(answers.asked) == 1
    else:
        assert answers.run(fetch_next(session, asked)).next_offset == 2
        assert len(answers.asked) == 3


def test_an_id_that_a_broker_does_not_know_yet_is_asked_for_again() -> None:
    answers = Answers(fetched(code=E.UNKNOWN_TOPIC_ID), fetched(batch(0)))
    assert answers.run(fetch_next(answers.session, cursor(0, 2))).next_offset == 2
