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
    """Where the archive of a class path of these jars is, or is to be written.

    A JVM takes an archive of its own version only, where each jar has the path and the time that it
    had; any other it leaves aside, says nothing and starts slowly. So the name says for what the
    archive is good: a checkout that was moved, or a new JVM, makes one of its own.
    """
    home = os.environ.get("JAVA_HOME")
    java = Path(f"{home}/bin/java" if home else shutil.which("java") or "java").resolve()
    files = (java, java.parents[1] / "lib" / "modules", jars)
    times = [file.stat().st_mtime_ns for file in files if file.exists()]
    digest = hashlib.sha256(f"{folder} {java} {times}".encode()).hexdigest()[:8]
    return folder / f"classes-{digest}.jsa"
