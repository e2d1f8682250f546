"""Whose turn it is to prove the token, when more connect than can at once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from txnlog_spark.staging.unproved import Unproved

TURNS = 5
"""Four of one address."""


class Door:
    """Connections in the order of their turns, and what ends them."""

    def __init__(self, count_max: int = 100) -> None:
        self._unproved = Unproved(count_max, TURNS)
        self._ended: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.proving: list[str] = []

    async def connect(self, *names: str) -> None:
        """Named by an address and a number, such as a1."""
        for name in names:
            self._ended[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._serve(name))
            await settled()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ended[name].set()
            await settled()

    def closed(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.cancelled()]

    async def _serve(self, name: str) -> None:
        async with self._unproved.turn(name[0]):
            self.proving.append(name)
            try:
                await self._ended[name].wait()
            finally:
                self.proving.remove(name)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def of(address: str, count: int) -> list[str]:
    return [f"{address}{number}" for number in range(count)]


def story(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Return the test as a function that runs it in a loop of its own."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


@story
async def test_of_one_address_so_many_have_their_turn_and_the_others_wait_in_order() -> None:
    door = Door()
    await door.connect(*of("a", 7))
    assert door.proving == ["a0", "a1", "a2", "a3"]
    await door.end("a1", "a2")
    assert door.proving == ["a0", "a3", "a4", "a5"]
    assert door.closed() == []


@story
async def test_another_address_has_its_turn_at_once_and_an_equal_share_of_what_comes_free() -> None:
    door = Door()
    await door.connect(*of("a", 20), *of("b", 4))
    assert door.proving == ["a0", "a1", "a2", "a3", "b0"]
    await door.end("a0", "a1", "a2")
    assert sorted(door.proving) == ["a3", "a4", "a5", "b0", "b1"]


@story
async def test_one_too_many_closes_the_oldest_of_the_address_that_has_the_most() -> None:
    door = Door(count_max=8)
    await door.connect("b0", *of("a", 7))
    await door.connect("b1")
    assert door.closed() == ["a0"]
    assert door.proving == ["b0", "a1", "a2", "a3", "b1"]
    await door.connect("c0")
    assert door.closed() == ["a0", "a1"]
    assert door.proving == ["b0", "a2", "a3", "b1", "c0"]


@story
async def test_with_one_connection_each_the_oldest_is_closed_and_its_address_comes_again() -> None:
    door = Door(count_max=2)
    await door.connect("a0", "b0", "a1", "a2")
    assert door.closed() == ["a0", "b0"]
    await door.connect("a3")
    assert door.closed() == ["a0", "b0", "a1"]
    assert door.proving == ["a2", "a3"]


@story
async def test_the_end_of_the_server_ends_those_that_wait() -> None:
    door = Door()
    await door.connect(*of("a", 10))
    for each in door.tasks.values():
        each.cancel()
    await settled()
    assert door.closed() == of("a", 10)


@story
async def test_one_that_is_closed_while_it_waits_leaves_its_place() -> None:
    door = Door()
    await door.connect(*of("a", 6))
    door.tasks["a4"].cancel()
    await settled()
    await door.end("a0")
    assert door.proving == ["a1", "a2", "a3", "a5"]
