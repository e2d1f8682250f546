"""The error tree: told apart by what the caller should do, named, and alive after pickling."""

from __future__ import annotations

import pickle

import pytest

from txnlog_kafka.errors import BrokerError, TxnLogError
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.invariants import InvariantViolation, check
from txnlog_spark import errors

EXAMPLES = [
    errors.OptionError("subscribe", 7, "expected topics"),
    errors.RemoteProtocolError("theirs"),
    errors.RetriableError(E.NOT_COORDINATOR, "asking"),
    errors.AbortableError(E.TRANSACTION_ABORTABLE, "producing"),
    errors.FatalError(E.INVALID_REQUEST, "asking"),
    errors.ProducerFenced(E.PRODUCER_FENCED, "ending"),
    errors.UnknownTopic(E.UNKNOWN_TOPIC_OR_PARTITION, "reading", topics=("a",)),
    errors.RecordRefused(E.MESSAGE_TOO_LARGE, "producing"),
    errors.CommitStateUnknown("sent", transactional_id="t", batch_id=3),
    errors.ProgressMissing("gone"),
    errors.ProgressBehind("behind"),
    errors.BatchReplanned("wider"),
    errors.StagedBatchesInvalid("torn"),
    errors.OffsetOutOfRange(
        topic="t", partition=1, start_offset=2, log_start_offset=3, log_end_offset=4
    ),
    errors.CorruptData("bits"),
    errors.DeadlineExceeded("waiting", 10, "REQUEST_TIMED_OUT"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_survives_the_way_between_sparks_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_is_one_line_that_starts_with_its_condition(error):
    assert str(error).startswith(f"[{error.condition}] ")
    assert "\n" not in str(error)


def test_conditions_are_unique():
    def all_kinds(kind):
        return [kind, *(k for child in kind.__subclasses__() for k in all_kinds(child))]

    ours = [k for k in all_kinds(TxnLogError) if k.__module__ == "txnlog_kafka.errors"]
    conditions = [k.condition for k in ours]
    assert len(set(conditions)) == len(conditions)


def test_a_brokers_code_is_kept_and_named_even_when_it_is_unknown():
    error = BrokerError(9999, "asking")
    assert (error.code, error.code_name) == (9999, "ERROR_9999")


def test_check_survives_and_shows_its_context():
    check(True, "fine")
    with pytest.raises(InvariantViolation, match=r"broken \(found=3\)"):
        check(False, "broken", found=3)
    assert not issubclass(InvariantViolation, TxnLogError)
