"""The README's table of options, made from the table in the code. Run it to write the README."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
_SECTION = re.compile(r"(<!-- options: .*? -->\n).*?(<!-- end of options -->)", re.DOTALL)


def options_table() -> str:
    """Markdown: one row an option, in the order of the table in the code."""
    from txnlog_spark.options import OPTIONS, Use

    words = {
        Use.ALL: "all",
        Use.READ: "read",
        Use.WRITE: "write",
        Use.READ_STREAM: "readStream",
        Use.WRITE_STREAM: "writeStream",
        Use.READ_BATCH: "batch read",
        Use.WRITE_BATCH: "batch write",
    }
    lines = ["| option | for | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = "" if option.default is None else f"`{str(option.default).lower()}`"
        if isinstance(option.default, str):
            default = f"`{option.default}`"
        lines.append(f"| {names} | {words[option.use]} | {default} | {option.doc} |")
    return "\n".join(lines) + "\n"


def with_options(text: str) -> str:
    """The README's text with the current table in its place."""
    written, count = _SECTION.subn(lambda m: m.group(1) + options_table() + m.group(2), text)
    if count != 1:
        raise ValueError("the README has no place for the options")
    return written


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    README.write_text(with_options(README.read_text(encoding="utf-8")), encoding="utf-8")
