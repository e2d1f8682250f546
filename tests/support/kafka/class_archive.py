"""Archives of the classes that a JVM had in memory: the next one starts in half the time with them
(class data sharing)."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

AT_ITS_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
"""An archive is used where it lies in memory; to move it takes a quarter of a second."""


def archive_in(folder: Path, jars: Path) -> Path:
    """Return the path of the class archive for the class path of these jars, whether it exists or
    not.

    A JVM accepts only an archive of its own version, in which each jar has the path and the time
    that it had. A JVM that finds another archive ignores it silently and starts slowly. So the name
    contains all of this: a moved checkout, or a new JVM, makes an archive of its own.
    """
    home = os.environ.get("JAVA_HOME")
    java = Path(f"{home}/bin/java" if home else shutil.which("java") or "java").resolve()
    files = (java, java.parents[1] / "lib" / "modules", jars)
    times = [file.stat().st_mtime_ns for file in files if file.exists()]
    digest = hashlib.sha256(f"{folder} {java} {times}".encode()).hexdigest()[:8]
    return folder / f"classes-{digest}.jsa"
