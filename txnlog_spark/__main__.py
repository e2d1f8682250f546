"""`python -m txnlog_spark`: a query's progress, and dead letters, looked at and set by hand."""

from __future__ import annotations

import sys

from txnlog_spark.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
