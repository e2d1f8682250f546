"""The sources that the rules look at."""

from __future__ import annotations

from pathlib import Path

from tidy.rules import Violation

ROOT = Path(__file__).resolve().parents[2]


PRODUCT = (
    "txnlog_spark", "txnlog_kafka", "txnlog_python", "txnlog_testing", "broker_sim", "simulation",
    "pyspark_txnlog",
    "jobs",
)  # fmt: skip


SKIPPED_FOLDERS = {".git", ".venv", ".cache", "build", "demo-data", "__pycache__"}


def read_tree(*folders: str) -> dict[str, str]:
    """Path relative to the root -> source, of all Python files in these folders."""
    paths = (p for f in folders for p in sorted((ROOT / f).rglob("*.py")))
    return {
        p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8")
        for p in paths
        if not SKIPPED_FOLDERS & set(p.parts)
    }


def read_documents() -> dict[str, str]:
    """Path relative to the root -> text, of all Markdown files."""
    found = {}
    for path in sorted(ROOT.rglob("*.md")):
        relative = path.relative_to(ROOT)
        hidden = any(part.startswith(".") and part != ".github" for part in relative.parts)
        if not hidden and not SKIPPED_FOLDERS & set(relative.parts):
            found[relative.as_posix()] = path.read_text(encoding="utf-8")
    return found


def refuse(violations: list[Violation]) -> None:
    """Fail with one line a finding."""
    assert not violations, "\n" + "\n".join(map(str, violations))
