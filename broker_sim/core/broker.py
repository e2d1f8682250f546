"""A single broker as a function: `step(input, now) -> Step`. Both hosts drive only this.

A step takes a single input, and lets a handler or a coordinator act on the state. It looks at
delayed fetches whose partitions changed, and returns the host's work, in order. No clock, no
entropy but the injected `rng`, no file, no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from broker_sim.apis import AnyApiKey
from broker_sim.core import startup
from broker_sim.core.config import INT64_MAX, BrokerConfig
from broker_sim.core.effects import (
    Close,
    ControlledShutdown,
    Disconnected,
    Effects,
    Input,
    PeerAnswer,
    PeerLost,
    Request,
    RequestTime,
    Start,
    Step,
    Stop,
    Storage,
    StorageSpace,
    TimerFired,
    TimerKey,
)
from broker_sim.core.endpoint import Endpoint, inter_broker_listener, read_registry
from broker_sim.core.handlers import CONTROLLER_HANDLERS, HANDLERS, cluster_handlers
from broker_sim.core.handlers._lookup import Handler
from broker_sim.core.handlers.fetch import reconsider
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.membership import Membership
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.registry_client import REGISTRY_PEER, REGISTRY_WAIT_PEER
from broker_sim.core.replica.delayed_fetch import FETCH_TIMER
from broker_sim.core.replica.log_cleaner import CLEANER_TIMER
from broker_sim.core.security.bearer import NO_TOKEN_CHECKS, TokenChecks
from broker_sim.core.security.logins import LOGIN_TIMER
from txnlog_kafka.wire.invariants import InvariantViolation, check, present
from txnlog_kafka.wire.messages import ApiKey, Message

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
        ApiKey.ALTER_CLIENT_QUOTAS,
    }
)
"""APIs that go on when the storage is nearly full: they end transactions, or free space."""


def _expire_producers(parts: BrokerParts, effects: Effects) -> None:
    for _, log in parts.logs.items():
        log.expire_producers(effects)


PERIODIC: dict[TimerKey, tuple[str, Callable[[BrokerParts, Effects], bool | None]]] = {
    RETENTION_TIMER: (
        "log.retention.check.interval.ms",
        # Logs that are compacted are the cleaner's.
        lambda parts, effects: parts.logs.apply_retention(effects, compacted=False),
    ),
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
"""Periodic work, by timer: the option with its interval, and the function.

If the function returns True, more is to do, in a step of its own after MORE_MS.
"""
MORE_MS = 100


class Broker:
    """See the module. Use: one `Start`, then inputs in the order they come, at last one `Stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        storage: Storage,
        rng: Random,
        *,
        codecs: Codecs = NO_CODECS,
        token_checks: TokenChecks = NO_TOKEN_CHECKS,
    ) -> None:
        """`rng` is all the entropy there is. Without `codecs` ListOffsets by time is up to one
        batch early in compressed batches, and logs with such batches are not compacted.
        """
        self._given = startup.Given(config, storage, rng, codecs, token_checks)
        self._registry: Endpoint | None = None
        """Endpoint of the registry; None: this broker is alone."""
        self._handlers: Mapping[AnyApiKey, Handler] = HANDLERS
        self._membership: Membership | None = None
        self.opened: BrokerParts | None = None
        """Parts of the broker; None before the logs are open, in a cluster long after the start."""

    @property
    def membership(self) -> Membership:
        """Membership of this broker, once started."""
        found = self._membership
        return found if found is not None else present(found, "the broker has not been started")

    @property
    def parts(self) -> BrokerParts:
        """The parts, once the logs are open; for tests and invariants to look at."""
        parts = self.opened
        return parts if parts is not None else present(parts, "the broker has not opened its logs")

    @property
    def is_serving(self) -> bool:
        """True if clients may be let in."""
        return self._membership is not None and self._membership.is_serving

    @property
    def may_stop(self) -> bool:
        """True if other brokers lead all that they can of this broker's (`ControlledShutdown`)."""
        return self._membership is None or self._membership.has_handed_over

    @property
    def times_requests(self) -> bool:
        """True if the time of requests counts for a quota."""
        return self.opened is not None and self.opened.quotas.is_set

    def peer_endpoint(self, peer: int) -> Endpoint | None:
        """Return the endpoint for requests to the peer; None for a peer that is not known now."""
        if peer in (REGISTRY_PEER, REGISTRY_WAIT_PEER):
            return self._registry
        registered = self.membership.image.brokers.get(peer)
        if registered is None:
            return None
        return registered.endpoints.get(inter_broker_listener(self._given.config))

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
            case Disconnected() | RequestTime():
                self._on_connection(item, effects)
            case Start(machine_boot_id):
                self._start_parts(machine_boot_id, effects)
            case PeerAnswer():
                self._given.peers.on_answer(item, effects)
            case PeerLost():
                self._given.peers.on_lost(item, effects)
            case StorageSpace(is_low):
                self._given.space.is_low = is_low
                effects.trace("storage-space", is_low=is_low)
            case ControlledShutdown():
                self.membership.begin_shutdown(effects)
            case Stop():
                self._stop_parts(effects)
        self._end_step(effects)
        return effects.freeze()

    # ------------------------------------------------------------------ life

    def _start_parts(self, machine_boot_id: str, effects: Effects) -> None:
        check(self._membership is None, "the broker was started twice")
        self._registry = read_registry(self._given.config)
        if self._registry is None:
            self._on_opened(startup.start(self._given, machine_boot_id, effects), effects)
        else:
            member = startup.join(
                self._given,
                machine_boot_id,
                effects,
                decide=self._decide_request,
                opened=self._on_opened,
            )
            self._membership, self._handlers = member, cluster_handlers(member)

    def _on_opened(self, parts: BrokerParts, effects: Effects) -> None:
        """From here on requests are answered, in a cluster once the broker is registered."""
        self.opened, self._membership = parts, parts.membership
        parts.cleaner.start(effects)
        for key in PERIODIC:
            self._schedule(key, effects)

    def _stop_parts(self, effects: Effects) -> None:
        self.membership.stop(effects)
        if self.opened is not None:  # else what the last stop has left is untouched
            startup.stop(self.opened, effects)

    # ------------------------------------------------------------------ inputs

    def _on_request(self, request: Request, effects: Effects) -> None:
        if self.opened is None:
            reason = "the broker has not read the cluster's metadata yet"
            effects.responses.append(Close(request.connection_id, reason))
            return
        handler = self._handlers.get(request.api_key)
        if handler is None:
            reason = f"{request.api_key.name} is not supported"
            effects.responses.append(Close(request.connection_id, reason))
            return
        principal = self.opened.logins.admit(request, effects)
        if principal is None:
            return
        if principal != request.principal:
            request = replace(request, principal=principal)
        if self.opened.quotas.is_set:
            self.opened.quotas.note_request(request)
        message = self._handle_request(handler, request, effects)
        if message is not None:
            respond(request, message, effects)

    def _on_connection(self, item: Disconnected | RequestTime, effects: Effects) -> None:
        parts = self.opened
        if parts is None:
            return
        if isinstance(item, RequestTime):
            parts.quotas.note_time(item, effects.monotonic_ms)
            return
        parts.fetches.forget_connection(item.connection_id, effects)
        parts.logins.forget(item.connection_id, effects)
        parts.quotas.forget(item.connection_id)

    def _handle_request(
        self, handler: Handler, request: Request, effects: Effects
    ) -> Message | None:
        """The answer, when there is one already. A client whose request makes no sense loses
        its connection."""

        def close(error: Exception) -> None:
            effects.responses.clear()
            reason = f"{request.api_key.name} v{request.api_version} failed: {error!r}"
            effects.responses.append(Close(request.connection_id, reason))

        return self._attempt_request(handler, request, effects, close)

    def _decide_request(self, request: Request, effects: Effects) -> Message | None:
        """The answer to a request at the controller, None for one that makes no sense."""
        handler = CONTROLLER_HANDLERS[request.api_key]
        return self._attempt_request(handler, request, effects, lambda _error: None)

    def _attempt_request(
        self,
        handler: Handler,
        request: Request,
        effects: Effects,
        failed: Callable[[Exception], None],
    ) -> Message | None:
        """Return the handler's result.

        A request that decodes and still makes no sense has not changed anything that lasts. So it
        costs its sender the answer, and costs the other clients nothing.
        """
        changed = len(effects.storage)
        try:
            return handler(self.parts, request, effects)
        except InvariantViolation:
            raise
        except Exception as error:
            if len(effects.storage) > changed:
                raise  # memory is ahead of the disk: only recovery can tell what is true
            effects.trace("request-failed", api=request.api_key.name, error=repr(error))
            failed(error)
            return None

    def _on_timer(self, key: TimerKey, effects: Effects) -> None:
        parts = self.opened
        if self.membership.on_timer(key, effects) or parts is None:
            return
        if key[0] == FETCH_TIMER:
            delayed = parts.fetches.due(key)
            if delayed is not None:
                reconsider(parts, delayed, effects, due=True)
        elif key[0] == LOGIN_TIMER:
            parts.logins.on_timer(key, effects)
        elif key in PERIODIC:
            if PERIODIC[key][1](parts, effects):
                effects.set_timer(*key, after_ms=MORE_MS)
            else:
                self._schedule(key, effects)
        elif key == CLEANER_TIMER:
            parts.cleaner.on_timer(effects)
        elif not (
            parts.replicas.on_timer(key, effects) or parts.replication.on_timer(key, effects)
        ):
            parts.transactions.on_timer(key, effects)
            parts.groups.on_timer(key, effects)
            parts.markers.on_timer(key, effects)
            parts.verifier.on_timer(key, effects)
            parts.add_retries.on_timer(key, effects)

    def _schedule(self, key: TimerKey, effects: Effects) -> None:
        """Fire after the option's time; its largest value is Kafka's way to say never."""
        after_ms = self._given.config.integer(PERIODIC[key][0])
        if after_ms < INT64_MAX:
            effects.set_timer(*key, after_ms=after_ms)

    def _end_step(self, effects: Effects) -> None:
        """Look at the fetches that wait for what has changed, and at the quotas."""
        parts = self.opened
        if parts is None:
            return
        changes = parts.replicas.take_changes()
        if changes:
            sessions = parts.sessions.on_changed(changes)
            for delayed in parts.fetches.waiting_for(changes, sessions):
                reconsider(parts, delayed, effects, due=False)
        if parts.quotas.is_set:
            parts.quotas.throttle(effects)
