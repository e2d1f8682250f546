"""Output of the commands: aligned tables for people, JSON for programs, refusals on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from txnlog_kafka.host.sign_of_life import CLEAR

EXIT_OK = 0
EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""Exit code of a shell after Ctrl-C."""

NOTHING = "-"
"""Text for an absent value; null in JSON."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings such as `LOG-END-OFFSET`, the key `log_end_offset` in JSON."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def lines(self) -> list[str]:
        """Return the aligned columns, with two blanks in between, the headings first."""
        cells = [list(self.headings), *([_text(value) for value in row] for row in self.rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(self.headings))]
        padded = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in cells
        )
        return [line.rstrip() for line in padded]

    def records(self) -> list[dict[str, Any]]:
        """Return one object a row."""
        keys = [heading.lower().replace("-", "_") for heading in self.headings]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


@dataclass(slots=True)
class Output:
    """Tables of a command, and its partial refusals."""

    tables: list[Table] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def write(self, *, as_json: bool) -> int:
        """Print the tables and the refusals; return the exit code."""
        if as_json or not self.refusals or any(table.rows for table in self.tables):
            write_line(self.json() if as_json else self.text())
        for refusal in self.refusals:
            write_error(refusal)
        return EXIT_REFUSED if self.refusals else EXIT_OK

    def text(self) -> str:
        """Return the tables as text, with their titles if there are several."""
        blocks = []
        for table in self.tables:
            title = [table.title] if len(self.tables) > 1 and table.title else []
            blocks.append("\n".join([*title, *table.lines()]))
        return "\n\n".join(blocks)

    def json(self) -> str:
        """Return JSON: one table is a list, several tables are an object by their titles."""
        if len(self.tables) == 1:
            value: Any = self.tables[0].records()
        else:
            value = {table.title: table.records() for table in self.tables}
        return json.dumps(value, indent=2, default=str)


def _text(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(str(each) for each in value) or NOTHING
    return str(value)


def write_line(text: str) -> None:
    """Write one line, or several, to standard output; characters missing in its encoding are
    escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def write_error(text: str) -> None:
    """Write one line to standard error, in place of a sign of life."""
    begin = CLEAR if sys.stderr.isatty() else ""
    sys.stderr.write(f"{begin}broker_sim: {text}\n")
