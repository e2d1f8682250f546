"""Requests that the controller carries out, on their way to it; it may be this broker.

A client's request goes to the controller in an Envelope (KIP-590), with the client that asks and
its address, and its answer comes back as it is. The controller may change meanwhile, and there may
be none: the request is tried again within its time, so it may be carried out twice, as in Kafka.
What this broker itself asks is asked once: the caller has to ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from broker_sim.apis import BROKER_APIS, AnyApiKey, BrokerApiKey
from broker_sim.core.effects import Effects, Request, TimerKey
from broker_sim.core.membership.registration import NO_CONTROLLER
from broker_sim.core.peers import Peers
from broker_sim.core.replies import Reply
from broker_sim.core.security.principals import A_BROKER
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import MalformedFrame
from txnlog_kafka.wire.messages import KNOWN_APIS, ApiKey, Message

CONTROLLER_REQUEST_TIMER = ("controller-requests",)
RETRY_MS = 100
_LOCAL = "127.0.0.1"
TIMEOUT_MS = 30_000
"""Milliseconds for a request without a time limit of its own (controller.socket.timeout.ms)."""


@dataclass(frozen=True, slots=True)
class Line:
    """Line from a part of this broker to the controller, for a single kind of request."""

    ask: Callable[[Message, Reply[Any], Effects], None]
    """Function like `ControllerRequests.ask`."""
    me: Callable[[], tuple[int, int]]
    """This broker's id and epoch."""


CarryOut = Callable[[Request, Reply[Any], Effects], None]
"""Handles a request at the controller; replies with its answer, or with an ErrorCode:
NOT_CONTROLLER when this broker is not, or not any more."""


@dataclass(eq=False, slots=True)
class _Asked:
    """A request of this broker's own that is not answered yet."""

    controller: int
    reply: Reply[Any]
    deadline_ms: int


@dataclass(eq=False, slots=True)
class _Forwarded:
    """A client's request that is not answered yet."""

    request: Request
    reply: Reply[Any]
    deadline_ms: int
    is_asked: bool = False


class ControllerRequests:
    """See the module."""

    def __init__(
        self,
        peers: Peers,
        who: tuple[int, str],
        controller_id: Callable[[], int],
        carry_out: CarryOut,
    ) -> None:
        """`who` is this broker's id, and the listener by which other brokers ask it."""
        node_id, listener = who
        self._peers = peers
        self._node_id = node_id
        self._controller_id = controller_id
        self._carry_out = carry_out
        self._own = Request(-1, 0, ApiKey.CREATE_TOPICS, 0, None, _LOCAL, None, listener, A_BROKER)
        """Template of the requests that this broker sends to a controller on itself."""
        self._forwarded: list[_Forwarded] = []
        self._asked: list[_Asked] = []
        self._ticks = False

    # ------------------------------------------------------------------ this broker's own

    def ask(
        self, message: Message, api: tuple[AnyApiKey, int], reply: Reply[Any], effects: Effects
    ) -> None:
        """Ask once, `api` being key and version. Replies with the answer or with NOT_CONTROLLER,
        also when the connection was lost, the time is over or another broker is the controller,
        and then it may have been carried out: one that stands still holds up nobody."""
        controller = self._controller_id()
        if controller == NO_CONTROLLER:
            return reply(ErrorCode.NOT_CONTROLLER, effects)
        asked = _Asked(controller, reply, effects.monotonic_ms + TIMEOUT_MS)
        self._asked.append(asked)

        def take(answer: Any, effects: Effects) -> None:
            self._settle_request(
                asked, ErrorCode.NOT_CONTROLLER if answer is None else answer, effects
            )

        if controller == self._node_id:
            self._carry_out(self.own(message, api), take, effects)
        else:
            self._peers.send(controller, message, api[1], take, effects)
        return self._schedule_tick(effects)

    def _settle_request(self, asked: _Asked, answer: Any, effects: Effects) -> None:
        """Answer the request, unless it was given up: a late answer is ignored."""
        if asked in self._asked:
            self._asked.remove(asked)
            asked.reply(answer, effects)

    def _give_up_requests(self, effects: Effects) -> None:
        controller = self._controller_id()
        for asked in list(self._asked):
            if asked.controller != controller or effects.monotonic_ms >= asked.deadline_ms:
                self._settle_request(asked, ErrorCode.NOT_CONTROLLER, effects)

    def own(self, message: Message, api: tuple[AnyApiKey, int]) -> Request:
        """A request of this broker itself, as of one of its clients."""
        return replace(self._own, api_key=api[0], api_version=api[1], message=message)

    # ------------------------------------------------------------------ of clients

    def forward(self, request: Request, reply: Reply[Any], effects: Effects) -> None:
        """Bring a client's request to the controller; replies with its answer or an ErrorCode."""
        asked_ms = getattr(request.message, "timeout_ms", None) or TIMEOUT_MS
        timeout_ms = min(asked_ms, TIMEOUT_MS) if asked_ms > 0 else TIMEOUT_MS
        item = _Forwarded(request, reply, effects.monotonic_ms + timeout_ms)
        self._forwarded.append(item)
        self._try_request(item, effects)
        self._schedule_tick(effects)

    def retry(self, effects: Effects) -> None:
        """There may be a controller now, or another one."""
        self._give_up_requests(effects)
        for item in list(self._forwarded):
            self._try_request(item, effects)

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """Handle the timer; return True if it belongs to this module."""
        if key == CONTROLLER_REQUEST_TIMER:
            self._ticks = False
            for item in list(self._forwarded):
                if effects.monotonic_ms >= item.deadline_ms:
                    self._finish_request(item, ErrorCode.REQUEST_TIMED_OUT, effects)
            self.retry(effects)
            self._schedule_tick(effects)
        return key == CONTROLLER_REQUEST_TIMER

    def _schedule_tick(self, effects: Effects) -> None:
        if (self._forwarded or self._asked) and not self._ticks:
            self._ticks = True
            effects.set_timer(*CONTROLLER_REQUEST_TIMER, after_ms=RETRY_MS)

    def _try_request(self, item: _Forwarded, effects: Effects) -> None:
        controller = self._controller_id()
        if item.is_asked or controller == NO_CONTROLLER:
            return
        item.is_asked = True
        if controller == self._node_id:
            self._carry_out(
                item.request,
                lambda answer, effects: self._take_answer(item, answer, effects),
                effects,
            )
            return

        def on_answer(envelope: Message | None, effects: Effects) -> None:
            self._take_answer(item, _opened(item.request, envelope), effects)

        version = BROKER_APIS[BrokerApiKey.ENVELOPE].version
        self._peers.send(controller, _enveloped(item.request), version, on_answer, effects)

    def _take_answer(self, item: _Forwarded, answer: Any, effects: Effects) -> None:
        item.is_asked = False
        if answer is not ErrorCode.NOT_CONTROLLER:
            self._finish_request(item, answer, effects)

    def _finish_request(self, item: _Forwarded, answer: Any, effects: Effects) -> None:
        """Answer the request, unless it was given up: a late answer is ignored."""
        if item in self._forwarded:
            self._forwarded.remove(item)
            item.reply(answer, effects)


def _enveloped(request: Request) -> Message:
    """The Envelope of a client's request."""
    message = request.message
    frame = framing.encode_request(
        message, request.api_version, request.correlation_id, request.client_id
    )
    return BROKER_APIS[BrokerApiKey.ENVELOPE].request(
        request_data=frame[4:],
        request_principal=request.principal.encode(),
        client_host_address=request.client_host.encode(),
    )


def _opened(request: Request, envelope: Message | None) -> Any:
    """The answer to a client's request, or an ErrorCode."""
    if envelope is None:
        return ErrorCode.NOT_CONTROLLER
    if envelope.error_code:
        return ErrorCode(envelope.error_code)
    api = KNOWN_APIS[ApiKey(request.api_key)]
    try:
        data = bytes(envelope.response_data)
        return framing.decode_response(api, request.api_version, data)
    except MalformedFrame:
        return ErrorCode.UNKNOWN_SERVER_ERROR
