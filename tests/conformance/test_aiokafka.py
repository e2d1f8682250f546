"""Calls that only aiokafka has, unchanged, on both brokers."""

from __future__ import annotations

import pytest
from support.brokers.probe import wait_for
from support.clients.adapter import told_by
from support.clients.aiokafka_client import in_loop
from support.clients.librdkafka import values_of

pytestmark = told_by("aiokafka")


def test_an_exception_in_the_transaction_block_aborts(bootstrap, client, topic, unique):
    writer = client.transactional(bootstrap, unique("txn"))

    async def fails() -> None:
        async with writer.made.client.transaction():
            await writer.made.client.send_and_wait(topic, b"first")
            raise ZeroDivisionError

    async def works() -> None:
        async with writer.made.client.transaction():
            await writer.made.client.send(topic, b"next")

    with pytest.raises(ZeroDivisionError):
        in_loop(fails)
    uncommitted = client.read(bootstrap, topic, isolation="read_uncommitted")
    assert values_of(uncommitted) == ["first"]
    assert client.read(bootstrap, topic) == []
    # The same producer goes on: only the second try shows.
    in_loop(works)
    wait_for(lambda: values_of(client.read(bootstrap, topic)), ["next"])
