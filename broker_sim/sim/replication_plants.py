"""Bugs of replication, planted in one broker of a cluster; the others do as they should.

Which broker it is, the seed says. A function of the product is replaced for all of them, and asks
whose step it is that is being made.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from broker_sim.core.broker import Broker
from broker_sim.core.controller import replication_control
from broker_sim.core.controller.draft import Draft
from broker_sim.core.controller.isr_changes import IsrChange
from broker_sim.core.controller.producer_ids import PRODUCER_ID_BLOCK_SIZE
from broker_sim.core.coordinator.partition_writer import MarkerWriter, PartitionMarker
from broker_sim.core.coordinator.runtime import CoordinatorRuntime
from broker_sim.core.effects import Effects
from broker_sim.core.group import offset_requests
from broker_sim.core.handlers import allocate_producer_ids
from broker_sim.core.log import PartitionLog
from broker_sim.core.membership.decisions import Decisions
from broker_sim.core.replica.fetcher import ReplicaFetchers
from broker_sim.core.replica.leader import Leader
from broker_sim.core.replica.partition import Partition
from broker_sim.core.replies import Reply
from broker_sim.registry.registry import Registry
from broker_sim.sim.commit_plants import Plant, replaced
from txnlog_spark.wire.errors import ErrorCode

Broken = Callable[..., Any]
"""Gets the function that it stands for, and its arguments."""


class _Planted:
    """The broker with the bug, and whether it is its step that is being made."""

    def __init__(self, world: Any) -> None:
        self.number = world.seed % len(world.machines.hosts)
        self.is_stepping = False

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Notice whose step it is."""
        step = Broker.step

        def noticed(broker: Broker, *args: Any) -> Any:
            self.is_stepping = broker._config.integer("node.id") == self.number
            try:
                return step(broker, *args)
            finally:
                self.is_stepping = False

        with replaced(Broker, "step", noticed):
            yield

    def replaced(self, owner: Any, name: str, broken: Broken) -> Any:
        """`owner.name` is `broken` in the steps of this broker."""
        original = getattr(owner, name)

        def chosen(*args: Any, **options: Any) -> Any:
            if self.is_stepping:
                return broken(original, *args, **options)
            return original(*args, **options)

        return replaced(owner, name, chosen)


def _in_one_broker(*changes: tuple[Any, str, Broken]) -> Plant:
    """A plant that replaces functions in the steps of one broker."""

    @contextlib.contextmanager
    def plant(world: Any) -> Iterator[None]:
        planted = _Planted(world)
        with contextlib.ExitStack() as stack:
            stack.enter_context(planted.here())
            for change in changes:
                stack.enter_context(planted.replaced(*change))
            yield

    return plant


def _any_two(_: Broken, leader: Leader, end_offset: int, *_args: Any) -> int:
    """The high watermark is where any one other replica is, be it in the ISR or not."""
    return max(min(each.log_end_offset, end_offset) for each in leader.followers.values())


def _truncate_first(
    follow: Broken, fetchers: ReplicaFetchers, log: PartitionLog, leader: int, *rest: Any
) -> None:
    """A follower of a new leader truncates to its high watermark (before KIP-101)."""
    effects = rest[-1]
    if log.high_watermark < log.log_end_offset:
        fetchers._actions.truncate(log, log.high_watermark, effects)
    follow(fetchers, log, leader, *rest)


def _proposal_kept(update: Broken, leader: Leader, *args: Any) -> None:
    """A newer partition epoch does not end what the leader has proposed before it."""
    proposal = leader.proposal
    update(leader, *args)
    leader.proposal = proposal


def _to_the_end(read: Broken, log: PartitionLog, start_offset: int, **options: Any) -> Any:
    """Consumers get what is not committed."""
    if not options["read_committed"]:
        options["to_log_end"] = True
    return read(log, start_offset, **options)


def _producers_forgotten(lead: Broken, partition: Partition, *args: Any) -> None:
    """A new leader knows nothing of what producers have sent."""
    before = partition.leader
    lead(partition, *args)
    if partition.leader is not before:
        known = partition.log._producers.entries
        for producer_id, entry in list(known.items()):
            if entry.current_txn_first_offset is None:
                del known[producer_id]


def _marker_at_once(
    _: Broken,
    writer: MarkerWriter,
    sent: PartitionMarker,
    reply: Reply[ErrorCode],
    effects: Effects,
) -> None:
    """A marker is appended by whoever is asked, leader or not, and answered at once."""
    found = writer._replicas.lookup(*sent.place)
    if isinstance(found, ErrorCode):
        reply(found, effects)
        return
    result = found.log.append_marker(
        sent.marker, effects=effects, transaction_version=sent.transaction_version
    )
    reply(result.error, effects)


def _loaded_to_high_watermark(load: Broken, *args: Any) -> None:
    """A new coordinator reads its log to the high watermark, which is behind at a new leader."""
    batches = PartitionLog.batches

    def committed(log: PartitionLog, start_offset: int) -> Iterator[Any]:
        for header, data in batches(log, start_offset):
            if header.next_offset <= log.high_watermark:
                yield header, data

    with replaced(PartitionLog, "batches", committed):
        load(*args)


def _always(*_: Any) -> bool:
    return True


def _nothing(*_: Any) -> None:
    """In place of what ends something."""


def _newest_partition_epoch(
    check: Broken, partition: Any, broker_id: int, change: IsrChange, image: Any
) -> ErrorCode:
    """The controller takes a proposal of whatever partition epoch for one of the present."""
    newest: ErrorCode = check(
        partition, broker_id, replace(change, partition_epoch=partition.partition_epoch), image
    )
    return newest


def _never(*_: Any) -> bool:
    return False


def _no_error(*_: Any) -> ErrorCode:
    """In place of what refuses."""
    return ErrorCode.NONE


def _same_block(record: Broken, next_producer_id: int) -> Any:
    """The block that was given is not noted."""
    return record(next_producer_id - PRODUCER_ID_BLOCK_SIZE)


@contextlib.contextmanager
def _acts_after_its_session(world: Any) -> Iterator[None]:
    """A controller goes on when its session is over, and names whatever epoch there is."""
    append = Registry._append
    name = f"broker-{world.seed % len(world.machines.hosts)}"

    def lenient(registry: Registry, request: Any, effects: Any) -> Any:
        if request.client_id == name:
            message = copy.copy(request.message)
            message.controller_epoch = registry._state.controller_epoch
            message.expected_end_offset = registry._state.log.end_offset
            request = replace(request, message=message)
        return append(registry, request, effects)

    with (
        _in_one_broker((Decisions, "end", _nothing))(world),
        replaced(Registry, "_append", lenient),
    ):
        yield


REPLICATION_PLANTS: dict[str, Plant] = {
    "high-watermark-of-any-two": _in_one_broker((Leader, "high_watermark", _any_two)),
    "truncated-to-high-watermark": _in_one_broker((ReplicaFetchers, "follow", _truncate_first)),
    "isr-proposal-not-fenced": _in_one_broker((Leader, "update", _proposal_kept)),
    "isr-change-not-fenced": _in_one_broker(
        (replication_control, "check_isr_change", _newest_partition_epoch)
    ),
    "served-above-high-watermark": _in_one_broker((PartitionLog, "read", _to_the_end)),
    "producers-forgotten": _in_one_broker((Partition, "lead", _producers_forgotten)),
    "marker-to-an-old-leader": _in_one_broker((MarkerWriter, "append_marker", _marker_at_once)),
    "loaded-to-high-watermark": _in_one_broker(
        (CoordinatorRuntime, "load", _loaded_to_high_watermark)
    ),
    "unclean-election": _in_one_broker((Draft, "unclean_allowed", _always)),
    "controller-after-its-session": _acts_after_its_session,
    "producer-ids-given-twice": _in_one_broker(
        (allocate_producer_ids, "producer_ids_record", _same_block)
    ),
    "acknowledged-under-min-isr": _in_one_broker(
        (Partition, "_is_under_min_isr", _never), (Partition, "_committed", _no_error)
    ),
    "any-generation-commits": _in_one_broker((offset_requests, "_refuse_member", _no_error)),
}
"""By name; they need a scenario with several brokers."""
