"""Command `prove`: a proof of a job without pytest.

    python -m txnlog_spark prove job.py --input orders --output invoices

`job.py` has a function `job(spark, kafka, checkpoint)` that starts a query and returns it. The rows
of the input are the lines of `orders.jsonl` beside it. With `--script` the file is run as it is,
with the words after `--` as its arguments.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from txnlog_testing.prove.outputs import Files
from txnlog_testing.prove.proof import EACH_STEP, exactly_once
from txnlog_testing.prove.report import NotExactlyOnce, Report

EXIT_EXACT, EXIT_WRONG, EXIT_UNKNOWN = 0, 1, 2


class UsageError(Exception):
    """Bad argument; the text names it."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 for exact, 1 for a wrong output, 2 if there is no result."""
    words = list(arguments)
    after = words.index("--") if "--" in words else len(words)
    options = build_parser().parse_args(words[:after])
    try:
        report = _prove(options, words[after + 1 :])
    except (UsageError, ValueError, TypeError, RuntimeError) as error:
        sys.stderr.write(f"no result: {error}\n")
        return EXIT_UNKNOWN
    if options.html is not None:
        report.write_html(options.html)
    if options.junitxml is not None:
        report.write_junit(options.junitxml, options.job.stem)
    sys.stdout.write(report.text() + "\n")
    return EXIT_EXACT if report.is_exact else EXIT_WRONG


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    text = "run a job undisturbed, then broken in one way after another, and compare its outputs"
    parser = argparse.ArgumentParser(
        prog="python -m txnlog_spark prove",
        description=text,
        epilog="example: python -m txnlog_spark prove job.py --input orders --output invoices",
    )
    parser.add_argument("job", type=Path, help="file with a function job(spark, kafka, checkpoint)")
    parser.add_argument(
        "--script", action="store_true",
        help="run the file itself, with the arguments after --, in which {bootstrap}, {checkpoint} "
        "and {path} stand for what a run has for itself; it ends when it has read its input",
    )  # fmt: skip
    parser.add_argument("--function", default="job", help="name of the function (default: job)")
    parser.add_argument(
        "--input", action="append", default=[], metavar="TOPIC[=FILE]",
        help="input topic, and its records as lines: an object with value, key, headers, or any "
        "JSON as the value (default: TOPIC.jsonl beside the job)",
    )  # fmt: skip
    parser.add_argument(
        "--output", action="append", default=[], metavar="TOPIC", help="output topic"
    )
    parser.add_argument(
        "--output-files", action="append", default=[], metavar="NAME[=FORMAT]",
        help="output in files at kafka.path(NAME), {path}/NAME (default format: parquet)",
    )  # fmt: skip
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="COLUMN", help="do not compare this column"
    )
    parser.add_argument(
        "--disturbance", action="append", metavar="NAME", help="run only these (default: all)"
    )
    parser.add_argument(
        "--all-steps", action="store_true", help="kill the driver at each step that the job reaches"
    )
    parser.add_argument("--waves", type=int, default=3, help="parts of the input (default: 3)")
    parser.add_argument("--partitions", type=int, default=2, help="of each topic (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="chooses moments (default: 0)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of a run (default 60)")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="configuration of Spark"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with timelines")
    parser.add_argument("--junitxml", type=Path, metavar="FILE", help="write JUnit XML")
    return parser


def _prove(options: argparse.Namespace, words: Sequence[str]) -> Report:
    if not options.job.is_file():
        raise UsageError(f"{options.job} is not a file")
    if words and not options.script:
        raise UsageError("arguments after -- go to a script: add --script")
    job = (
        [sys.executable, str(options.job.resolve()), *words]
        if options.script
        else _function(options.job, options.function)
    )
    extra: dict[str, Any] = {"steps": EACH_STEP} if options.all_steps else {}
    try:
        return exactly_once(
            job,
            input=dict(_rows(each, options.job.parent) for each in options.input),
            output=[*options.output, *(_files(each) for each in options.output_files)],
            ignore=options.ignore,
            disturbances=options.disturbance,
            waves=options.waves,
            partitions=options.partitions,
            seed=options.seed,
            timeout_s=options.timeout,
            spark_config=dict(_pair("--conf", each) for each in options.conf),
            tell=_tell,
            **extra,
        )
    except NotExactlyOnce as error:
        return error.report


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _function(path: Path, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(
            f"{path} has no function {name}(spark, kafka, checkpoint); name another with "
            "--function, or run the file as it is with --script"
        )
    return function  # type: ignore[no-any-return]


def _rows(given: str, beside: Path) -> tuple[str, list[Any]]:
    topic, separator, name = given.partition("=")
    path = Path(name) if separator else beside / f"{topic}.jsonl"
    if not path.is_file():
        raise UsageError(f"--input {given}: {path} is not a file; name one with {topic}=FILE")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UsageError(f"--input {given}: line {number} of {path}: {error}") from None
    return topic, rows


def _files(given: str) -> Any:
    name, _, form = given.partition("=")
    return Files(name, form or "parquet")


def _pair(option: str, given: str) -> tuple[str, str]:
    name, separator, value = given.partition("=")
    if not separator:
        raise UsageError(f"{option} {given}: expected NAME=VALUE")
    return name, value
