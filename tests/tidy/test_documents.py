"""The documents agree with the code: options, commands, files and the jobs' arguments."""

from __future__ import annotations

import argparse
import ast
import configparser
import re
import shlex

import pytest
from support.harness.printed import code_blocks
from tidy.markdown import links_of
from tidy.option_tables import GUIDE, WORDS, outcomes, sections, with_sections
from tidy.tree import ROOT, read_documents

from broker_sim.__main__ import CLI_COMMANDS
from broker_sim.cli.main import build_parser
from jobs import audit, consume_transform_produce, load_flights
from txnlog_spark.errors import OptionError
from txnlog_spark.log_once import Warned
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options
from txnlog_spark.process_local import process_local
from txnlog_spark.tools.cli import build_parser as build_connector_parser
from txnlog_testing.prove.cli import build_parser as build_prove_parser

DOCUMENTS = read_documents()
README = DOCUMENTS["README.md"]
PAGES = {p: t for p, t in DOCUMENTS.items() if re.match(r"(README|docs/(broker/)?[\w-]+)\.md$", p)}
"""Pages for users; the other pages are for contributors."""
TEXT = "\n".join(PAGES.values())
PARSERS = {
    "jobs/audit.py": audit.parse_args,
    "jobs/consume_transform_produce.py": consume_transform_produce.parse_args,
    "jobs/load_flights.py": load_flights.parse_args,
}


def test_the_options_are_those_of_the_code() -> None:
    for page, written in sections().items():
        text = page.read_text(encoding="utf-8")
        assert with_sections(text, written) == text, "run python tests/tidy/option_tables.py"


SAMPLES = {
    "assign": '{"t":[0]}',
    "startingOffsets": "earliest",
    "startingOffsetsByTimestamp": '{"t":{"0":1}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": "latest",
    "endingOffsetsByTimestamp": '{"t":{"0":1}}',
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "kafka.enable.auto.commit": "false",
    "kafka.partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
}


@pytest.mark.parametrize("use", WORDS)
@pytest.mark.parametrize("name", GUIDE)
def test_no_option_of_sparks_guide_is_ignored(
    name: str, use: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process_local(Warned).clear()
    expected, _, why = outcomes(name)[WORDS[use]].partition(": ")
    found = "obeyed"
    try:
        values = parse_options({name: SAMPLES.get(name, "1")}, Use[use])
    except OptionError:
        found = "refused"
    else:
        if name not in values:
            found = "no effect"
            assert why.partition(". Another value")[0] in caplog.text
    assert found == expected


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(DOCUMENTS.values())
    commands = "".join(code_blocks("sh", text))
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(
        re.findall(r"\bmake ([\w-]+)", commands)
    )
    assert len(named) > 5
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", ["docs/getting-started.md", "docs/index.md"])
def test_the_first_steps_of_the_site_are_those_of_the_readme(page: str) -> None:
    shown = DOCUMENTS[page]
    for language in ("python", "text"):
        assert code_blocks(language, README)[0] == code_blocks(language, shown)[0]
    assert {block for block in code_blocks("sh", README) if "job.py" in block} <= set(
        code_blocks("sh", shown)
    )


def test_the_site_begins_as_the_readme_does() -> None:
    front = README.partition("\n\n")[2].partition("## What it guarantees")[0]
    assert front.replace("](docs/", "](") in DOCUMENTS["docs/index.md"]


def test_the_readme_is_a_front_door() -> None:
    assert README.count("\n") <= 180


def test_the_text_of_the_package_has_no_link_that_leads_nowhere_else() -> None:
    """A package index shows it alone: it has no other files of the repository beside it."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    names = parser["metadata"]["long_description"].removeprefix("file: ").split(", ")
    links = [link for name in names for _, link in links_of(DOCUMENTS[name])]
    assert [link for link in links if not link.startswith("https://")] == []
    for each in ("Makefile", "tests/integration/test_wheel.py", ".dockerignore"):
        text = (ROOT / each).read_text(encoding="utf-8")
        assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("job", sorted(PARSERS))
def test_every_submitted_job_takes_the_arguments_shown(job: str) -> None:
    commands = "".join(code_blocks("sh", TEXT)).replace("\\\n", " ").splitlines()
    shown = [shlex.split(line) for line in commands if f"spark-submit {job}" in line]
    assert len(shown) == 1
    PARSERS[job](shown[0][2:])


def shown_commands(module: str) -> list[list[str]]:
    """The words after `python -m module` of every line that has it, behind a pipe as well."""
    lines = "".join(code_blocks("sh", TEXT)).splitlines()
    found = [line.partition(f"python -m {module} ")[2] for line in lines]
    return [shlex.split(words) for words in found if words]


def test_every_command_shown_is_one_that_the_parser_takes() -> None:
    shown = shown_commands("broker_sim")
    commands = [words for words in shown if words[0] in CLI_COMMANDS]
    assert {words[0] for words in commands} == set(CLI_COMMANDS)
    for words in commands:
        build_parser().parse_args(words)


def test_every_command_of_the_connector_is_shown_as_its_parser_takes_it() -> None:
    shown = shown_commands("txnlog_spark")
    alone = ("check", "explain", "prove")
    assert {" ".join(words[: 1 if words[0] in alone else 2]) for words in shown} == {
        "check",
        "progress show",
        "progress set",
        "dead-letters show",
        "dead-letters replay",
        "explain",
        "prove",
    }
    for words in shown:
        if words[0] == "prove":
            build_prove_parser().parse_args(words[1 : (*words, "--").index("--")])
        else:
            build_connector_parser().parse_args(words)


def test_every_action_of_a_command_is_named() -> None:
    actions = re.findall(r"`?(topics|groups|transactions) ([a-z-]+)", TEXT)
    for command in ("topics", "groups", "transactions"):
        (listed,) = re.findall(r"\{([a-z,-]+)\}\s", parser_of(command).format_help())[:1]
        assert {action for name, action in actions if name == command} >= set(listed.split(","))


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    (choices,) = [
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return choices[command]


def test_the_first_job_has_eleven_lines_at_most_and_is_python() -> None:
    job = code_blocks("python", README)[0]
    ast.parse(job)
    assert len([line for line in job.splitlines() if line.strip()]) <= 11


def test_no_broker_error_name_is_made_up() -> None:
    files = [ROOT / "txnlog_kafka" / "errors.py", *(ROOT / "txnlog_spark").rglob("errors.py")]
    errors = "".join(path.read_text(encoding="utf-8") for path in files)
    names = set(re.findall(r"TXNLOG_[A-Z_.]*[A-Z]", TEXT))
    assert names
    variables = {"TXNLOG_PYTHON_IMPORTS"}
    assert {name for name in names - variables if f'"{name}"' not in errors} == set()


MAP = ROOT / "docs" / "internals" / "architecture.md"


@pytest.mark.parametrize("package", ["txnlog_spark", "txnlog_kafka", "broker_sim"])
def test_each_package_has_a_map_whose_paths_exist(package: str) -> None:
    document = MAP.read_text(encoding="utf-8")
    (text,) = re.findall(
        rf"^### Code map of {package}\n(.*?)^##", document, re.DOTALL | re.MULTILINE
    )
    table = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    told = set(re.findall(r"[`/]?([\w.]+?)/?`", " ".join(table)))
    told |= {path.split("/")[0] for row in table for path in re.findall(r"`([\w./]+)`", row)}
    rooms = {p.name for p in (ROOT / package).iterdir() if (p / "__init__.py").exists()}
    files = {p.name for p in (ROOT / package).glob("[!_]*.py")}
    assert rooms | files <= told, f"{package}: {sorted((rooms | files) - told)}"


def test_every_path_of_the_map_exists() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", MAP.read_text(encoding="utf-8")))
    assert len(named) > 100
    there = [f"/{p.relative_to(ROOT)}" for p in ROOT.glob("[!.]*/**/*")]
    assert {p for p in named if not any(t.endswith(f"/{p.rstrip('/')}") for t in there)} == set()


@pytest.mark.parametrize("page", ["contributing", "changelog", "examples"])
def test_a_page_that_lies_elsewhere_is_a_link_and_no_copy(page: str) -> None:
    assert (ROOT / "docs" / f"{page}.md").is_symlink()


def test_the_page_of_tests_names_each_file_of_make_chaos() -> None:
    page = DOCUMENTS["docs/internals/testing.md"]
    tests = [*(ROOT / "tests").rglob("test_*.py")]
    rows = {*re.findall(r"^\| `(test_\w+\.py)` \|", page, re.M)}
    assert rows <= {p.name for p in tests}, "files that are gone"
    marked = {p.name for p in tests if "mark.chaos" in p.read_text(encoding="utf-8")}
    # The page has one table for `conformance`, whose fixtures mark the bodies.
    for folder in ("conformance", "tidy"):
        marked -= {p.name for p in (ROOT / "tests" / folder).glob("test_*.py")}
    assert len(marked) > 20
    assert sorted(name for name in marked if f"`{name}`" not in page) == []
