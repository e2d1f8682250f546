"""A recording of Apache Kafka counts while nothing that the run consists of has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.harness import closure, recordings
from support.harness.transcripts import digest

FILES = {
    "tests/conftest.py": "import support.fixtures",
    "tests/conformance/conftest.py": "",
    "tests/conformance/test_a.py": "def test():\n    from support import helper",
    "tests/support/fixtures.py": "import support.brokers.sim_broker",
    "tests/support/brokers/sim_broker.py": "import product.broker",
    "tests/support/helper.py": "import product.wire\nfrom support.kafka.java_tools import run",
    "tests/support/kafka/java_tools.py": "import confluent_kafka",
    "tests/support/kafka/java/Calls.java": "class Calls {}",
    "tests/support/other.py": "",
    "product/__init__.py": "",
    "product/wire.py": "import product.errors",
    "product/errors.py": "",
    "product/broker.py": "",
}

# A package counts where something is imported from it and not from one of its modules.
NO_PART = {"product/__init__.py", "product/broker.py"}
NO_PART |= {"tests/support/other.py", "tests/support/brokers/sim_broker.py"}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small repository that the digests are made in."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    support = tmp_path / "tests" / "support"
    monkeypatch.setattr(recordings, "REPOSITORY", tmp_path)
    monkeypatch.setattr(closure, "REPOSITORY", tmp_path)
    monkeypatch.setattr(closure, "TESTS", tmp_path / "tests")
    monkeypatch.setattr(closure, "ELSEWHERE", {support / "brokers" / "sim_broker.py"})
    monkeypatch.setattr(recordings, "WITH_FILES", {support / "kafka" / "java_tools.py": "java/*"})
    yield tmp_path
    forget()  # the files of this repository, before another test asks for its own


def forget() -> None:
    for cached in (recordings._digest, closure.imports_of, closure.code_of, closure._file_of):
        cached.cache_clear()


def digest_in(tree: Path) -> str:
    """The digest of the test, in a new process."""
    forget()
    return recordings.digest_of(tree / "tests/conformance/test_a.py")


@pytest.mark.parametrize("name", FILES)
def test_a_change_of_what_takes_part_is_seen_and_no_other(tree: Path, name: str) -> None:
    before = digest_in(tree)
    with (tree / name).open("a") as file:
        file.write("\nCHANGED = 1")
    assert (digest_in(tree) == before) == (name in NO_PART)


def test_docstrings_and_comments_take_no_part_and_other_strings_do(tree: Path) -> None:
    body = '"Of it."\ndef f():\n    """Of f."""\n    # why\n    return """# a value"""\n'

    def digest_with(old: str, new: str) -> str:
        (tree / "tests/support/helper.py").write_text(body.replace(old, new))
        return digest_in(tree)

    before = digest_with("", "")
    assert digest_with("Of f.", "A better\n    sentence.") == before
    assert digest_with("# why", "# a better\n    # reason") == before
    assert digest_with("a value", "another value") != before


def test_another_version_of_a_client_library_is_seen(tree: Path, monkeypatch) -> None:
    before = digest_in(tree)
    monkeypatch.setattr(recordings, "version", lambda _: "0.1")
    assert digest_in(tree) != before


def test_a_transcript_tells_values_apart() -> None:
    values = [None, 0, "", b"", [], ["a"], ["a", "a"], {"a": 1}, {"a": 2}, [b"a"], ("x", 1)]
    assert len({digest(value) for value in values}) == len(values)
