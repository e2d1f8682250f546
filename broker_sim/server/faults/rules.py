"""Rules of faults, as a plain object: which request fires which rule.

A rule counts the requests that match it. It fires at number `on_call`, and at the `times - 1`
requests after it. What firing does is in the rule; the host carries it out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from broker_sim.core.handlers.find_coordinator import GROUP_KEY, TRANSACTION_KEY
from broker_sim.server.faults.error_answers import can_say_error
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.schema import Field

ALWAYS = 0
"""Value of `times` for every request from `on_call` on."""
ACTIONS = ("error", "delay_ms", "drop_response", "disconnect", "kill", "pause_ms")
MS_MAX = 3_600_000
BY_NAME = {api.name: key for key, api in APIS.items()}
CODES = {code.name: code for code in ErrorCode if code is not ErrorCode.NONE}

NameOf = Callable[[uuid.UUID], str | None]


class RuleRefused(ValueError):
    """Rule that cannot be; the text names the field and what it may be."""


@dataclass(slots=True)
class FaultRule:
    """Rule, and how often it was met. Empty conditions match every client's request."""

    id: int
    api: str
    on_call: int = 1
    times: int = 1
    client_id: str = ""
    topic: str = ""
    transactional_id: str = ""
    group_id: str = ""
    error: str = ""
    """Name of the error that is answered; the request is not carried out."""
    delay_ms: int = 0
    drop_response: bool = False
    """True if the request is carried out and its answer never leaves."""
    disconnect: bool = False
    kill: bool = False
    pause_ms: int = 0
    calls: int = 0
    """Requests that matched."""
    fired: int = 0

    @property
    def code(self) -> ErrorCode:
        """Code of `error`."""
        return CODES[self.error]

    def matches(self, key: int, client_id: str | None, message: Message, name_of: NameOf) -> bool:
        """True if the request has all that the conditions name."""
        if key != BY_NAME[self.api] or (self.client_id and client_id != self.client_id):
            return False
        return all(
            not getattr(self, name) or getattr(self, name) in names_of(message, name, name_of)
            for name in CONDITIONS
        )

    def count_call(self) -> bool:
        """Count a request that matches; return True if the rule fires."""
        self.calls += 1
        after = self.calls - self.on_call
        fires = after >= 0 and (self.times == ALWAYS or after < self.times)
        self.fired += fires
        return fires


class FaultRules:
    """Rules of one broker, in the order in which they were made."""

    def __init__(self) -> None:
        self._rules: dict[int, FaultRule] = {}
        self._next_id = 1

    def add(self, given: Mapping[str, Any]) -> FaultRule:
        """Add a rule. Raises RuleRefused."""
        rule = _checked(given, self._next_id)
        self._rules[rule.id] = rule
        self._next_id += 1
        return rule

    def remove(self, rule_id: int) -> dict[str, Any] | None:
        """Remove a rule and return it with its counts; None if there is none of this id."""
        rule = self._rules.pop(rule_id, None)
        return None if rule is None else asdict(rule)

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()

    def listed(self) -> list[dict[str, Any]]:
        """Return all rules with their counts, as JSON says them."""
        return [asdict(rule) for rule in self._rules.values()]

    def decide(
        self, key: int, client_id: str | None, message: Message, name_of: NameOf, *, of_broker: bool
    ) -> FaultRule | None:
        """Count a request in each rule that it matches; return the first that fires.

        A request of another broker matches only a rule that names its client id.
        """
        fired = None
        for rule in self._rules.values():
            if of_broker and not rule.client_id:
                continue
            if rule.matches(key, client_id, message, name_of) and rule.count_call():
                fired = fired or rule
        return fired


CONDITIONS = {
    "topic": ("name", "topic", "topic_name", "topic_names", "subscribed_topic_names", "topic_id"),
    "transactional_id": (
        "transactional_id", "transactional_ids", "v3_and_below_transactional_id",
        "key", "coordinator_keys",
    ),
    "group_id": ("group_id", "group_ids", "groups", "groups_names", "key", "coordinator_keys"),
}  # fmt: skip
"""Fields of requests, at any depth, that may have what a condition names."""
KEY_TYPES = {"group_id": GROUP_KEY, "transactional_id": TRANSACTION_KEY}
"""Types of the keys of FindCoordinator, by the condition that they may meet."""


def names_of(message: Message, condition: str, name_of: NameOf) -> set[str]:
    """Return the topics, transactional ids or groups that a request names, topics also by id."""
    key_type = getattr(message, "key_type", None)
    if key_type not in (None, KEY_TYPES.get(condition)):
        return set()
    found: set[str | None] = set()
    for field, value in _leaves(message):
        if _is_named(field, type(value).__name__, condition):
            each = getattr(value, field.name)
            values = (each or ()) if field.is_array else (each,)
            found.update(map(name_of, values) if field.kind == "uuid" else values)
    return {name for name in found if name}


def _leaves(value: Any) -> Iterator[tuple[Field, Any]]:
    for field in value.STRUCT.fields:
        if field.struct is None:
            yield field, value
        elif (inside := getattr(value, field.name)) is not None:
            for each in inside if field.is_array else [inside]:
                yield from _leaves(each)


def _is_named(field: Field, struct: str, condition: str) -> bool:
    is_name = field.kind in ("string", "uuid") and field.name in CONDITIONS[condition]
    # `name` is a topic's in the structs that say so, and a group member's or a user's in others;
    # `key` is a coordinator's in FindCoordinator, and a quota's name in AlterClientQuotas.
    owner = {"name": "topic", "key": "findcoordinator"}.get(field.name, "")
    return is_name and owner in struct.lower()


def can_name(request: type[Message], condition: str) -> bool:
    """True if requests of this kind can have what a condition names."""
    return any(
        _is_named(field, request.__name__, condition)
        or (field.struct is not None and can_name(getattr(request, field.kind), condition))
        for field in request.STRUCT.fields
    )


def _checked(given: Mapping[str, Any], rule_id: int) -> FaultRule:
    known = {field.name: field.type for field in fields(FaultRule)}
    for name in ("id", "calls", "fired"):
        del known[name]
    for name, value in given.items():
        if name not in known:
            raise RuleRefused(f"{name} is not a field of a rule: the fields are {', '.join(known)}")
        kind = {"int": int, "str": str, "bool": bool}[str(known[name])]
        if type(value) is not kind:
            raise RuleRefused(f"{name}={value!r} is not a value of type {kind.__name__}")
    if given.get("api") not in BY_NAME:
        raise RuleRefused(f"api={given.get('api')!r} is not one of {', '.join(sorted(BY_NAME))}")
    for name in CONDITIONS:
        if given.get(name) and not can_name(APIS[ApiKey(BY_NAME[given["api"]])].request, name):
            raise RuleRefused(f"{name}: a request of {given['api']} has none, so nothing matches")
    if not any(given.get(name) for name in ACTIONS):
        raise RuleRefused(f"the rule does nothing: give one of {', '.join(ACTIONS)}")
    rule = FaultRule(rule_id, **given)
    _check_numbers(rule)
    if rule.error:
        _check_error(rule)
    return rule


def _check_numbers(rule: FaultRule) -> None:
    if rule.on_call < 1:
        raise RuleRefused(f"on_call={rule.on_call}: the first request is number 1")
    if rule.times < 0:
        raise RuleRefused(f"times={rule.times}: it is a number of requests, or 0 for all")
    for name in ("delay_ms", "pause_ms"):
        if not 0 <= getattr(rule, name) <= MS_MAX:
            raise RuleRefused(f"{name}={getattr(rule, name)} is not between 0 and {MS_MAX}")


def _check_error(rule: FaultRule) -> None:
    if rule.error not in CODES:
        raise RuleRefused(f"error={rule.error!r} is not the name of an error of Kafka")
    if rule.drop_response or rule.disconnect or rule.kill:
        raise RuleRefused("error is an answer: drop_response, disconnect and kill send none")
    if not can_say_error(APIS[ApiKey(BY_NAME[rule.api])].response.STRUCT):
        raise RuleRefused(f"error: an answer to {rule.api} has no place for one")
