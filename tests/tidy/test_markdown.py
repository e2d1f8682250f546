"""Links of the documents lead somewhere, pages say for whom they are, and tables can be read."""

from __future__ import annotations

import pytest
from tidy import markdown
from tidy.tree import ROOT, read_documents, refuse

DOCUMENTS = read_documents()
PAGES = {path: text for path, text in DOCUMENTS.items() if path.startswith("docs/")}
LONG_CELLS = ("docs/internals/invariants.md", "docs/internals/failover.md")
"""Their tables are written by programs: the tests' names and the clients' errors are long."""


def test_every_relative_link_leads_to_a_file_and_a_place_in_it() -> None:
    refuse(list(markdown.check_links(DOCUMENTS, lambda path: (ROOT / path).exists())))


def test_every_page_says_for_whom_it_is() -> None:
    assert PAGES
    refuse([v for path, text in PAGES.items() for v in markdown.check_readers(path, text)])


def test_a_cell_of_a_table_holds_one_fact() -> None:
    texts = {path: text for path, text in DOCUMENTS.items() if path not in LONG_CELLS}
    refuse([v for path, text in texts.items() for v in markdown.check_cells(path, text)])


PLANTED = {
    "a.md": """# Title

See [b](docs/b.md), [a place](docs/b.md#two-words_2), [gone](docs/c.md), ![a picture](docs/p.svg),
[own](#title), [no place](docs/b.md#title) and [elsewhere](https://example.invalid/x).
`[code](gone.md)`

```sh
[fenced](gone.md)
# no-heading
```
[up](../a.md)
""",
    "docs/b.md": '# `Two` words_2\n\n<a id="own.place"></a>[back](../a.md)[own](#own.place)\n',
}


def test_a_planted_broken_link_is_found() -> None:
    there = {*PLANTED, "docs/p.svg"}
    found = list(markdown.check_links(PLANTED, lambda path: path in there))
    assert [(v.path, v.line) for v in found] == [("a.md", 3), ("a.md", 4), ("a.md", 11)]
    assert "docs/c.md" in found[0].text
    assert "#title" in found[1].text
    assert "no-heading" not in markdown.anchors_of(PLANTED["a.md"])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("# A\n\nFor: everybody.\n\nText.\n", 0),
        ("# A\n\nText.\n", 1),
        ("# A\n\nFor: everybody,\nand more.\n\nText.\n", 1),
        ("For: everybody.\n", 1),
    ],
)
def test_a_page_without_its_reader_is_found(text: str, count: int) -> None:
    assert len(list(markdown.check_readers("docs/a.md", text))) == count


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"| a |\n|---|\n| {'x' * 120} |\n", []),
        (f"| a |\n|---|\n| {'x' * 121} | b |\n", [3]),
        (f"| [{'x' * 100}]({'y' * 100}.md) |\n", []),
        (f"```text\n| {'x' * 121} |\n```\n", []),
    ],
)
def test_a_planted_long_cell_is_found(text: str, lines: list[int]) -> None:
    assert [v.line for v in markdown.check_cells("a.md", text)] == lines
