"""Cost of importing the data source where Spark only looks it up."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded(code: str) -> set[str]:
    """Return the modules that a new process has loaded after the code."""
    asked = [sys.executable, "-c", f"import sys\n{code}print(*sys.modules)"]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.invariant(55)
def test_a_lookup_and_a_schema_load_neither_arrow_nor_the_client():
    found = loaded("""
import pytest
import pyspark_txnlog
from txnlog_spark.datasource import TxnLogDataSource
TxnLogDataSource({"subscribe": "t", "path": "p"}).schema()
""")
    assert "txnlog_spark.options.parse" in found
    client = {"txnlog_kafka.host.client", "txnlog_kafka.operations.session"}
    assert not found & ({"pyarrow", "numpy", "kafka"} | client)


def test_a_writer_on_the_driver_which_commits_and_encodes_nothing_loads_no_arrow():
    found = loaded("import txnlog_spark.sink.columns\nimport txnlog_spark.sink.writers\n")
    assert "txnlog_spark.sink.committer" in found
    assert not found & {"pyarrow", "numpy", "txnlog_spark.codec", "ssl", "txnlog_kafka.stores"}


def test_a_stream_on_the_driver_loads_little_more_than_spark_does():
    """Every running query has such a process, for as long as the query runs."""
    found = loaded("""
import pyspark.sql.streaming.python_streaming_source_runner
from txnlog_spark.datasource import TxnLogDataSource
from txnlog_spark.source.schema import source_schema
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
TxnLogDataSource(options).streamReader(source_schema(include_headers=False)).getDefaultReadLimit()
""")
    assert "txnlog_spark.source.plan_batch" in found
    heavy = {"pandas", "pyarrow.compute", "pyarrow.dataset", "cryptography", "asyncio", "re2"}
    assert not found & heavy


def run_with(version: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python whose PySpark says that it is of this version."""
    code = f"import pyspark; pyspark.__version__ = {version!r}; {code}"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["4.1.4", "4.0.0", "3.5.6", "4.1.0.dev0"])
def test_an_older_pyspark_is_one_clear_error_where_the_data_source_is_imported(version):
    done = run_with(version, "import txnlog_spark.datasource")
    line = done.stderr.strip().splitlines()[-1]
    assert line == f"ImportError: PySpark 4.2 or newer is needed, this is {version}"


def test_an_older_pyspark_can_still_look_up_other_data_sources():
    code = "from pyspark_txnlog import DefaultSource as D; print(D.name()); D({})"
    done = run_with("4.1.4", code)
    assert done.stdout == "txnlog\n"
    line = done.stderr.strip().splitlines()[-1]
    assert line == "ImportError: PySpark 4.2 or newer is needed, this is 4.1.4"


@pytest.mark.parametrize("version", ["4.2.0", "4.10.1", "5.0.0.dev1", "unknown"])
def test_a_newer_pyspark_is_taken(version):
    code = "from pyspark_txnlog import DefaultSource as D; print(D.__name__)"
    assert run_with(version, code).stdout == "TxnLogDataSource\n"
