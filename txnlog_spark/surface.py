"""How our errors reach a person: through Spark, as the last line of a worker's traceback.

Spark shows the traceback of the Python worker. Chained causes and our inner frames would bury the
one line that says what to do, so at the boundary the error is raised again without them; its
message already holds the cause. Anything that is no TxnLogError keeps its full traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from txnlog_spark.errors import TxnLogError


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Raise a TxnLogError of the block again, alone: no causes, no inner frames."""
    try:
        yield
    except TxnLogError as error:
        raise error.with_traceback(None) from None
