"""The history of requests and answers: each rule rejects a history that breaks the rule."""

import uuid

import pytest

from simulation.checkers.client_history import ClientHistory
from simulation.checkers.invariants import INVARIANTS
from simulation.checkers.outcomes import (
    COPY,
    DRIVER,
    NEIGHBOUR,
    OFFSET_COMMIT,
    ORDER,
    SEND,
    Outcome,
    lines,
)
from simulation.checkers.producer_history import check_in_transaction
from simulation.violation import ANOMALIES, DUPLICATE, Violation, violated
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import (
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    stamp_offsets,
)

ID, TOPIC, DRIVERS = 7, "t", "job-driver-1"


def batch(sequence=0, epoch=0, value=b"v", transactional=True):
    return encode_batch([Record(b"k", value)], producer_id=ID, producer_epoch=epoch,
                        base_sequence=sequence, transactional=transactional)  # fmt: skip


def at(offset, data):
    """Return the batch as a consumer gets it, with this base offset."""
    stamped = bytearray(data)
    stamp_offsets(stamped, 0, base_offset=offset, leader_epoch=3)
    return bytes(stamped)


def marker(offset, kind, epoch=0):
    return at(offset, encode_marker(TransactionMarker(ID, epoch, kind, 0), timestamp=0))


def message(kind, /, **fields):
    return kind(**fields)


def asked(key, **fields):
    return message(APIS[key].request, **fields)


def answered(key, **fields):
    return message(APIS[key].response, **{"error_code": 0} | fields)


def part_of(key, *, request=True):
    """The kinds of a topic and of its partition in a message of Produce, or of Fetch."""
    kind = APIS[key].request if request else APIS[key].response
    if key is ApiKey.PRODUCE:
        topic = kind.TopicProduceData if request else kind.TopicProduceResponse
        return topic, topic.PartitionProduceData if request else topic.PartitionProduceResponse
    topic = kind.FetchTopic if request else kind.FetchableTopicResponse
    return topic, topic.FetchPartition if request else topic.PartitionData


class History(ClientHistory):
    """A client history whose requests are answered at once, or not at all."""

    def call(self, request, answer=None, process=DRIVERS, version=4):
        self.on_sent(process, request)
        if answer is not None:
            self.on_answer(process, request, answer, version)

    def init(self, epoch, process=DRIVERS, producer_id=ID, transactional_id="x"):
        request = asked(ApiKey.INIT_PRODUCER_ID, transactional_id=transactional_id, producer_id=-1)
        answer = answered(ApiKey.INIT_PRODUCER_ID, producer_id=producer_id, producer_epoch=epoch)
        self.call(request, answer, process)

    def produce(self, data, offset=0, error=0, process=DRIVERS, transactional_id="x"):
        """Add a Produce; `error` None means that the broker does not answer."""
        topic, part = part_of(ApiKey.PRODUCE)
        parts = [message(part, index=0, records=data)]
        request = asked(
            ApiKey.PRODUCE,
            transactional_id=transactional_id,
            topic_data=[message(topic, name=TOPIC, partition_data=parts)],
        )
        topic, part = part_of(ApiKey.PRODUCE, request=False)
        parts = [message(part, index=0, error_code=error or 0, base_offset=offset)]
        answer = message(
            APIS[ApiKey.PRODUCE].response,
            responses=[message(topic, name=TOPIC, partition_responses=parts)],
        )
        self.call(request, None if error is None else answer, process)

    def end(self, *, commits=True, error=0, epoch=0, process=DRIVERS):
        request = asked(
            ApiKey.END_TXN, transactional_id="x", producer_id=ID, producer_epoch=epoch,
            committed=commits,
        )  # fmt: skip
        answer = None if error is None else answered(ApiKey.END_TXN, error_code=error)
        self.call(request, answer, process)

    def fetch(self, *batches, position=0, isolation=1, aborted=()):
        topic, part = part_of(ApiKey.FETCH)
        parts = [message(part, partition=0, fetch_offset=position)]
        wanted = message(topic, topic=TOPIC, topic_id=uuid.UUID(int=1), partitions=parts)
        request = asked(ApiKey.FETCH, isolation_level=isolation, topics=[wanted])
        topic, part = part_of(ApiKey.FETCH, request=False)
        named = [
            message(part.AbortedTransaction, producer_id=ID, first_offset=first)
            for first in aborted
        ]
        found = message(part, partition_index=0, error_code=0, records=b"".join(batches),
                        aborted_transactions=named)  # fmt: skip
        answer = answered(ApiKey.FETCH, responses=[message(topic, topic=TOPIC, partitions=[found])])
        self.call(request, answer, "reader")

    def audit(self, *batches, aborted=()):
        self.begin_audit()
        self.fetch(*batches, aborted=aborted)
        self.end_audit()

    def ended(self, kind=DRIVER):
        return [self.outcomes()[kind, each] for each in Outcome]


def begun():
    """A producer of epoch 0 that has sent one batch, at offset 0."""
    history = History()
    history.init(0)
    history.produce(batch())
    return history


def committed():
    history = begun()
    history.end()
    return history


def test_a_clean_history_breaks_nothing():
    history = committed()
    history.audit(at(0, batch()), marker(1, MarkerType.COMMIT))
    history.produce(batch(1), offset=2)
    history.end(commits=False)
    history.audit(
        at(0, batch()), marker(1, MarkerType.COMMIT), at(2, batch(1)),
        marker(3, MarkerType.ABORT), aborted=[2],
    )  # fmt: skip
    assert history.ended() == [1, 1, 0]


@pytest.mark.invariant(2)
@pytest.mark.parametrize(
    ("position", "offsets"), [(0, (1,)), (0, (0, 2)), (1, (1, 1)), (2, (1,)), (1, (2,))]
)
def test_a_consumer_that_is_given_a_gap_or_an_overlap(position, offsets):
    history = History()
    sent = [batch(n) for n in range(len(offsets))]
    for data in sent:
        history.produce(data, error=None)
    history.fetch(*(at(position + n, data) for n, data in enumerate(sent)), position=position)
    with pytest.raises(Violation, match=r"^invariant 2\b"):
        history.fetch(*map(at, offsets, sent), position=position)


@pytest.mark.invariant(4)
def test_a_consumer_that_is_given_what_nobody_sent():
    with pytest.raises(Violation, match=r"^invariant 4\b"):
        begun().fetch(at(0, batch(1)))


@pytest.mark.invariant(12)
def test_a_consumer_that_is_given_other_bytes_than_were_sent():
    history = begun()
    history.fetch(at(0, batch()))
    with pytest.raises(Violation, match=r"^invariant 12\b"):
        history.fetch(at(0, batch(value=b"w")))
    damaged = bytearray(at(0, batch()))
    damaged[-1] ^= 1
    with pytest.raises(Violation, match=r"^invariant 12\b"):
        history.fetch(bytes(damaged))


@pytest.mark.invariant(14)
def test_a_batch_that_is_sent_again_and_answered_with_another_offset():
    history = begun()
    history.produce(batch())
    with pytest.raises(Violation, match=r"^invariant 14\b"):
        history.produce(batch(), offset=5)
    with pytest.raises(Violation, match=r"^invariant 14\b"):
        begun().fetch(at(1, batch()), position=1)


@pytest.mark.invariant(15)
def test_what_an_older_producer_sends_after_the_newer_one_began_is_not_done():
    history = begun()
    history.produce(batch(1), error=None)
    history.init(1, process="job-driver-2")
    history.produce(batch(1), offset=1)
    history.produce(batch(2), error=E.INVALID_PRODUCER_EPOCH)
    history.end(error=E.PRODUCER_FENCED)
    with pytest.raises(Violation, match=r"^invariant 15\b"):
        history.end()
    with pytest.raises(Violation, match=r"^invariant 15\b"):
        history.produce(batch(2), offset=2)


@pytest.mark.invariant(16)
@pytest.mark.parametrize(
    "bad",
    [
        lambda history: history.init(32_767),
        lambda history: history.init(-1),
        lambda history: history.init(0),
        lambda history: history.init(0, process="job-driver-2"),
        lambda history: history.init(1, transactional_id="y"),
        lambda history: history.init(1, process="writer", transactional_id=None),
    ],
)
def test_an_epoch_or_a_producer_id_that_is_given_wrongly(bad):
    begun().init(32_766)
    with pytest.raises(Violation, match=r"^invariant 16\b"):
        bad(begun())


def test_an_answer_that_is_heard_late_gave_what_was_right_when_it_was_asked_for():
    history = begun()
    late = asked(ApiKey.INIT_PRODUCER_ID, transactional_id="x", producer_id=-1)
    history.on_sent("job-driver-2", late)
    history.init(2, process="job-driver-3")
    answer = answered(ApiKey.INIT_PRODUCER_ID, producer_id=ID, producer_epoch=1)
    history.on_answer("job-driver-2", late, answer, 4)


@pytest.mark.invariant(36)
def test_offsets_that_a_driver_commits_outside_of_a_transaction():
    check_in_transaction(DRIVERS, asked(ApiKey.TXN_OFFSET_COMMIT))
    with pytest.raises(Violation, match=r"^invariant 36\b"):
        check_in_transaction(DRIVERS, asked(ApiKey.OFFSET_COMMIT))


# ------------------------------------------------------------------ transactions


@pytest.mark.invariant(22)
def test_a_transaction_that_was_answered_as_committed_and_is_not_there():
    history = committed()
    history.fetch(at(0, batch()))
    with pytest.raises(Violation, match=r"^invariant 22\b"):
        history.audit()


@pytest.mark.invariant(22)
@pytest.mark.parametrize(
    "ended",
    [
        lambda history: None,
        lambda history: history.end(commits=False),
        lambda history: history.end(error=E.PRODUCER_FENCED),
        lambda history: history.init(1),
    ],
)
def test_a_transaction_that_has_failed_and_is_there(ended):
    history = begun()
    ended(history)
    history.audit()
    history.audit(at(0, batch()), aborted=[0])
    with pytest.raises(Violation, match=r"^invariant 22\b"):
        history.audit(at(0, batch()))


@pytest.mark.invariant(20)
def test_a_transaction_of_unknown_outcome_is_there_whole_or_not_at_all():
    def unknown():
        history = begun()
        history.produce(batch(1), offset=1)
        history.end(error=None)
        return history

    unknown().audit()
    unknown().audit(at(0, batch()), at(1, batch(1)))
    with pytest.raises(Violation, match=r"^invariant 20\b"):
        unknown().audit(at(0, batch()))


@pytest.mark.parametrize(
    "refused",
    [
        lambda history: history.end(error=None),
        lambda history: history.end(error=E.NOT_COORDINATOR),
        lambda history: history.end(error=E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_commit_that_may_have_been_carried_out_stays_unknown_whatever_comes_after(refused):
    for after in ({"error": E.PRODUCER_FENCED}, {"commits": False}):
        history = begun()
        refused(history)
        history.end(**after)
        assert history.ended() == [0, 0, 1]
        history.audit(at(0, batch()))
        history.audit(at(0, batch()))


def test_a_commit_that_waited_and_was_refused_has_failed():
    history = begun()
    history.end(error=E.CONCURRENT_TRANSACTIONS)
    history.end(error=E.INVALID_TXN_STATE)
    assert history.ended() == [0, 1, 0]


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("number", "anomaly", "text"),
    [
        (3, "", "invariant 3: lost-write: gone (offset=1)"),
        (35, DUPLICATE, "invariant 35: duplicate: gone (offset=1)"),
        (43, "", "invariant 43: gone (offset=1)"),
    ],
)
def test_a_violation_says_what_jepsen_and_adya_call_it(number, anomaly, text):
    with pytest.raises(Violation) as found:
        violated(number, "gone", anomaly, offset=1)
    assert (str(found.value), found.value.number) == (text, number)


def test_only_an_anomaly_of_the_invariant_is_named_and_only_of_invariants_that_there_are():
    with pytest.raises(InvariantViolation):
        violated(3, "gone", DUPLICATE)
    assert set(ANOMALIES) <= set(INVARIANTS)


def test_a_failed_transaction_that_is_there_is_an_aborted_read():
    with pytest.raises(Violation, match=r"^invariant 22: aborted-read \(G1a\): "):
        begun().audit(at(0, batch()))


# ------------------------------------------------------------------ outcomes


def test_each_kind_of_operation_is_counted_as_ok_failed_or_unknown():
    history = History()
    plain = {"transactional_id": None, "process": "writer"}
    history.produce(batch(transactional=False), **plain)
    history.produce(batch(1, transactional=False), error=E.NOT_ENOUGH_REPLICAS, **plain)
    history.produce(batch(1, transactional=False), error=E.NOT_LEADER_OR_FOLLOWER, **plain)
    history.produce(batch(1, transactional=False), error=None, **plain)
    assert history.ended(SEND) == [1, 1, 2]
    for process, kind in (("neighbour-0", NEIGHBOUR), ("reader-0-1", COPY)):
        history = History()
        history.produce(batch(), process=process)
        history.end(error=None, process=process)
        assert history.ended(kind) == [0, 0, 1]
    history = History()
    topic = message(APIS[ApiKey.CREATE_TOPICS].response.CreatableTopicResult, error_code=36)
    answer = message(APIS[ApiKey.CREATE_TOPICS].response, topics=[topic])
    history.call(asked(ApiKey.CREATE_TOPICS), answer, "administrator")
    history.call(asked(ApiKey.CREATE_TOPICS), process="set-up")
    assert history.ended(ORDER) == [0, 1, 0]
    history.call(asked(ApiKey.OFFSET_COMMIT), process="reader-0-1")
    assert lines(history.outcomes().items()) == [
        f"{OFFSET_COMMIT}: ok 0, failed 0, unknown 1",
        f"{ORDER}: ok 0, failed 1, unknown 0",
    ]
