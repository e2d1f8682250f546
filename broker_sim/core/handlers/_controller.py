"""Common parts of the handlers of a cluster's controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from broker_sim.core.controller.replication_control import Decision, PartitionResult
from broker_sim.core.effects import Effects
from broker_sim.core.parts import BrokerParts

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Key = TypeVar("Key")


def committed(parts: BrokerParts, decision: Decision[Answer], effects: Effects) -> Answer:
    """The answer of a decision, which holds when its records are in the metadata log."""
    if decision.records:
        parts.metadata.commit(decision.records, effects)
    return decision.answer


def grouped(
    items: Iterable[Item], key: Callable[[Item], Key], made: Callable[[Item], Any]
) -> dict[Key, list[Any]]:
    """Group the messages made from the items by topic, in the order of the items."""
    by_topic: dict[Key, list[Any]] = {}
    for item in items:
        by_topic.setdefault(key(item), []).append(made(item))
    return by_topic


def results_by_topic(
    results: Iterable[PartitionResult], result_class: Any, index_field: str
) -> dict[str, list[Any]]:
    """The results of partitions as an answer has them; their classes differ in a field's name."""
    return grouped(
        results,
        lambda each: each.topic,
        lambda each: result_class(
            **{index_field: each.partition}, error_code=int(each.error), error_message=each.message
        ),
    )
