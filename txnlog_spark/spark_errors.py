"""How our errors reach a person: through Spark, on a line of their own near the top of its text.

Spark shows the traceback of the Python worker. Frames of PySpark and ours would bury the one line
that says what to do, and the message already holds the cause. So at the boundary an error loses its
causes, its text begins on a new line, as Spark puts 300 characters of its own before it, and the
worker leaves its traceback out, by the variable that Spark sets for
`spark.sql.execution.pyspark.udf.hideTraceback.enabled`: not for sources of streams, and not unless
somebody has set it. A worker ends with the error that it reports, so nothing else is hidden. The
whole traceback goes to the log at level DEBUG. Anything that is not a TxnLogError is a fault of
ours, and keeps its full traceback.
"""

from __future__ import annotations

import logging
import os
from types import TracebackType

from txnlog_spark.errors import TxnLogError

logger = logging.getLogger(__name__)

RUNTIME_VARIABLE, WORKER = "SPARK_PYTHON_RUNTIME", "PYTHON_WORKER"
"""What each of Spark's Python workers has in its environment, and the job's Python has not."""
HIDE_TRACEBACK_VARIABLE = "SPARK_HIDE_TRACEBACK"


class readable_errors:  # noqa: N801  used as a function: `with readable_errors():`
    """Strip a TxnLogError that leaves the block of its causes and of tracebacks.

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
            if os.environ.get(RUNTIME_VARIABLE) == WORKER:
                error.is_on_own_line = True
                os.environ[HIDE_TRACEBACK_VARIABLE] = "1"
