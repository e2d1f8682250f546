"""How our errors reach a person: through Spark, as the last line of a worker's traceback.

Spark shows the traceback of the Python worker. Our frames and chained causes would bury the one
line that says what to do, so the boundary removes them; the message already holds the cause. The
whole traceback goes to the log at level DEBUG. Anything that is not a TxnLogError is a fault of
ours, and keeps its full traceback.
"""

from __future__ import annotations

import logging
from types import TracebackType

from txnlog_spark.errors import TxnLogError

logger = logging.getLogger(__name__)


class readable_errors:  # noqa: N801  used as a function: `with readable_errors():`
    """Strip a TxnLogError that leaves the block of its causes and of the frames within.

    The exception goes on as it is: raising it again here would add frames of this module.
    """

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Never stops the exception."""
        if isinstance(error, TxnLogError):
            logger.debug("%s", error, exc_info=(type(error), error, trace))
            error.__traceback__ = None
            error.__cause__ = None
            error.__suppress_context__ = True
