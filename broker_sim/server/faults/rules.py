"""Rules of faults, as a plain object: which request fires which rule.

A rule counts the requests that match it. It fires at number `on_call`, and at the `times - 1`
requests after it. What firing does is in the rule; the host carries it out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from broker_sim.server.faults.error_answers import can_say_error
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

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
        for name in ("transactional_id", "group_id"):
            wanted = getattr(self, name)
            if wanted and getattr(message, name, None) != wanted:
                return False
        return not self.topic or self.topic in topics_of(message, name_of)

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

    def remove(self, rule_id: int) -> bool:
        """Remove a rule; return False if there is none of this id."""
        return self._rules.pop(rule_id, None) is not None

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


def topics_of(message: Message, name_of: NameOf) -> set[str]:
    """Return the topics that a request names, by name or by id."""
    return {name for name in _topics(message, name_of) if name}


def _topics(value: Any, name_of: NameOf) -> Iterator[str | None]:
    for field in value.STRUCT.fields:
        found = getattr(value, field.name)
        if found is None or (field.is_array and not found):
            continue
        is_topic = "topic" in field.name or "topic" in type(value).__name__.lower()
        if field.struct is not None:
            for each in found if field.is_array else [found]:
                yield from _topics(each, name_of)
        elif is_topic and field.kind == "uuid":
            yield from map(name_of, found if field.is_array else [found])
        elif is_topic and field.kind == "string" and field.name in _NAMES:
            yield from found if field.is_array else [found]


_NAMES = ("name", "topic", "topics", "topic_name", "topic_names", "subscribed_topic_names")


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
