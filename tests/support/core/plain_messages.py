"""Messages as dicts, to compare and to print."""

from __future__ import annotations

from typing import Any

from txnlog_kafka.wire.structs import StructValue


def plain(value: Any) -> Any:
    """Structs as dicts of all their fields, wherever they are in the value."""
    if isinstance(value, StructValue):
        return {name: plain(getattr(value, name)) for name in value.DEFAULTS}
    return [plain(each) for each in value] if isinstance(value, list) else value


def error_codes(message: Any) -> list[int]:
    """Return all error codes of a plain message, wherever they are."""
    if isinstance(message, list):
        return [code for each in message for code in error_codes(each)]
    if not isinstance(message, dict):
        return []
    own = [value for name, value in message.items() if name.endswith("error_code")]
    return own + [code for each in message.values() for code in error_codes(each)]


def operations(bits: int) -> set[int]:
    """The operations of an answer, which has a bit for each."""
    return {number for number in range(31) if bits & 1 << number}
