"""Options of a command in a file (`--command-config`), in the format of Kafka's own tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import javaproperties

from txnlog_kafka.errors import OptionError
from txnlog_kafka.host.security import PREFIX, Security, read_security
from txnlog_kafka.host.security_options import SECURITY_OPTIONS


class FileOption(Protocol):
    """Option that may be in such a file."""

    @property
    def read(self) -> Callable[[str], str]:
        """Function that checks a value; raises ValueError with the allowed values."""


def explain_name(error: UnicodeEncodeError) -> str:
    """Return a text that a name of the command line is not UTF-8: Python keeps it as surrogates."""
    return (
        f"the name {error.object!r} is not UTF-8, as Kafka's names are: correct it; if it looks "
        "right, the locale is not UTF-8: set PYTHONUTF8=1"
    )


def read_command_config(path: Path) -> Security:
    """Read the security of the file. Raises OptionError for any other option, and OSError."""
    return read_security(read_options(path))


def read_options(path: Path) -> dict[str, str]:
    """Read the security options of the file, by Kafka's names. Raises as `read_command_config`."""
    known = {option.name: option for option in SECURITY_OPTIONS}
    return read_properties(path, known, "only security options")


def read_properties(path: Path, known: Mapping[str, FileOption], allowed: str) -> dict[str, str]:
    """Read the values of the file, each by its option.

    Raises OptionError for an unknown name, with a text that says what is `allowed`, and OSError.
    """
    try:
        given = javaproperties.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OptionError("--command-config", None, "the file is not one of properties") from error
    found = {}
    for name, value in given.items():
        shown = name if name.startswith("txnlog.") else PREFIX + name
        if name not in known:
            raise OptionError(shown, None, f"--command-config takes {allowed}")
        try:
            found[name] = known[name].read(value)
        except ValueError as error:
            raise OptionError(shown, value, str(error)) from None
    return found
