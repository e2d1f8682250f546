"""A broken invariant: what fails a seed."""

from __future__ import annotations

from typing import Any, NoReturn


class Violation(Exception):
    """An invariant does not hold. `number` is the one in `invariants.INVARIANTS`."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


def violated(number: int, what: str, /, **context: Any) -> NoReturn:
    """Raise Violation; the context says with which values."""
    details = ", ".join(f"{name}={value!r}" for name, value in context.items())
    raise Violation(number, f"{what} ({details})" if details else what)
