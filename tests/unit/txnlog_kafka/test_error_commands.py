"""Commands in errors: lines of their own at the end, which can be pasted as they are."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from txnlog_kafka.errors import (
    BROKERS,
    DeadlineExceeded,
    FatalError,
    OptionError,
    TxnLogError,
    do_this,
)
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import Security

LIST = f"kafka-topics.sh {BROKERS} --list"


def test_a_command_is_the_last_line_wherever_it_stands_in_the_message():
    error = FatalError(3, f"reading was refused (look{do_this('ls -l')})")
    assert error.text == (
        "[TXNLOG_BROKER.FATAL] reading was refused (look): UNKNOWN_TOPIC_OR_PARTITION (3)"
    )
    assert str(error).splitlines() == [
        f"{error.text} (python -m txnlog_spark explain TXNLOG_BROKER.FATAL)",
        "Do this: ls -l",
    ]


def test_two_commands_say_when_each_is_right():
    error = TxnLogError(f"look{do_this('a', 'if it is so')}{do_this('b', 'if it is not')}")
    assert str(error).splitlines()[1:] == ["Do this if it is so: a", "Do this if it is not: b"]


def test_a_command_that_is_named_twice_is_shown_once():
    last = f"1{do_this('a')}; 2{do_this('a')}"
    error = DeadlineExceeded("reading", 5, last)
    assert error.text.endswith("last error: 1; 2")
    assert error.commands == ("Do this: a",)


def test_commands_stay_with_advice_and_through_a_pickle():
    error = OptionError("o", None, f"install it{do_this('a')}").with_advice(f"Or b{do_this('b')}")
    assert error.text == "[TXNLOG_OPTION] option o: install it. Or b"
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.commands == ("Do this: a", "Do this: b")


def fails() -> Iterator[Any]:
    raise TxnLogError(f"look{do_this(LIST)}")
    yield


@pytest.mark.parametrize(
    ("security", "option"),
    [
        (Security(), "--bootstrap-server h:1,h:2"),
        (Security("SASL_PLAINTEXT"), "--bootstrap-server h:1,h:2 --command-config FILE"),
    ],
)
def test_a_client_completes_the_command_with_its_brokers(security: Security, option: str):
    with Client("h:1,h:2", security=security) as client, pytest.raises(TxnLogError) as caught:
        client.run(fails())
    assert caught.value.commands == (f"Do this: kafka-topics.sh {option} --list",)
