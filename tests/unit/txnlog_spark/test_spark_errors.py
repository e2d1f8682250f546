"""Errors as a person sees them: one line, no frames of ours, no secrets."""

from __future__ import annotations

import io
import logging
import os
import pickle
import traceback
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.util import handle_worker_exception

from txnlog_kafka.wire.invariants import check
from txnlog_spark.datasource import TxnLogDataSource
from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_spark.source.schema import source_schema
from txnlog_spark.spark_errors import HIDE_TRACEBACK_VARIABLE, RUNTIME_VARIABLE, readable_errors


def fails_deep(depth: int) -> None:
    if depth:
        fails_deep(depth - 1)
    try:
        raise ValueError("the cause")
    except ValueError as error:
        raise TxnLogError("what to do") from error


def boundary() -> None:
    with readable_errors():
        fails_deep(5)


def generator() -> Iterator[int]:
    with readable_errors():
        yield 1
        fails_deep(5)


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("call", [boundary, lambda: list(generator())])
def test_an_error_of_ours_is_shown_without_inner_frames_and_causes(call):
    with pytest.raises(TxnLogError, match="what to do") as caught:
        call()
    text = shown(caught.value)
    assert "the cause" not in text
    assert "fails_deep" not in text
    assert "txnlog_spark/spark_errors.py" not in text


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a Python worker of Spark's, which shows tracebacks."""
    monkeypatch.setenv(RUNTIME_VARIABLE, "PYTHON_WORKER")
    monkeypatch.setenv(HIDE_TRACEBACK_VARIABLE, "")


def sent_to_spark(error: Exception) -> str:
    """Return the text that PySpark's worker sends for an error that it has caught."""
    sent = io.BytesIO()
    try:
        raise error
    except type(error) as caught:
        handle_worker_exception(caught, sent)
    sent.seek(8)  # behind the mark of an exception, and its length
    return sent.read().decode()


@pytest.mark.usefixtures("in_a_worker")
def test_a_worker_sends_an_error_of_ours_without_a_traceback():
    with pytest.raises(TxnLogError) as caught:
        boundary()
    assert sent_to_spark(caught.value) == (
        "txnlog_kafka.errors.TxnLogError: \n"
        "[TXNLOG_ERROR] what to do (python -m txnlog_spark explain TXNLOG_ERROR)\n"
    )


@pytest.mark.usefixtures("in_a_worker")
def test_a_worker_sends_a_fault_of_ours_with_its_traceback():
    with pytest.raises(AssertionError) as caught, readable_errors():
        check(False, "a fault")
    assert sent_to_spark(caught.value).startswith("Traceback")


def test_the_jobs_own_python_keeps_its_tracebacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    monkeypatch.delenv(HIDE_TRACEBACK_VARIABLE, raising=False)
    with pytest.raises(TxnLogError) as caught:
        boundary()
    assert HIDE_TRACEBACK_VARIABLE not in os.environ
    assert str(caught.value).startswith("[TXNLOG_ERROR] what to do (")


@pytest.mark.usefixtures("in_a_worker")
def test_an_error_that_passes_two_boundaries_begins_one_line():
    with pytest.raises(TxnLogError) as caught, readable_errors():
        boundary()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert str(copy).startswith("\n[TXNLOG_ERROR] ")
    assert copy.text == "[TXNLOG_ERROR] what to do"


ASKED_OF_A_STREAM = {
    "initialOffset": (),
    "getDefaultReadLimit": (),
    "prepareForTriggerAvailableNow": (),
    "latestOffset": ({}, ReadAllAvailable()),
    "partitions": ({}, {}),
}


@pytest.mark.parametrize("asked", ASKED_OF_A_STREAM)
def test_a_stream_with_a_wrong_option_has_a_reader_which_says_so_when_it_is_asked(asked: str):
    """PySpark's worker fails by an error of its own where it has no reader to stop."""
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "endingOffsets": "latest"}
    reader = TxnLogDataSource(options).streamReader(source_schema(include_headers=False))
    with pytest.raises(OptionError, match="endingOffsets"):
        getattr(reader, asked)(*ASKED_OF_A_STREAM[asked])
    reader.stop()


def test_the_whole_traceback_is_in_the_debug_log(caplog):
    with caplog.at_level(logging.DEBUG, "txnlog_spark.spark_errors"), pytest.raises(TxnLogError):
        boundary()
    assert "fails_deep" in caplog.text
    assert "the cause" in caplog.text


def test_a_fault_of_ours_keeps_its_frames():
    with pytest.raises(AssertionError) as caught, readable_errors():
        check(False, "a fault")
    assert "in check" in shown(caught.value)


def test_an_option_without_a_value_is_shown_by_its_name_alone():
    error = OptionError("subscribe", None, "set it")
    assert error.text == "[TXNLOG_OPTION] option subscribe: set it"
    assert "option topic='': set it" in str(OptionError("topic", "", "set it"))


SECRETS = [
    "kafka.ssl.key.password",
    "kafka.ssl.keystore.key",
    "kafka.sasl.jaas.config",
    "kafka.sasl.oauthbearer.client.credentials.client.secret",
    "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    "my.Token",
]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_nowhere_in_the_error(name):
    error = OptionError(name, "hunter2", "remove it")
    assert "hunter2" not in f"{error} {error!r} {error.__dict__}"
    assert name in str(error)
