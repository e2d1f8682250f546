"""`python -m txnlog_spark`: commands that show and change a query's progress and dead letters."""

from __future__ import annotations

import sys

from txnlog_spark.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
