"""Key of a configuration option: name, type, range, text; parsing and printing of values.

Parsing follows Kafka's `ConfigDef`: blanks around a value do not matter, a list is separated by
commas and has no empty element; a repeated one counts once.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

ConfigValue = int | bool | str | float

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class ConfigError(ValueError):
    """A configuration that cannot be used; the text names the option and what is allowed."""


class DataDirectoryError(ConfigError):
    """A data directory that cannot be used as it is; the text says what is wrong with it."""


class ConfigKind(enum.IntEnum):
    """Value types, numbered as in `DescribeConfigs` answers (Kafka's `ConfigType`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9
    """A text that nothing shows."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """Configuration option: its name, its values and its meaning."""

    name: str
    kind: ConfigKind
    default: ConfigValue
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[str, ...] = ()
    pattern: str = ""
    """Pattern that the printed value must match as a whole, if not empty."""

    def parse(self, text: str | ConfigValue) -> ConfigValue:
        """The typed value of `text`. Raises ConfigError, naming the option and the range."""
        value = self._parse(text)
        if self.pattern and re.fullmatch(self.pattern, format_value(value)) is None:
            raise ConfigError(f"{self.name} cannot be {format_value(text)[:100]!r}")
        return value

    def _parse(self, text: str | ConfigValue) -> ConfigValue:
        match self.kind:
            case ConfigKind.BOOLEAN:
                return self._parse_boolean(text)
            case ConfigKind.STRING | ConfigKind.PASSWORD:
                return self._check_allowed(str(text).strip())
            case ConfigKind.LIST:
                return self._parse_list(str(text))
            case ConfigKind.DOUBLE:
                return self._parse_double(format_value(text))
        return self._parse_integer(text)

    def _parse_boolean(self, text: str | ConfigValue) -> bool:
        lowered = str(text).strip().lower()
        if lowered not in ("true", "false"):
            raise ConfigError(f"{self.name} must be true or false, not {text!r}")
        return lowered == "true"

    def _check_allowed(self, value: str) -> str:
        if self.allowed and value not in self.allowed:
            raise ConfigError(
                f"{self.name} must be one of {', '.join(self.allowed)}, not {value!r}"
            )
        return value

    def _parse_list(self, text: str) -> str:
        if not text.strip():
            return ""
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise ConfigError(f"{self.name} has an empty element: {text!r}")
        return ",".join(self._check_allowed(part) for part in dict.fromkeys(parts))

    def _parse_integer(self, text: str | ConfigValue) -> int:
        trimmed = format_value(text).strip()
        if _INTEGER.fullmatch(trimmed) is None:
            raise ConfigError(f"{self.name} must be a whole number, not {text!r}")
        # Text of many digits is not a number of 64 bits, and slow to turn into one.
        value = int(trimmed) if len(trimmed) <= 20 else INT64_MAX + 1
        limit = INT32_MAX if self.kind is ConfigKind.INT else INT64_MAX
        low = -limit - 1 if self.minimum is None else int(self.minimum)
        high = limit if self.maximum is None else int(self.maximum)
        if not low <= value <= high:
            raise ConfigError(f"{self.name} must be between {low} and {high}, not {trimmed[:30]}")
        return value

    def _parse_double(self, text: str) -> float:
        trimmed = text.strip()
        if len(trimmed) > 400 or _DOUBLE.fullmatch(trimmed) is None:
            raise ConfigError(f"{self.name} must be a number, not {text[:30]!r}")
        value = float(trimmed)
        low = -DOUBLE_MAX if self.minimum is None else self.minimum
        high = DOUBLE_MAX if self.maximum is None else self.maximum
        if not low <= value <= high:
            raise ConfigError(f"{self.name} must be between {low} and {high}, not {trimmed[:30]}")
        return value


def int32(
    name: str, default: int, doc: str, low: int | None = None, high: int | None = None
) -> ConfigKey:
    """Return an option of the kind INT."""
    return ConfigKey(name, ConfigKind.INT, default, doc, low, high)


def int64(name: str, default: int, doc: str, low: int | None = None) -> ConfigKey:
    """Return an option of the kind LONG."""
    return ConfigKey(name, ConfigKind.LONG, default, doc, low)


def flag(name: str, default: bool, doc: str) -> ConfigKey:
    """Return an option of the kind BOOLEAN."""
    return ConfigKey(name, ConfigKind.BOOLEAN, default, doc)


def text(name: str, default: str, doc: str, allowed: tuple[str, ...] = ()) -> ConfigKey:
    """Return an option of the kind STRING."""
    return ConfigKey(name, ConfigKind.STRING, default, doc, allowed=allowed)


def texts(name: str, default: str, doc: str, allowed: tuple[str, ...] = ()) -> ConfigKey:
    """Return an option of the kind LIST."""
    return ConfigKey(name, ConfigKind.LIST, default, doc, allowed=allowed)


def format_value(value: ConfigValue) -> str:
    """A value as Kafka prints it: `true` and `false` in lower case, 1.5E300 for a large double."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value).replace("e+", "E").replace("e", "E")
    return str(value)
