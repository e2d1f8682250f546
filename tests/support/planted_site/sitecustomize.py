"""In every Python process of a planted job: connector and libraries log all, no file is lost.

A file that is removed or replaced is linked into TXNLOG_KEPT before: a secret that was on disk for
a moment is found as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import uuid


def keep(event: str, arguments: tuple[object, ...]) -> None:
    """Called by Python before what it reports."""
    if event in ("os.remove", "os.rename"):
        path = arguments[0] if event == "os.remove" else arguments[1]
        kept = os.path.join(os.environ["TXNLOG_KEPT"], uuid.uuid4().hex)
        with contextlib.suppress(OSError, TypeError):
            os.link(str(path), kept)


if "TXNLOG_KEPT" in os.environ:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name in ("txnlog_spark", "kafka", "azure", "msal"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    sys.addaudithook(keep)
