"""`python -m txnlog_spark progress show | set`: a query's progress, looked at and set by hand."""

from __future__ import annotations

import sys

from txnlog_spark.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
