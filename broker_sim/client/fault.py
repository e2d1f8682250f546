"""Rules of faults in running brokers, over HTTP (`broker_sim.server.faults`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

TIMEOUT_S = 30.0


class ClusterError(RuntimeError):
    """A broker process did not do what was asked, or is gone; the text says more."""


@dataclass(slots=True)
class Fault:
    """Rule in one broker or several; as a context manager it is removed at the end."""

    rules: tuple[tuple[str, int], ...]
    """Address and id of the rule in each broker."""
    _last: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rule with its counts when it was removed, by address."""

    @classmethod
    def made(cls, addresses: Sequence[str], rule: Mapping[str, Any]) -> Self:
        """Make a rule at each address. Raises ValueError with the broker's text."""
        return cls(tuple((at, int(_ask("POST", at, rule)["id"])) for at in addresses))

    @property
    def calls(self) -> int:
        """Number of requests that have matched, until the rule was removed. Raises ClusterError."""
        return self._sum("calls")

    @property
    def fired(self) -> int:
        """Number of them that the rule has struck. Raises ClusterError."""
        return self._sum("fired")

    def remove(self) -> None:
        """Remove the rule, also in the brokers that are left when one is gone."""
        for address, rule_id in self.rules:
            if address not in self._last:
                # A broker that is gone has no rules, and a broker whose rules were deleted refuses.
                # The rule strikes no more there: go on with the other brokers.
                with contextlib.suppress(ClusterError, ValueError):
                    self._last[address] = _ask("DELETE", f"{address}/{rule_id}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()

    def _sum(self, count: str) -> int:
        return sum(int(self._rule(*place)[count]) for place in self.rules)

    def _rule(self, address: str, rule_id: int) -> dict[str, Any]:
        if address in self._last:
            return self._last[address]
        for each in _ask("GET", address):
            if each["id"] == rule_id:
                return each  # type: ignore[no-any-return]
        raise ClusterError(f"{address} has no rule {rule_id}: all were cleared")


def delete_rules(address: str) -> None:
    """Remove all rules of a broker."""
    _ask("DELETE", address)


def _ask(method: str, address: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return the answer. Raises ValueError with the broker's text if it refuses, ClusterError."""
    import urllib.error  # they load HTTP and TLS: not for each `import broker_sim`
    import urllib.request

    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, method=method)
    # The broker is on this machine; a proxy that the environment names would not reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["error"]) from None
    except OSError as error:
        gone = "a broker that is gone has no counts of its rules"
        raise ClusterError(f"{address} does not answer ({error}): {gone}") from None
