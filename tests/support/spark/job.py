"""The arguments of the tests' Spark jobs, NAME=VALUE each, and the end of such a job."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter


def settings_of(arguments: list[str]) -> dict[str, str]:
    """Parse the arguments of a job.

    A value of `env:NAME` is that of the environment: passwords are no arguments of commands.
    """
    settings = dict(argument.split("=", 1) for argument in arguments)
    for name, value in settings.items():
        if value.startswith("env:"):
            settings[name] = os.environ[value.removeprefix("env:")]
    return settings


def options_of(settings: dict[str, str], side: str) -> dict[str, str]:
    """Return the options of one side: `read` has those of the settings `read.X`."""
    start = f"{side}."
    return {n.removeprefix(start): v for n, v in settings.items() if n.startswith(start)}


def run_to_end(spark: SparkSession, writer: DataStreamWriter) -> int:
    """Run a query to its end, then stop Spark. Return the job's exit code.

    The code is 0 at the query's end, and 1 when it failed: its error is on stderr.
    """
    try:
        writer.start().awaitTermination()
    except Exception as error:
        print(f"the query failed: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0
