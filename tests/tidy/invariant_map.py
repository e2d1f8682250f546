"""Map each invariant of `docs/internals/invariants.md` to its checks.

Run it without arguments to write the document's last column. Run it with numbers, such as `35 41`,
to print all tests of these invariants.

Tests with `@pytest.mark.invariant(N)` check number N. So does the simulator, which prints the
number, and an import contract that the row names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "internals" / "invariants.md"
SIMULATOR = "simulation/checkers/invariants.py"
ANOMALIES = "simulation/violation.py"
CLUSTER_SECTION = "With the cluster"
NAMED_MAX = 2
"""Tests that the column names for one invariant; the command prints all of them."""
_ROW = re.compile(r"^\| (\d+) \| (.*?) \|(.*)\|$")


@dataclass(frozen=True, slots=True)
class Invariant:
    """Row of the document."""

    number: int
    section: str
    text: str

    @property
    def contracts(self) -> list[str]:
        """Return the import contracts that the text names."""
        return re.findall(r"contract `([\w-]+)`", self.text)


def invariants_of(document: str) -> list[Invariant]:
    """Return the rows of the document, in their order."""
    found, section = [], ""
    for line in document.splitlines():
        if line.startswith("## "):
            section = line[3:]
        row = _ROW.match(line)
        if row:
            found.append(Invariant(int(row[1]), section, row[2]))
    return found


def marked(source: str) -> Iterator[tuple[int, str]]:
    """Yield (number, test) for each mark in a test module; a mark of the module has the name ""."""
    for node in ast.walk(ast.parse(source)) if "mark.invariant(" in source else ():
        marks: list[ast.expr] = []
        name = getattr(node, "name", "")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            marks = node.decorator_list
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
        for mark in marks:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.invariant":
                yield from ((ast.literal_eval(number), name) for number in mark.args)


def simulated(source: str) -> set[int]:
    """Return the numbers that the simulator prints: the keys of its table."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "INVARIANTS":
            return set(ast.literal_eval(node.value))
    raise ValueError("the simulator has no table INVARIANTS")


def tests_by_number(sources: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the names of the tests of each number. `sources` are the test modules by path."""
    found: dict[int, list[str]] = {}
    for path, source in sources.items():
        for number, name in marked(source):
            found.setdefault(number, []).append(name or path.rsplit("/", 1)[-1])
    return {number: sorted(names) for number, names in found.items()}


def problems(
    document: str, tests: Mapping[int, list[str]], simulator: set[int], contracts: set[str]
) -> Iterator[str]:
    """Yield a line for each contradiction between the document and its checks."""
    rows = invariants_of(document)
    numbers = [row.number for row in rows]
    for number in sorted({n for n in numbers if numbers.count(n) > 1}):
        yield f"invariant {number} is there twice"
    for number in sorted((set(tests) | simulator) - set(numbers)):
        yield f"invariant {number} is checked and not in the document"
    for row in rows:
        checked = row.number in tests or bool(row.contracts)
        for name in set(row.contracts) - contracts:
            yield f"invariant {row.number} names the contract {name}, which does not exist"
        if row.section == CLUSTER_SECTION:
            if checked or row.number in simulator:
                yield f"invariant {row.number} is checked: move it out of '{CLUSTER_SECTION}'"
        elif not checked:
            yield f"invariant {row.number} has no test: mark one with invariant({row.number})"


def with_checks(
    document: str,
    tests: Mapping[int, list[str]],
    simulator: set[int],
    anomalies: Mapping[int, Sequence[str]],
) -> str:
    """Return the document with its last column written.

    Of many tests it names the ones that check the fewest numbers: they say most of this one.
    """
    numbers_of = Counter(name for names in tests.values() for name in names)

    def cell(row: Invariant) -> str:
        named = ", ".join(f"*{name}*" for name in anomalies.get(row.number, ()))
        simulated_as = f"simulator ({named})" if named else "simulator"
        names = [simulated_as] if row.number in simulator else []
        names += [f"`{name}`" for name in row.contracts]
        known = dict.fromkeys(tests.get(row.number, []))
        telling = sorted(known, key=lambda name: numbers_of[name])[:NAMED_MAX]
        names += [f"`{name}`" for name in telling]
        more = len(known) - len(telling)
        return ", ".join([*names, f"{more} more"] if more else names)

    cells = {row.number: cell(row) for row in invariants_of(document)}
    lines = []
    for line in document.splitlines():
        row = _ROW.match(line)
        written = f"| {row[1]} | {row[2]} | {cells[int(row[1])]}" if row else ""
        lines.append(f"{written.rstrip()} |" if row else line)
    return "\n".join(lines) + "\n"


def read_tests() -> dict[str, str]:
    """Return the source of each test module, by path."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}


def read_anomalies() -> dict[int, tuple[str, ...]]:
    """Return the simulator's names of broken invariants, by number."""
    source = (ROOT / ANOMALIES).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ANOMALIES":
            found: dict[int, tuple[str, ...]] = ast.literal_eval(node.value or ast.Dict([], []))
            return found
    raise ValueError("the simulator has no table ANOMALIES")


def read_simulated() -> set[int]:
    """Return the numbers in the simulator's table."""
    return simulated((ROOT / SIMULATOR).read_text(encoding="utf-8"))


def print_tests(numbers: Sequence[int]) -> None:
    """Print the tests of these invariants, a line each, as pytest names them."""
    for path, source in read_tests().items():
        for number, name in marked(source):
            if number in numbers:
                print(number, f"{path}::{name}" if name else path)


if sys.argv[1:] and __name__ == "__main__":
    print_tests([int(number) for number in sys.argv[1:]])
elif __name__ == "__main__":
    before = DOCUMENT.read_text(encoding="utf-8")
    after = with_checks(before, tests_by_number(read_tests()), read_simulated(), read_anomalies())
    DOCUMENT.write_text(after, encoding="utf-8")
