"""File of `--command-config`: options for a secured cluster, and for an object store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txnlog_kafka.host.command_config import read_properties
from txnlog_kafka.host.security import PLAINTEXT, Security, read_security
from txnlog_kafka.host.security_options import SECURITY_OPTIONS, SecurityOption
from txnlog_spark.errors import OptionError
from txnlog_spark.storage.connect import StorageSettings
from txnlog_spark.storage.options import STORAGE_OPTIONS, STORAGE_PREFIX, StorageOption

_KNOWN: Mapping[str, SecurityOption | StorageOption] = {
    **{option.name: option for option in SECURITY_OPTIONS},
    **{STORAGE_PREFIX + option.name: option for option in STORAGE_OPTIONS},
}


@dataclass(frozen=True, slots=True)
class CommandConfig:
    """Contents of the file; the defaults mean no security and no options of a store."""

    security: Security = PLAINTEXT
    storage: StorageSettings = field(default_factory=StorageSettings)


def read_command_config(path: Path | None, *, is_embedded: bool) -> CommandConfig:
    """Read the options of a file, if one is given. Raises OptionError for others, and OSError."""
    if path is None:
        return CommandConfig()
    found = read_properties(path, _KNOWN, f"security options and {STORAGE_PREFIX}* alone")
    stores = {
        n.removeprefix(STORAGE_PREFIX): v for n, v in found.items() if n.startswith(STORAGE_PREFIX)
    }
    security = {name: value for name, value in found.items() if not name.startswith(STORAGE_PREFIX)}
    if is_embedded and security:
        raise OptionError(
            "--command-config", None, "remove what is in it: an embedded broker has no security"
        )
    storage = StorageSettings()
    return CommandConfig(read_security(security), StorageSettings({**storage.values, **stores}))
