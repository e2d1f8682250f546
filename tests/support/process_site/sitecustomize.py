"""In every Python process of a test that has put this folder on PYTHONPATH, and set a variable.

TXNLOG_KEPT: connector and libraries log all, and no file is lost. A file that is removed or
replaced is linked into that folder before: a secret that was on disk for a moment is found as well.

TXNLOG_FAILPOINTS: the connector stops, fails or dies at the places named there
(`planted.failpoints`).

TXNLOG_CENSUS: SIGUSR1 has the process write what it holds into that folder.
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


def take_census(_number: int, _frame: object) -> None:
    """Called between two instructions of the main thread."""
    from support.core.census import write_census

    write_census(Path(os.environ["TXNLOG_CENSUS"]))


if "TXNLOG_KEPT" in os.environ:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name in ("txnlog_spark", "kafka", "azure", "msal"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    sys.addaudithook(keep)

if os.environ.get("TXNLOG_FAILPOINTS"):
    from planted.arming import arm_if_asked

    arm_if_asked()

if "TXNLOG_CENSUS" in os.environ:
    signal.signal(signal.SIGUSR1, take_census)
