"""The pure tests that a change concerns: for `make check`.

Changed is what differs from the commit at which the work tree left BASE, the branch main. A test
file is concerned if it, or a module that it imports, directly or not, has changed; for a file that
is not Python, if it imports a module of that folder or of the folder above. The cheapest tests come
first, and the list ends where the budget does: `make test` runs the rest.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from support.harness.closure import REPOSITORY, closure_of
from support.harness.costs import NEW_S, file_costs

ALWAYS = ("tests/tidy",)
PURE = ("tests/unit", "tests/property", "tests/golden")
SLOW = ("tests/unit/broker_sim/server",)
"""They start processes."""
BUDGET_S = 90.0
"""Seconds of a processor: less than a minute on two."""


def concerned(changed: Iterable[str], closures: Mapping[str, Collection[str]]) -> set[str]:
    """Return the tests whose closure has a changed file; all paths are relative."""
    names = set(changed)
    folders = {str(Path(name).parent) for name in names if not name.endswith(".py")}
    folders |= {str(Path(folder).parent) for folder in folders}
    return {
        test
        for test, files in closures.items()
        if not names.isdisjoint(files) or not folders.isdisjoint(str(Path(f).parent) for f in files)
    }


def affordable(
    tests: Collection[str], costs: Mapping[str, float], budget_s: float
) -> tuple[list[str], list[str]]:
    """Return the tests that fit into the budget, the cheapest first, and the others."""
    ordered = sorted(tests, key=lambda test: (costs.get(test, NEW_S), test))
    spent, count = 0.0, 0
    for test in ordered:
        spent += costs.get(test, NEW_S)
        if spent > budget_s:
            break
        count += 1
    return ordered[:count], ordered[count:]


def pure_closures() -> dict[str, set[str]]:
    """Return the closure of each pure test file, without what all of them share."""
    found = {}
    for folder in PURE:
        for path in (REPOSITORY / folder).rglob("test_*.py"):
            name = path.relative_to(REPOSITORY).as_posix()
            if not name.startswith(SLOW):
                files = closure_of(path, conftests=False)
                found[name] = {each.relative_to(REPOSITORY).as_posix() for each in files}
    return found


def changed_since(base: str) -> list[str]:
    """Paths of the work tree that differ from where it left `base`, and those git does not know."""

    def git(*arguments: str) -> list[str]:
        run = subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    (left,) = git("merge-base", base, "HEAD")
    return git("diff", "--name-only", left) + git("ls-files", "--others", "--exclude-standard")


def main() -> None:
    """Print the tests to run; say on stderr which are left out."""
    tests = concerned(changed_since(sys.argv[1]), pure_closures())
    run, left_out = affordable(tests, file_costs(), BUDGET_S)
    if left_out:
        print(f"make test runs {len(left_out)} more: {' '.join(left_out)}", file=sys.stderr)
    print(" ".join([*ALWAYS, *run]))


if __name__ == "__main__":
    main()
