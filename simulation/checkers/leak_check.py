"""A witness of what a broker keeps: nothing of requests and clients that are gone (47).

It looks once faults have ended and every transaction is decided, when only standing work is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broker_sim.core.broker import PERIODIC
from broker_sim.core.effects import TimerKey
from broker_sim.core.group.coordinator import OFFSETS_EXPIRATION_TIMER
from broker_sim.core.membership.controller import IMBALANCE_TIMER
from broker_sim.core.membership.registry_link import HEARTBEAT_TIMER
from broker_sim.core.membership.registry_snapshots import SNAPSHOT_TIMER
from broker_sim.core.replica.delayed_fetch import FETCH_TIMER
from broker_sim.core.replica.fetcher import REPLICA_FETCH_TIMER
from broker_sim.core.replica.log_cleaner import CLEANER_TIMER
from broker_sim.core.replica.replication import HIGH_WATERMARK_TIMER, ISR_TIMER
from broker_sim.core.transaction.coordinator import EXPIRATION_TIMER, TIMEOUT_TIMER
from broker_sim.registry.sessions import SESSION_TIMER
from broker_sim.registry.waits import WAIT_TIMER
from simulation.hosts.sim_broker import SimulatedBroker
from simulation.violation import violated

_STANDING = frozenset(
    name
    for name, *_ in (
        *PERIODIC,
        OFFSETS_EXPIRATION_TIMER,
        IMBALANCE_TIMER,
        HEARTBEAT_TIMER,
        SNAPSHOT_TIMER,
        (REPLICA_FETCH_TIMER,),
        CLEANER_TIMER,
        (HIGH_WATERMARK_TIMER,),
        (ISR_TIMER,),
        EXPIRATION_TIMER,
        TIMEOUT_TIMER,
    )
)
"""The timers that a broker has for ever."""


SESSIONS_MS = 10_000
"""Longer than any session of a member. That a group has become empty need not be stored: the broker
that loads its partition then waits once more for the members of before to expire, as in Kafka."""


def left_over(host: SimulatedBroker) -> list[str]:
    """Name the leftovers of others in a broker."""
    return [*_connections(host), *_fetches(host), *_timers(host.timer_keys)]


def left_at_registry(registry: SimulatedBroker, brokers: int) -> list[str]:
    """Name the registry's leftovers beside a session, and at most one wait, of each broker."""
    names = [name for name, *_ in registry.timer_keys]
    sessions, waits = names.count(SESSION_TIMER), names.count(WAIT_TIMER)
    found = list(_connections(registry))
    if sessions != brokers or waits > brokers:
        found.append(f"{sessions} sessions and {waits} waits of {brokers} brokers")
    return found + [f"timer {name}" for name in names if name not in (SESSION_TIMER, WAIT_TIMER)]


def check_leftovers(found: Mapping[str, Sequence[str]]) -> None:
    """`found` by process. Raises Violation (47)."""
    if any(found.values()):
        violated(47, "something is left over",
                 found={name: each for name, each in found.items() if each})  # fmt: skip


def _connections(host: SimulatedBroker) -> Iterator[str]:
    for number, client in host.clients.items():
        # What it sent before it closed is carried out, and what waits for that has its timer.
        if client.connection.is_left and client.correlation_id is None:
            yield f"connection {number} of a client that has closed it"


def _fetches(host: SimulatedBroker) -> Iterator[str]:
    opened = host.broker.opened if host.is_up else None
    if opened is None:
        return
    fetches = opened.fetches
    for number in sorted(set(fetches.connections()) - host.clients.keys()):
        yield f"a fetch of connection {number}, which there is not"
    timers = sum(name == FETCH_TIMER for name, *_ in host.timer_keys)
    if timers != len(fetches):
        yield f"{timers} timers of {len(fetches)} fetches"


def _timers(keys: tuple[TimerKey, ...]) -> Iterator[str]:
    for key in keys:
        if key[0] != FETCH_TIMER and key[0] not in _STANDING:
            yield f"timer {key}"
