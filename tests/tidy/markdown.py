"""The rules of documents as functions over their texts: links, the line "For: ...", table cells."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

from tidy.rules import Violation

CELL_CHARACTERS_MAX = 120
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_ELSEWHERE = ("http://", "https://", "mailto:")


def without_code(text: str) -> str:
    """The text with its code emptied, each line still where it was."""
    text = _FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)
    return _CODE.sub(lambda found: "`" + "\n" * found.group().count("\n") + "`", text)


def links_of(text: str) -> Iterator[tuple[int, str]]:
    """(line, target) of each link and picture."""
    plain = without_code(text)
    for found in _LINK.finditer(plain):
        yield plain.count("\n", 0, found.start()) + 1, found[1]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page: headings as GitHub and MkDocs name them, and own anchors."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", heading) for heading in plain} | set(_ANCHOR.findall(text))


def check_links(documents: Mapping[str, str], exists: Callable[[str], bool]) -> Iterator[Violation]:
    """Every relative link of these documents, by path, names a file, and a place in it."""
    for path, text in documents.items():
        for line, link in links_of(text):
            if link.startswith(_ELSEWHERE):
                continue
            name, _, anchor = link.partition("#")
            folder = posixpath.dirname(path)
            target = posixpath.normpath(posixpath.join(folder, name)) if name else path
            if not exists(target):
                yield Violation("link", path, line, f"{link}: there is no {target}")
            elif anchor and anchor not in anchors_of(documents.get(target, "")):
                yield Violation("link", path, line, f"{link}: {target} has no #{anchor}")


def check_readers(path: str, text: str) -> Iterator[Violation]:
    """A page says in one line below its title which reader it is for."""
    title, _, rest = text.partition("\n\n")
    first = rest.partition("\n\n")[0]
    if not (title.startswith("# ") and first.startswith("For: ") and "\n" not in first):
        yield Violation("reader", path, 1, 'begins with its title and one line "For: ..."')


def check_cells(path: str, text: str) -> Iterator[Violation]:
    """A cell of a table holds one fact: what is longer is a list, or a heading and a paragraph."""
    for number, line in enumerate(_FENCE.sub(lambda f: "\n" * f[0].count("\n"), text).split("\n")):
        for cell in _CELL_BORDER.split(line)[1:-1] if line.startswith("|") else ():
            shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell.strip())
            if len(shown) > CELL_CHARACTERS_MAX:
                said = f"{len(shown)} characters, at most 120: {shown[:40]}..."
                yield Violation("cell", path, number + 1, said)
