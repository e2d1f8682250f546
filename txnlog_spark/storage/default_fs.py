"""Checks of paths without a scheme, which Spark reads as paths in Hadoop's `fs.defaultFS`.

Spark does not pass its configuration to Python. Python can only read `core-site.xml` in
`HADOOP_CONF_DIR`, if that is set, and look whether Spark's own files exist on this disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from txnlog_spark.errors import OptionError
from txnlog_spark.storage.location import Location


def check_reading(option: str, location: Location) -> None:
    """Raise OptionError if Spark put a path without a scheme into another file system."""
    if not location.is_bare or Path(location.path, "metadata").exists():
        return
    elsewhere = (configured_default_fs() or "SCHEME://NAME").rstrip("/")
    raise OptionError(
        option,
        location.text,
        f"write file:{location.path} or {elsewhere}{location.path}, whichever is meant, also where "
        "Spark is given it: a path without a scheme is in the file system that fs.defaultFS of "
        "Spark's Hadoop configuration names, and on this disk there is no file metadata of a query",
    )


def configured_default_fs() -> str | None:
    """Return `fs.defaultFS` of the Hadoop configuration in the environment, None without it."""
    folder = os.environ.get("HADOOP_CONF_DIR")
    if folder is None:
        return None
    from xml.etree import ElementTree  # imported here: slow, and few processes need it

    try:
        root = ElementTree.parse(Path(folder) / "core-site.xml").getroot()
    except (OSError, ElementTree.ParseError):
        return None
    for each in root.iter("property"):
        if each.findtext("name") == "fs.defaultFS":
            return each.findtext("value")
    return None
