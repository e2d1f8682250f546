"""Take sections and code from a page of the documentation, to run them as they are printed."""

from __future__ import annotations

import re


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above."""
    found = re.search(rf"^(##+) {re.escape(heading)}\n", page, re.MULTILINE)
    assert found is not None, f"the page has no heading {heading!r}"
    below = page[found.end() :]
    end = re.search(rf"^#{{2,{len(found[1])}}} ", below, re.MULTILINE)
    return below[: end.start()] if end else below


def code_blocks(language: str, text: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
