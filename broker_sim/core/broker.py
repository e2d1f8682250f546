"""One broker as a function: `step(input, now) -> Step`. Both hosts drive only this.

A step takes one input, lets a handler or a coordinator act on the state, looks at delayed fetches
whose partitions changed, and gives back everything the host must do, in order. No clock, no
entropy but the injected `rng`, no file, no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from broker_sim.core import startup
from broker_sim.core.config import INT64_MAX, BrokerConfig
from broker_sim.core.effects import (
    Close,
    Disconnected,
    Effects,
    Input,
    PeerAnswer,
    PeerLost,
    Request,
    Start,
    Step,
    Stop,
    Storage,
    StorageSpace,
    TimerFired,
    TimerKey,
)
from broker_sim.core.handlers import HANDLERS
from broker_sim.core.handlers.fetch import reconsider
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.replica.delayed_fetch import FETCH_TIMER
from broker_sim.core.replica.log_cleaner import CLEANER_TIMER
from broker_sim.core.security.logins import LOGIN_TIMER
from txnlog_spark.wire.invariants import InvariantViolation, check, present
from txnlog_spark.wire.messages import ApiKey

if TYPE_CHECKING:
    from random import Random

RETENTION_TIMER = ("log-retention",)
CHECKPOINT_TIMER = ("log-recovery-checkpoint",)
FLUSH_TIMER = ("log-flush-scheduler",)
PRODUCER_EXPIRATION_TIMER = ("producer-id-expiration",)

USES_RESERVE = frozenset(
    {
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    }
)
"""What goes on when the storage is nearly full: ending transactions, and what frees space."""


def _apply_retention(parts: BrokerParts, effects: Effects) -> None:
    for _, log in parts.logs.items():
        if not log.config.compacts:  # those are the cleaner's
            log.apply_retention(effects)


def _expire_producers(parts: BrokerParts, effects: Effects) -> None:
    for _, log in parts.logs.items():
        log.expire_producers(effects)


_PERIODIC: dict[TimerKey, tuple[str, Callable[[BrokerParts, Effects], None]]] = {
    RETENTION_TIMER: ("log.retention.check.interval.ms", _apply_retention),
    CHECKPOINT_TIMER: (
        "log.flush.offset.checkpoint.interval.ms",
        lambda parts, effects: parts.logs.checkpoint(effects),
    ),
    FLUSH_TIMER: (
        "log.flush.scheduler.interval.ms",
        lambda parts, effects: parts.logs.flush_due(effects),
    ),
    PRODUCER_EXPIRATION_TIMER: (
        "producer.id.expiration.check.interval.ms",
        _expire_producers,
    ),
}
"""What is done again and again: the option that says how often, and what."""


class Broker:
    """See the module. Use: one `Start`, then inputs in the order they come, at last one `Stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        storage: Storage,
        rng: Random,
        *,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        """`rng` is all the entropy there is. Without `codecs` ListOffsets by time is up to one
        batch early in compressed batches, and logs with such batches are not compacted.
        """
        self._config = config
        self._storage = storage
        self._rng = rng
        self._codecs = codecs
        self._parts: BrokerParts | None = None

    @property
    def parts(self) -> BrokerParts:
        """The parts, once started; for tests and invariants to look at."""
        return present(self._parts, "the broker has not been started")

    def step(self, item: Input, now_ms: int, monotonic_ms: int) -> Step:
        """Everything `item` causes.

        `now_ms` is wall time since the epoch, `monotonic_ms` never goes back. Raises ConfigError at
        `Start` when the data directory belongs to another broker or format.
        """
        effects = Effects(now_ms, monotonic_ms)
        effects.uses_reserve = not isinstance(item, Request) or item.api_key in USES_RESERVE
        match item:
            case Request():
                self._on_request(item, effects)
            case TimerFired(key):
                self._on_timer(key, effects)
            case Disconnected(connection_id):
                self.parts.fetches.forget_connection(connection_id, effects)
                self.parts.logins.forget(connection_id, effects)
            case Start(machine_boot_id):
                self._start(machine_boot_id, effects)
            case PeerAnswer():
                self.parts.peers.on_answer(item, effects)
            case PeerLost():
                self.parts.peers.on_lost(item, effects)
            case StorageSpace(is_low):
                self.parts.space.is_low = is_low
                effects.trace("storage-space", is_low=is_low)
            case Stop():
                self._stop(effects)
        self._wake_fetches(effects)
        return effects.freeze()

    # ------------------------------------------------------------------ life

    def _start(self, machine_boot_id: str, effects: Effects) -> None:
        check(self._parts is None, "the broker was started twice")
        self._parts = startup.start(
            self._config,
            self._storage,
            self._rng,
            effects,
            machine_boot_id=machine_boot_id,
            codecs=self._codecs,
        )
        self._parts.cleaner.start(effects)
        for key in _PERIODIC:
            self._schedule(key, effects)

    def _stop(self, effects: Effects) -> None:
        startup.stop(self.parts, effects)

    # ------------------------------------------------------------------ inputs

    def _on_request(self, request: Request, effects: Effects) -> None:
        handler = HANDLERS.get(request.api_key)
        if handler is None:
            reason = f"{request.api_key.name} is not supported"
            effects.responses.append(Close(request.connection_id, reason))
            return
        principal = self.parts.logins.admit(request, effects)
        if principal is None:
            return
        if principal != request.principal:
            request = replace(request, principal=principal)
        try:
            message = handler(self.parts, request, effects)
        except InvariantViolation:
            raise
        except Exception as error:
            if effects.storage:
                raise  # memory is ahead of the disk: only recovery can tell what is true
            # A request that decodes and still makes no sense: it has not changed anything that
            # lasts, so it costs its sender the connection and nobody else anything.
            effects.responses.clear()
            effects.trace("request-failed", api=request.api_key.name, error=repr(error))
            reason = f"{request.api_key.name} v{request.api_version} failed: {error!r}"
            effects.responses.append(Close(request.connection_id, reason))
            return
        if message is not None:
            respond(request, message, effects)

    def _on_timer(self, key: TimerKey, effects: Effects) -> None:
        parts = self.parts
        if key[0] == FETCH_TIMER:
            delayed = parts.fetches.due(key)
            if delayed is not None:
                reconsider(parts, delayed, effects, due=True)
        elif key[0] == LOGIN_TIMER:
            parts.logins.on_timer(key, effects)
        elif key in _PERIODIC:
            _PERIODIC[key][1](parts, effects)
            self._schedule(key, effects)
        elif key == CLEANER_TIMER:
            parts.cleaner.on_timer(effects)
        else:
            parts.transactions.on_timer(key, effects)
            parts.groups.on_timer(key, effects)

    def _schedule(self, key: TimerKey, effects: Effects) -> None:
        """Fire after the option's time; its largest value is Kafka's way to say never."""
        after_ms = self._config.integer(_PERIODIC[key][0])
        if after_ms < INT64_MAX:
            effects.set_timer(*key, after_ms=after_ms)

    def _wake_fetches(self, effects: Effects) -> None:
        parts = self.parts
        for delayed in parts.fetches.waiting_for(parts.replicas.take_changed()):
            reconsider(parts, delayed, effects, due=False)
