"""Which pure tests look at what has changed: for `make check`.

Changed is what differs from the commit at which the work tree left BASE, the branch main. A file of
the product has the tests of its folder in `tests/unit`; a test is its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("tests/tidy",)
PURE = ("tests/unit", "tests/property", "tests/golden")
SLOW = ("tests/unit/broker_sim/server",)
"""They start processes."""


def pure_tests_of(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """The folders and files to hand to pytest."""
    found = set(ALWAYS)
    for name in changed:
        path = PurePosixPath(name)
        if name.startswith("tests/") and path.name.startswith("test_"):
            if name.startswith(PURE) and (root / name).exists():
                found.add(name)
        elif path.suffix in (".py", ".json", ".yml") and path.parts[0] != "tests":
            folder = PurePosixPath("tests/unit", *path.parts[:-1])
            while not (root / folder).is_dir():
                folder = folder.parent
            if folder != PurePosixPath("tests/unit"):
                found.add(str(folder))
    inner = {
        each
        for each in found
        if any(PurePosixPath(o) in PurePosixPath(each).parents for o in found)
    }
    return sorted(each for each in found - inner if not each.startswith(SLOW))


def changed_since(base: str) -> list[str]:
    """Paths of the work tree that differ from where it left `base`, and those git does not know."""

    def git(*arguments: str) -> list[str]:
        run = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    (left,) = git("merge-base", base, "HEAD")
    return git("diff", "--name-only", left) + git("ls-files", "--others", "--exclude-standard")


if __name__ == "__main__":
    sys.stdout.write(" ".join(pure_tests_of(changed_since(sys.argv[1]))) + "\n")
