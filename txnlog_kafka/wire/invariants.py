"""Checks of our own state, for both sides of the wire."""

from __future__ import annotations

from typing import Any, TypeVar, cast

T = TypeVar("T")


class InvariantViolation(AssertionError):
    """Bug of our own: a state that must not be. It is never caught: it ends the task, the commit or
    the broker, and fails the simulator's seed."""


def check(condition: bool, message: str, /, **context: Any) -> None:
    """Raise InvariantViolation unless `condition`; unlike `assert` it survives `python -O`."""
    if not condition:
        details = ", ".join(f"{name}={value!r}" for name, value in context.items())
        raise InvariantViolation(f"{message} ({details})" if details else message)


def present(value: T | None, message: str, /, **context: Any) -> T:
    """Return `value`, which is not None. Raises InvariantViolation otherwise, as `check` does."""
    check(value is not None, message, **context)
    return cast(T, value)
