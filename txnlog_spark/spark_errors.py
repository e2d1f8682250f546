"""Shows the connector's errors through Spark, on a separate line near the top of Spark's text.

Spark shows the traceback of the Python worker. Frames of PySpark and of the connector would bury
the one line that says what to do, and the message already contains the cause. So at this boundary
an error loses its causes and its traceback; the whole traceback goes to the log at level DEBUG. The
error's text begins on a new line, because Spark puts 300 characters of its own before it.

The worker also leaves out its own traceback. The variable for this is the one that Spark sets for
`spark.sql.execution.pyspark.udf.hideTraceback.enabled`: Spark never sets it for stream sources, and
for others only if the user has set that option. A worker ends with the error that it reports, so
the variable hides nothing else.

An error that is not a TxnLogError is a bug of the connector and keeps its full traceback.
"""

from __future__ import annotations

import logging
import os
from types import TracebackType

from txnlog_spark.errors import TxnLogError

logger = logging.getLogger(__name__)

RUNTIME_VARIABLE, WORKER = "SPARK_PYTHON_RUNTIME", "PYTHON_WORKER"
"""Environment variable and its value in Spark's Python workers; the driver's Python lacks it."""
HIDE_TRACEBACK_VARIABLE = "SPARK_HIDE_TRACEBACK"


class readable_errors:  # noqa: N801  used as a function: `with readable_errors():`
    """Strip the causes and tracebacks of a TxnLogError that leaves the block.

    The exception leaves the block unchanged otherwise: to raise it again here would add frames of
    this module.
    """

    def __enter__(self) -> None:
        """Do nothing: only the exit matters."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Strip a TxnLogError; never stop the exception."""
        if isinstance(error, TxnLogError):
            logger.debug("%s", error, exc_info=(type(error), error, trace))
            error.__traceback__ = None
            error.__cause__ = None
            error.__suppress_context__ = True
            if os.environ.get(RUNTIME_VARIABLE) == WORKER:
                error.is_on_own_line = True
                os.environ[HIDE_TRACEBACK_VARIABLE] = "1"
