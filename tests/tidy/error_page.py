"""docs/errors.md, made from the classes in the modules `errors` of the connector and the client.

A class's docstring has the cause, and after "Remedy:" what to do. Run it to write the page.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
HEAD = """# Errors

For: people on call who have a line with `TXNLOG_` before them.

Each error of the connector begins with a name in brackets, such as `[TXNLOG_PRODUCER_FENCED]`. The
names are stable; the text behind one says what happened, with the ids involved, and what to do.
Below is a heading for each name. A name with a dot is a special case of the one before the dot.

An error's text ends with its place on this page. [When a query
stops](operating.md#when-a-query-stops) says where Spark shows it. Written by
`tests/tidy/error_page.py` from the modules `errors` of the connector and of the client.

## Spark's own errors

What Spark refuses before it asks the connector has no such name:

| Spark says | what to do |
|---|---|
| "txnlog does not support Update mode" | [`foreach_batch`](writing.md#foreachbatch) |
| `checkpointLocation` must be specified | set it as an option of the writer, not in Spark's conf |
| `UNSUPPORTED_DATA_SOURCE_SAVE_MODE` | `.mode("append")` for a batch write |
| `DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT` | drop or rename the second column |
| `OverflowError: date value out of range` | `spark.sql.python.filterPushdown.enabled=false` |
| `DATA_SOURCE_NOT_FOUND` | [What to do](deploying.md#when-the-package-is-not-found) |
| the same, after an interrupted cell | `spark.createDataFrame([], "a INT")`, once |
| `STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY` | [What to do](operating.md#killed-at-the-start) |
"""
_NAME_OR_SETTING = re.compile(r"(?<![`\w.])((?:kafka|transaction)(?:\.\w+)+|\w+=\w+)")


def error_classes() -> Iterator[type[Exception]]:
    """Every class with a name of its own, by that name."""
    import txnlog_spark
    from txnlog_kafka import errors as client

    names = [
        module.name
        for module in pkgutil.walk_packages(txnlog_spark.__path__, "txnlog_spark.")
        if module.name.endswith(".errors")
    ]
    found = {
        each.condition: each
        for module in (client, *map(importlib.import_module, names))
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, client.TxnLogError)
    }
    yield from (found[condition] for condition in sorted(found))


def parts_of(error: type[Exception]) -> tuple[str, str]:
    """(cause, remedy) of a class, as its docstring has them."""
    cause, found, remedy = inspect.cleandoc(error.__doc__ or "").partition("\n\nRemedy: ")
    if not found:
        raise ValueError(f"{error.__name__} has no remedy in its docstring")
    return cause, remedy[0].upper() + remedy[1:]


def section_of(error: type[Exception]) -> str:
    """One heading, with an anchor that is the name in lower case, and what stands below it."""
    condition: str = vars(error)["condition"]
    cause, remedy = (_NAME_OR_SETTING.sub(r"`\1`", part) for part in parts_of(error))
    paragraphs = [
        *([f'<a id="{condition.lower()}"></a>'] if "." in condition else []),
        f"## {condition}",
        f"**Cause.** {cause}",
        f"**Remedy.** {remedy}",
        f"Class: `{error.__module__}.{error.__name__}`.",
    ]
    return "\n\n".join(paragraphs) + "\n"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(section_of, error_classes())])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
