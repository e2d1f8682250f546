"""Bugs of replication, planted in one broker of a cluster; the others do as they should.

Which broker it is, the seed says. A function of the product is replaced for all of them, and asks
whose step it is that is being made.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from broker_sim.core.controller import replication_control
from broker_sim.core.controller.draft import Draft
from broker_sim.core.controller.isr_changes import IsrChange
from broker_sim.core.controller.producer_ids import PRODUCER_ID_BLOCK_SIZE
from broker_sim.core.coordinator.partition_writer import MarkerWriter, PartitionMarker
from broker_sim.core.coordinator.runtime import CoordinatorRuntime
from broker_sim.core.effects import Effects
from broker_sim.core.group import offset_refusals
from broker_sim.core.handlers import allocate_producer_ids
from broker_sim.core.log import PartitionLog
from broker_sim.core.membership.decisions import Decisions
from broker_sim.core.replica.fetcher import ReplicaFetchers
from broker_sim.core.replica.leader import Leader
from broker_sim.core.replica.partition import Partition
from broker_sim.core.replies import Reply
from broker_sim.registry.registry import Registry
from planted.commit_plants import replaced
from planted.one_planted import Broken, in_one_broker
from simulation.world import Plant
from txnlog_kafka.wire.error_codes import ErrorCode


def _moved_by_one_that_left(
    high_watermark: Broken, leader: Leader, end_offset: int, *rest: Any
) -> int:
    """A replica that has left the ISR moves the high watermark all the same."""
    left = (n for n in leader.followers if n not in leader.maximal_isr)
    reached: int = high_watermark(leader, end_offset, *rest)
    return max([reached, *(min(leader.followers[n].log_end_offset, end_offset) for n in left)])


def _moved_with_few(advance: Broken, partition: Partition, *args: Any) -> bool:
    """(12) The high watermark moves while fewer are in the ISR than min.insync.replicas asks."""
    with replaced(Partition, "_is_under_min_isr", _never):
        moved: bool = advance(partition, *args)
    return moved


def _admitted_at_once(
    expanded: Broken, leader: Leader, replica_id: int, _: int, *rest: Any
) -> tuple[int, ...] | None:
    """(14) A replica that fetches comes into the ISR, wherever its log ends."""
    lenient = replace(leader, epoch_start_offset=0)
    isr: tuple[int, ...] | None = expanded(lenient, replica_id, 0, *rest)
    return isr


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
    append_marker: Broken,
    writer: MarkerWriter,
    sent: PartitionMarker,
    reply: Reply[ErrorCode],
    effects: Effects,
) -> None:
    """A marker is appended by one that leads no more, too, and answered at once."""
    found = writer._replicas.lookup(*sent.place)
    if isinstance(found, ErrorCode) or found.leader is not None:
        append_marker(writer, sent, reply, effects)
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
    """Do nothing, in place of a method that ends something."""


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
    """Return no error, in place of a check that refuses."""
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
        in_one_broker((Decisions, "end", _nothing))(world),
        replaced(Registry, "_append", lenient),
    ):
        yield


REPLICATION_PLANTS: dict[str, Plant] = {
    "high-watermark-of-one-that-left": in_one_broker(
        (Leader, "high_watermark", _moved_by_one_that_left)
    ),
    "high-watermark-with-few-in-sync": in_one_broker((Partition, "advance", _moved_with_few)),
    "admitted-before-it-caught-up": in_one_broker((Leader, "expanded_isr", _admitted_at_once)),
    "truncated-to-high-watermark": in_one_broker((ReplicaFetchers, "follow", _truncate_first)),
    "isr-proposal-not-fenced": in_one_broker((Leader, "update", _proposal_kept)),
    "isr-change-not-fenced": in_one_broker(
        (replication_control, "check_isr_change", _newest_partition_epoch)
    ),
    "served-above-high-watermark": in_one_broker((PartitionLog, "read", _to_the_end)),
    "producers-forgotten": in_one_broker((Partition, "lead", _producers_forgotten)),
    "marker-to-an-old-leader": in_one_broker((MarkerWriter, "append_marker", _marker_at_once)),
    "loaded-to-high-watermark": in_one_broker(
        (CoordinatorRuntime, "load", _loaded_to_high_watermark)
    ),
    "unclean-election": in_one_broker((Draft, "unclean_allowed", _always)),
    "controller-after-its-session": _acts_after_its_session,
    "producer-ids-given-twice": in_one_broker(
        (allocate_producer_ids, "producer_ids_record", _same_block)
    ),
    "acknowledged-under-min-isr": in_one_broker(
        (Partition, "_is_under_min_isr", _never), (Partition, "_committed", _no_error)
    ),
    "any-generation-commits": in_one_broker((offset_refusals, "_refuse_member", _no_error)),
}
"""Plants by name; they need a scenario with several brokers."""
