"""Rules of faults in running brokers, over HTTP (`broker_sim.server.faults`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Rule in one broker or several; as a context manager it is removed at the end."""

    rules: tuple[tuple[str, int], ...]
    """Address and id of the rule in each broker."""

    @classmethod
    def made(cls, addresses: Sequence[str], rule: Mapping[str, Any]) -> Self:
        """Make a rule at each address. Raises ValueError with the broker's text."""
        return cls(tuple((at, int(_ask("POST", at, rule)["id"])) for at in addresses))

    @property
    def calls(self) -> int:
        """Number of requests that have matched."""
        return sum(each["calls"] for each in self._found())

    @property
    def fired(self) -> int:
        """Number of them that the rule has struck."""
        return sum(each["fired"] for each in self._found())

    def remove(self) -> None:
        """Remove the rule; a broker that is gone has none any more."""
        for address, rule_id in self.rules:
            try:
                _ask("DELETE", f"{address}/{rule_id}")
            except (OSError, ValueError):
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()

    def _found(self) -> list[dict[str, Any]]:
        return [
            each
            for address, rule_id in self.rules
            for each in _ask("GET", address)
            if each["id"] == rule_id
        ]


def delete_rules(address: str) -> None:
    """Remove all rules of a broker."""
    _ask("DELETE", address)


def _ask(method: str, address: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return the answer. Raises ValueError with the broker's text if it refuses, OSError."""
    import urllib.error  # they load HTTP and TLS: not for each `import broker_sim`
    import urllib.request

    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["error"]) from None
