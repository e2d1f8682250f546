"""Picture of a transaction: lanes from top to bottom, events from left to right.

Plain SVG text, for a browser. Steps stand in their order, not at their times: between two steps may
lie a millisecond or an hour, which the column's heading shows. Each shape has a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

LEFT, TOP, COLUMN, ROW = 270, 96, 190, 78
LINES_MAX, CHARS_MAX = 3, 28
ON_BROKER = " on broker "
"""Text in a lane's name before the number of the lane's broker, if there are several brokers."""

STYLE = """
text { font: 12px sans-serif; fill: #222 } .small { font-size: 11px; fill: #444 }
.title { font-size: 16px; font-weight: bold } .heading { font-weight: bold }
.lane { stroke: #bbb; stroke-width: 1 } .open { stroke: #e0a030; stroke-width: 5; opacity: .45 }
.arrow { stroke: #777; stroke-width: 1.2; fill: none; marker-end: url(#tip) }
.init circle { fill: #8aa } .begin circle { fill: #e0a030 } .data rect { fill: #4a80c0 }
.offsets rect { fill: #8060b0 } .commit circle, .commit path { fill: #3a9a50 }
.abort circle, .abort path { fill: #c04040 } .request circle { fill: #fff; stroke: #555 }
"""


@dataclass(frozen=True, slots=True)
class Event:
    """Shape of the picture. `kind` selects its look: request, init, begin, data, offsets, decision,
    marker or complete, the last three with `outcome` commit or abort."""

    kind: str
    lane: str
    column: int
    lines: Sequence[str]
    tooltip: str = ""
    outcome: str = ""
    caused_by: str = ""
    """Lane that an arrow comes from."""


@dataclass(slots=True)
class Picture:
    """Content of the drawing. `columns` are heading and time (ms since the epoch, None without a
    time)."""

    title: str
    subtitle: str
    lanes: list[str] = field(default_factory=list)
    columns: list[tuple[str, int | None]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    open_spans: list[tuple[str, int, int]] = field(default_factory=list)
    """Tuples (lane, from column, to column) in which read_committed readers have to wait."""


def draw(picture: Picture) -> str:
    """Return the SVG document."""
    width = LEFT + COLUMN * len(picture.columns) + 40
    height = TOP + ROW * len(picture.lanes) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#777"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        _text(20, 28, picture.title, "title"),
        _text(20, 48, picture.subtitle, "small"),
        *_grid(picture, width),
        *(part for event in picture.events for part in _event(picture, event)),
        *_legend(height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(picture: Picture, width: int) -> Iterator[str]:
    for index, (heading, time_ms) in enumerate(picture.columns):
        yield _text(_x(index), TOP - 22, heading, "heading", "middle")
        if time_ms is not None:
            yield _text(_x(index), TOP - 7, clock(time_ms), "small", "middle")
    for name in picture.lanes:
        y = _y(picture, name)
        what, _, broker = name.rpartition(ON_BROKER)
        yield _text(20, y + 4, _cut_text(what or name, CHARS_MAX), "heading")
        if what:
            yield _text(20, y + 18, f"on broker {broker}", "small")
        yield f'<line class="lane" x1="{LEFT - 20}" y1="{y}" x2="{width - 20}" y2="{y}"/>'
    for name, start, end in picture.open_spans:
        y = _y(picture, name)
        yield f'<line class="open" x1="{_x(start)}" y1="{y}" x2="{_x(end)}" y2="{y}"/>'


def _event(picture: Picture, event: Event) -> Iterator[str]:
    x, y = _x(event.column), _y(picture, event.lane)
    look = f"event {event.kind} {event.outcome}".strip()
    yield f"<g class={quoteattr(look)} data-lane={quoteattr(event.lane)}>"
    if event.caused_by:
        begin = _y(picture, event.caused_by)
        near = 11 if y > begin else -11
        yield f'<path class="arrow" d="M{x},{begin + near} L{x},{y - near}"/>'
    if event.kind in ("data", "offsets"):
        yield f'<rect x="{x - 26}" y="{y - 8}" width="52" height="16" rx="3"/>'
    elif event.kind == "marker":
        yield f'<path d="M{x},{y - 10} l10,10 l-10,10 l-10,-10 z"/>'
    else:
        yield f'<circle cx="{x}" cy="{y}" r="8"/>'
    yield f"<title>{escape(event.tooltip or ', '.join(event.lines))}</title>"
    for row, line in enumerate(event.lines[:LINES_MAX]):
        yield _text(x + 14, y + 22 + 13 * row, _cut_text(line, CHARS_MAX), "small")
    yield "</g>"


def _legend(height: int) -> Iterator[str]:
    shapes = (
        ("data", '<rect x="-9" y="-6" width="18" height="12" rx="3"/>', "records"),
        ("offsets", '<rect x="-9" y="-6" width="18" height="12" rx="3"/>', "committed offsets"),
        ("commit", '<path d="M0,-8 l8,8 l-8,8 l-8,-8 z"/>', "marker COMMIT"),
        ("abort", '<path d="M0,-8 l8,8 l-8,8 l-8,-8 z"/>', "marker ABORT"),
        ("begin", '<circle r="7"/>', "the coordinator's record"),
        ("", '<line class="open" x1="-12" x2="12"/>', "open: readers of committed records wait"),
    )
    for index, (look, shape, text) in enumerate(shapes):
        place = f"translate({40 + 175 * index},{height - 24})"
        yield f'<g class="{look}" transform="{place}">{shape}{_text(16, 4, text, "small")}</g>'


def clock(time_ms: int) -> str:
    """Return a time of day in UTC, with milliseconds."""
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{when:%H:%M:%S}.{time_ms % 1000:03d}"


def _x(column: int) -> int:
    return LEFT + COLUMN * column + 40


def _y(picture: Picture, lane: str) -> int:
    return TOP + ROW * picture.lanes.index(lane) + 20


def _cut_text(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _text(x: int, y: int, text: str, look: str, anchor: str = "start") -> str:
    where = f'x="{x}" y="{y}" text-anchor="{anchor}"'
    return f'<text class="{look}" {where}>{escape(text)}</text>'
