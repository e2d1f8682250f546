"""docs/errors.md, made from the texts that `python -m txnlog_spark explain` shows.

A class's docstring has the cause, and after "Remedy:" what to do. Run it to write the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from txnlog_spark.tools.explain import ErrorText, error_texts  # noqa: E402

PAGE = ROOT / "docs" / "errors.md"
HEAD = """# Errors

For: people on call who read a line with `TXNLOG_`.

Each error of the connector begins with a name in brackets, such as `[TXNLOG_PRODUCER_FENCED]`. The
names are stable. The text after the name says what happened, with the ids involved, and what to do.
If a command helps, the last line has the command, and begins with `Do this`. This page has a
heading for each name. A name with a dot is a special case of the name before the dot.

`python -m txnlog_spark explain TXNLOG_PRODUCER_FENCED` prints the cause and the remedy, without a
broker. You can also give `explain` a whole error in quotes. Without a name, `explain` lists all
names.
[When a query stops](operating.md#when-a-query-stops) says where Spark shows an error. This page is
written by `tests/tidy/error_page.py` from the docstrings that `explain` reads.

## Spark's own errors

Some errors have no `TXNLOG_` name: Spark itself refuses some queries before it asks the connector,
and Spark itself reports that a Python worker has ended:

| Spark says | what to do |
|---|---|
| "txnlog does not support Update mode" | use [`foreach_batch`](writing.md#foreachbatch) |
| `checkpointLocation` must be specified | set it as an option of the writer, not in Spark's conf |
| `UNSUPPORTED_DATA_SOURCE_SAVE_MODE` | set `.mode("append")` for a batch write |
| `DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT` | drop or rename the second column |
| `OverflowError: date value out of range` | set `spark.sql.python.filterPushdown.enabled=false` |
| `DATA_SOURCE_NOT_FOUND` | [What to do](deploying.md#when-the-package-is-not-found) |
| the same, after an interrupted cell | run `spark.createDataFrame([], "a INT")` once |
| `STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY` | [What to do](operating.md#killed-at-the-start) |
| `Python worker failed to connect back` | [What to do](operating.md#a-worker-that-does-not-start) |
| `Timed out while waiting for the Python worker` | the same |
| `(no cause message)`, `Connection reset` | [What to do](operating.md#a-worker-that-was-killed) |
| `Python worker exited unexpectedly (crashed)` | the same |
"""
_NAME_OR_SETTING = re.compile(r"(?<![`\w.])((?:kafka|transaction)(?:\.\w+)+|\w+=\w+)")


def section_of(error: ErrorText) -> str:
    """Return the section of one error: a heading, its lower-case anchor, cause and remedy."""
    cause, remedy = map(_marked, (error.cause, error.remedy))
    paragraphs = [
        *([f'<a id="{error.name.lower()}"></a>'] if "." in error.name else []),
        f"## {error.name}",
        f"**Cause.** {cause}",
        f"**Remedy.** {remedy}",
        f"Class: `{error.class_name}`.",
    ]
    return "\n\n".join(paragraphs) + "\n"


def _marked(text: str) -> str:
    """The text with names and settings as code, where it is not code already."""
    parts = text.split("`")
    parts[::2] = (_NAME_OR_SETTING.sub(r"`\1`", part) for part in parts[::2])
    return "`".join(parts)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(section_of, error_texts().values())])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
