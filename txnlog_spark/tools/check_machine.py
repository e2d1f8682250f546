"""Part of `check` that needs no broker: Java, PySpark, the workers' Python, directories."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module

from txnlog_spark.errors import StagingFailed
from txnlog_spark.options.parse import settings_of
from txnlog_spark.staging.address import StagingSettings, server_directory
from txnlog_spark.staging.server_files import check_private
from txnlog_spark.tools.check_item import OK, REFUSED, WARNING, Item

JAVA_MIN = 17
RUN_TIMEOUT_S = 60.0
PYTHON_VARIABLES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
"""Variables with the command for a data source's Python. Spark uses the first that is set."""
NEEDED = ("txnlog_spark", "pyarrow", "numpy", "crc32c_rs", "re2", "javaproperties", "cryptography")
OF_FORMATS = {"fastavro": "avro", "google.protobuf": "protobuf"}
"""Packages that only a format needs, and the extra that installs each of them."""
_SCRIPT = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps([list(sys.version_info[:2]), sys.executable, found]))
"""

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns its whole output, or the OSError's text if it cannot run."""


def run_command(words: Sequence[str]) -> str:
    """Run a command; return its output, or the reason for which it could not run."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr + done.stdout


def check_machine(environment: Mapping[str, str], run: Run = run_command) -> Iterator[Item]:
    """Check this machine as the machine of the job's driver."""
    yield check_java(environment, run)
    yield check_pyspark()
    yield from check_python(environment, run)
    yield check_staging()


def check_java(environment: Mapping[str, str], run: Run) -> Item:
    """Check the Java that Spark starts: the one in JAVA_HOME, else the first in PATH."""
    home = environment.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else "java"
    said = run([command, "-version"])
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said)
    if found is not None and int(found[1]) >= JAVA_MIN:
        return Item("Java", OK, f"{command} is Java {found[1]}")
    reason = "does not run: " + next(iter(said.strip().splitlines()), "no output")
    text = f"{command} {reason if found is None else f'is Java {found[1]}'}. Install Java"
    remedy = f"export JAVA_HOME=/path/to/java-{JAVA_MIN}"
    return Item("Java", REFUSED, f"{text} {JAVA_MIN} or newer, or set JAVA_HOME", remedy)


def check_pyspark() -> Item:
    """Compare the PySpark of this Python with the versions that the connector supports."""
    install = f"{shlex.quote(sys.executable)} -m pip install 'txnlog_spark[spark]'"
    try:
        supported = import_module("txnlog_spark.spark_version")
    except ImportError as error:
        return Item("PySpark", REFUSED, f"this Python has none ({error}): install it", install)
    version, lowest = supported.pyspark.__version__, supported.PYSPARK_MIN
    if not supported.is_supported():
        return Item("PySpark", REFUSED, f"{version}: {lowest[0]}.{lowest[1]} is needed", install)
    if int(version.partition(".")[0]) > lowest[0]:
        text = f"{version} was never tried: tests run on {lowest[0]}.{lowest[1]} and newer 4"
        return Item("PySpark", WARNING, text)
    return Item("PySpark", OK, version)


def check_python(environment: Mapping[str, str], run: Run) -> Iterator[Item]:
    """Run the workers' Python once, in this directory, and check its packages."""
    used = next((name for name in PYTHON_VARIABLES if environment.get(name)), "")
    command = environment.get(used, "python3")
    origin = f"{command} (of {used or 'PATH'})"
    remedy = f"export {used or PYTHON_VARIABLES[-1]}={shlex.quote(sys.executable)}"
    said = run([command, "-c", _SCRIPT, *NEEDED, *OF_FORMATS])
    try:
        version, executable, absent = json.loads(said.strip().splitlines()[-1])
    except (ValueError, IndexError):
        reason = next(reversed(said.strip().splitlines()), "no output")
        yield Item("Python of workers", REFUSED, f"{origin} does not run: {reason}", remedy)
        return
    here = list(sys.version_info[:2])
    if executable == sys.executable:
        remedy = f"{shlex.quote(executable)} -m pip install txnlog_spark"
    name, shown = "Python of workers", ".".join(map(str, version))
    lacks = [each for each in NEEDED if each in absent]
    if version != here:
        text = f"{origin} is {shown}, and the driver's is {'.'.join(map(str, here))}: use one"
        yield Item(name, REFUSED, text, remedy)
    elif lacks:
        text = f"{origin} cannot import {', '.join(lacks)}: {absent[lacks[0]]}"
        yield Item(name, REFUSED, text, remedy)
    else:
        yield Item(name, OK, f"{origin} is {shown} and has the package")
    extras = [extra for package, extra in OF_FORMATS.items() if package in absent]
    if extras and not lacks:
        install = f"{shlex.quote(executable)} -m pip install 'txnlog_spark[{','.join(extras)}]'"
        text = f"{' and '.join(extras)} cannot be read or written: its Python lacks the packages"
        yield Item("formats", WARNING, text, install)


def check_staging() -> Item:
    """Check the directory of the staging server's socket; staged rows are there by default."""
    name, remedy = "staging", "export TMPDIR=/tmp"
    try:
        directory = server_directory(StagingSettings(**settings_of({}, "staging")))
        owned, parent = directory.parent, directory.parent.parent
        if owned.exists():
            check_private(owned)
    except StagingFailed as error:
        return Item(name, REFUSED, str(error), remedy)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        text = f"{parent} is not a directory that this user can write to"
        return Item(name, REFUSED, f"{text}: the staging server's socket lies there", remedy)
    free = shutil.disk_usage(parent).free / 2**30
    return Item(name, OK, f"the socket and staged rows lie below {parent} ({free:.1f} GiB free)")
