"""`--command-config`: the security options of a command, in a file as Kafka's own tools take it."""

from __future__ import annotations

from pathlib import Path

import javaproperties

from txnlog_spark.client.security import PREFIX, Security, read_security
from txnlog_spark.errors import OptionError
from txnlog_spark.security_options import SECURITY_OPTIONS


def read_command_config(path: Path) -> Security:
    """The security options of the file. Raises OptionError for any other, and OSError."""
    known = {option.name: option for option in SECURITY_OPTIONS}
    found: dict[str, str] = {}
    try:
        given = javaproperties.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OptionError("--command-config", None, "the file is not one of properties") from error
    for name, value in given.items():
        if name not in known:
            raise OptionError(PREFIX + name, None, "--command-config takes security options alone")
        try:
            found[name] = known[name].read(value)
        except ValueError as error:
            raise OptionError(PREFIX + name, value, str(error)) from None
    return read_security(found)
