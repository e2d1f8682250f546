"""What of an error reaches a person: one line, no frames of ours, no secrets."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

import pytest

from txnlog_kafka.wire.invariants import check
from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_spark.spark_errors import readable_errors


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
    assert (
        str(OptionError("subscribe", None, "set it")) == "[TXNLOG_OPTION] option subscribe: set it"
    )
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
