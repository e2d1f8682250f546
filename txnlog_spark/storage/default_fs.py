"""What a path without a scheme means to Spark: a path in Hadoop's `fs.defaultFS`.

Spark does not give its configuration to Python. What can be known is `core-site.xml` in
`HADOOP_CONF_DIR`, if that is set, and whether Spark's own files are where this process looks.
"""

from __future__ import annotations

import os
from pathlib import Path

from txnlog_spark.errors import OptionError
from txnlog_spark.storage.location import Location


def check_reading(option: str, location: Location) -> None:
    """Raise OptionError when Spark has read a path without a scheme in another way than here."""
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
    """`fs.defaultFS` of the Hadoop configuration that the environment names, if it has one."""
    folder = os.environ.get("HADOOP_CONF_DIR")
    if folder is None:
        return None
    from xml.etree import ElementTree  # few processes need it, and it takes a while

    try:
        root = ElementTree.parse(Path(folder) / "core-site.xml").getroot()
    except (OSError, ElementTree.ParseError):
        return None
    for each in root.iter("property"):
        if each.findtext("name") == "fs.defaultFS":
            return each.findtext("value")
    return None
