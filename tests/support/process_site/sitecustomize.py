"""Prepare every Python process of a test that has this folder on PYTHONPATH and sets a variable.

TXNLOG_KEPT: connector and libraries log all, and no file is lost. A file is linked into that folder
before it is removed or replaced, so a secret that was on disk for a moment is found as well.

TXNLOG_FAILPOINTS: the connector stops, fails or dies at the places named there
(`txnlog_testing.failpoints`).

TXNLOG_OBJECT_COUNTS: on SIGUSR1 the process writes the counts of its objects into that folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import uuid
from pathlib import Path


def keep(event: str, arguments: tuple[object, ...]) -> None:
    """Called by Python before what it reports."""
    if event in ("os.remove", "os.rename"):
        path = arguments[0] if event == "os.remove" else arguments[1]
        kept = os.path.join(os.environ["TXNLOG_KEPT"], uuid.uuid4().hex)
        with contextlib.suppress(OSError, TypeError):
            os.link(str(path), kept)


def write_counts(_number: int, _frame: object) -> None:
    """Called between two instructions of the main thread."""
    from support.core.object_counts import write_object_counts

    write_object_counts(Path(os.environ["TXNLOG_OBJECT_COUNTS"]))


if "TXNLOG_KEPT" in os.environ:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name in ("txnlog_spark", "kafka", "azure", "msal"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    sys.addaudithook(keep)

if os.environ.get("TXNLOG_FAILPOINTS"):
    from txnlog_testing.arming import arm_if_asked

    arm_if_asked()

if "TXNLOG_OBJECT_COUNTS" in os.environ:
    signal.signal(signal.SIGUSR1, write_counts)
