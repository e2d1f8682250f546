"""Notices of an operation go to the log of the process that runs the operation."""

from __future__ import annotations

import logging

import pytest

from txnlog_kafka.host.client import Client


def test_a_notice_becomes_a_warning_in_the_log_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Client("127.0.0.1:1") as client:
        client.session.notice("100% of 5 s")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", "100% of 5 s")]
