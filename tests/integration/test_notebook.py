"""The notebook of `examples/`, run as a person runs it, cell by cell in a kernel; its audit finds
one row too many."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from support.spark.spark_copy import RUN_SECONDS_MAX

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "exactly_once.ipynb"
ONE_MORE = 'rows = spark.createDataFrame([("7", "twice")], "key string, value string")\n'
ONE_MORE += 'rows.write.format("txnlog").options(**kafka, topic="invoices").mode("append").save()'


def output_of(cell: nbformat.NotebookNode) -> str:
    """Return the output below a cell, as text."""
    shown = [
        each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.outputs
    ]
    return "".join(shown)


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []


@pytest.mark.chaos
@pytest.mark.usefixtures("quick_java")
def test_every_cell_runs_and_the_audit_fails_when_a_row_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.read(NOTEBOOK, as_version=4)
    *cells, end = book.cells
    assert "cluster.stop()" in end.source
    client = NotebookClient(book, timeout=RUN_SECONDS_MAX, kernel_name="python3")
    with client.setup_kernel(cwd=str(tmp_path), env=dict(os.environ)):
        for number, cell in enumerate(cells):
            client.execute_cell(cell, number)
        audit = next(cell for cell in cells if "assert found" in cell.source)
        assert output_of(audit) == "{'there': 1200, 'missing': 0, 'doubled': 0}"
        said = "\n".join(output_of(cell) for cell in cells if cell.cell_type == "code")
        assert "CompleteCommit" in said
        book.cells.append(nbformat.v4.new_code_cell(ONE_MORE))
        client.execute_cell(book.cells[-1], len(book.cells) - 1)
        with pytest.raises(CellExecutionError, match="'doubled': 1"):
            client.execute_cell(audit, cells.index(audit))
        client.execute_cell(end, len(cells))
