"""`python -m txnlog_spark explain`: cause and remedy, by a name or by what Spark has printed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from txnlog_spark.errors import DeadlineExceeded
from txnlog_spark.tools import cli
from txnlog_spark.tools.explain import UnknownError, error_texts, explain, texts_of

SPARKS_LINE = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform "
    "commit: txnlog_spark.errors.ProgressBehind: "
)


@pytest.mark.parametrize(
    "text",
    [
        "TXNLOG_PROGRESS.BEHIND",
        "txnlog_progress.behind",
        "[TXNLOG_PROGRESS.BEHIND]",
        f"{SPARKS_LINE}[TXNLOG_PROGRESS.BEHIND] query 'q' ... (TXNLOG_OPTION). SQLSTATE: XXKST",
        "TXNLOG_CONF was set, TXNLOG_PROGRESS.BEHIND.",
    ],
)
def test_an_error_is_explained_by_its_name_and_by_all_that_was_printed(text, capsys):
    assert cli.main(["explain", *text.split()]) == 0
    said = capsys.readouterr().out
    assert said == explain("TXNLOG_PROGRESS.BEHIND")
    assert said.startswith("TXNLOG_PROGRESS.BEHIND\n\nCause. The checkpoint says that batches are")
    assert "Remedy. If the output has all batches, run `python -m txnlog_spark" in said


def test_what_an_error_prints_is_explained():
    error = DeadlineExceeded("reading", 1, "none")
    start = "TXNLOG_DEADLINE_EXCEEDED\n\nCause. An operation was not done in time."
    assert explain(str(error)).startswith(start)


def test_a_name_with_special_cases_lists_them():
    said = explain("TXNLOG_DATA_LOSS")
    assert said.endswith(
        "Special cases:\n  TXNLOG_DATA_LOSS.CORRUPT\n  TXNLOG_DATA_LOSS.OFFSET_OUT_OF_RANGE\n"
    )


def test_without_a_name_each_error_has_one_line(capsys):
    assert cli.main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(error_texts())
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("TXNLOG_PRODUCER_FENCD", "did you mean TXNLOG_PRODUCER_FENCED?"),
        ("producer_fenced", "did you mean TXNLOG_PRODUCER_FENCED?"),
        ("hello", "`explain` without a name lists all"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(text, advice, capsys):
    assert cli.main(["explain", text]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"txnlog_spark: no error is named {text!r}: {advice}\n"


def test_a_long_text_without_a_name_is_not_repeated():
    with pytest.raises(UnknownError) as caught:
        explain("a" * 1000)
    assert len(str(caught.value)) < 200


def test_the_texts_are_there_without_docstrings_and_without_the_extras():
    """Python with -OO drops docstrings, and Avro's package is not imported without fastavro."""
    code = (
        "import sys; sys.modules['fastavro'] = None\n"
        "from txnlog_spark.tools.cli import main; sys.exit(main(['explain', 'TXNLOG_AVRO.SCHEMA']))"
    )
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == explain("TXNLOG_AVRO.SCHEMA")


def test_a_class_without_a_name_of_its_own_has_no_texts():
    assert list(texts_of("m", "class A(B):\n    '''No name.'''\nx = 1\n")) == []


def test_a_class_without_a_remedy_is_found():
    with pytest.raises(ValueError, match="Silent has no remedy"):
        list(
            texts_of("m", "class Silent(E):\n    '''It happened.'''\n    condition = 'TXNLOG_S'\n")
        )
