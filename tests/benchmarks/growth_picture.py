"""The picture of `bench_growth`: a panel for each axis, log-log, with a line that grows as work.

That line goes through the last point but one: where the last point is above it, cost has grown
faster than the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullFormatter

COLUMNS = 3
PANEL_INCHES = (4.3, 3.4)
MIB_MAX = 400
"""Memory that each Python process may take, in MiB."""
COLOURS = {
    "all processes": "#24292f",
    "JVM": "#bf8700",
    "tasks": "#0550ae",
    "commit": "#cf222e",
    "staging server": "#8250df",
    "source and planning": "#1a7f37",
    "broker": "#6e7781",
}
LINE_COLOURS = ("#0550ae", "#cf222e", "#bf8700", "#1a7f37")
WORK_STYLE = {"color": "#24292f", "linestyle": (0, (1, 2)), "linewidth": 1.4}
CEILING_STYLE = {"color": "#cf222e", "linestyle": (0, (6, 3)), "linewidth": 1.0}
DRIVERS_PYTHON = "driver: "
DRIVERS_JVM = "driver: JVM"

Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Panel:
    """Panel of the picture: one view of an axis."""

    axis: str
    title: str
    x: str
    y: str = "CPU"
    """CPU by kind of process, or in all of each line; or MiB."""
    slope: int = 1
    """Slope of the work's line: 0 if the work stays the same."""


PANELS = (
    Panel("partitions", "A batch of 20,000 rows", "partitions of input and output"),
    Panel("rows", "A batch", "rows of the batch"),
    Panel("rows", "A batch: the largest process", "rows of the batch", "MiB", 0),
    Panel("tasks", "A batch of 20,000 rows", "tasks"),
    Panel("sources", "A batch of 20,000 rows", "sources of the query"),
    Panel("backlogs", "A batch of 20,000 rows", "GB of the backlog", "CPU", 0),
    Panel("aborted", "Reading 20,000 committed records", "records of the log, all", "lines"),
    Panel("queries", "Python of the driver together", "queries of the application", "lines MiB"),
)


def draw(axes: Mapping[str, Any], path: Path) -> None:
    """Draw the axes that there are."""
    panels = [panel for panel in PANELS if panel.axis in axes]
    rows = -(-(len(panels) + 1) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * PANEL_INCHES[0], rows * PANEL_INCHES[1]), dpi=100)
    places = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for place, panel in zip(places, panels, strict=False):
        _draw_panel(place, panel, axes[panel.axis]["lines"])
    for place in places[len(panels) :]:
        place.set_axis_off()
    _draw_legend(places[len(panels)])
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})


def _draw_panel(place: Axes, panel: Panel, lines: Mapping[str, Points]) -> None:
    if panel.y == "CPU":
        _draw_cpu(place, panel, lines[""])
    elif panel.y == "MiB":
        _draw_memory(place, panel, lines[""])
    else:
        total = _python_mib if panel.y.endswith("MiB") else _cpu
        for colour, (name, points) in zip(LINE_COLOURS, lines.items(), strict=False):
            ys = [total(point) for point in points]
            place.plot([p["x"] for p in points], ys, "o-", markersize=3, color=colour, label=name)
            _draw_work(place, points, ys, panel.slope)
        place.legend(fontsize=7, frameon=False)
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_title(panel.title, fontsize=10)
    place.set_xlabel(panel.x, fontsize=8)
    place.set_ylabel("MiB" if panel.y.endswith("MiB") else "seconds", fontsize=8)
    xs = sorted({point["x"] for points in lines.values() for point in points})
    place.set_xticks(xs, labels=[f"{x:,}" for x in xs])
    place.xaxis.set_minor_formatter(NullFormatter())
    place.yaxis.set_major_formatter("{x:g}")
    place.yaxis.set_minor_formatter(LogFormatter())
    place.tick_params(labelsize=7, which="both")
    place.grid(visible=True, which="major", linewidth=0.3)


def _draw_cpu(place: Axes, panel: Panel, points: Points) -> None:
    xs = [point["x"] for point in points]
    place.plot(xs, [p["seconds"] for p in points], "--", color="#8c959f", linewidth=1)
    for kind, colour in COLOURS.items():
        ys = [_cpu(point) if kind == "all processes" else _of_kind(point, kind) for point in points]
        width = 2.2 if kind == "all processes" else 1
        place.plot(xs, ys, "o-", markersize=3, color=colour, linewidth=width)
    _draw_work(place, points, [_cpu(point) for point in points], panel.slope)


def _draw_memory(place: Axes, panel: Panel, points: Points) -> None:
    xs = [point["x"] for point in points]
    for kind in ("tasks", "commit", "staging server", "broker"):
        ys = [point["mib"].get(kind) for point in points]
        place.plot(xs, ys, "o-", markersize=3, color=COLOURS[kind], linewidth=1)
    place.axhline(MIB_MAX, **CEILING_STYLE)


def _draw_work(place: Axes, points: Points, ys: Sequence[float], slope: int) -> None:
    if len(points) < 2:
        return
    xs = [point["x"] for point in points]
    place.plot(xs, [ys[-2] * (x / xs[-2]) ** slope for x in xs], **WORK_STYLE)


def _draw_legend(place: Axes) -> None:
    for kind, colour in COLOURS.items():
        width = 2.2 if kind == "all processes" else 1
        place.plot([], [], "o-", markersize=3, color=colour, linewidth=width, label=f"CPU: {kind}")
    place.plot([], [], "--", color="#8c959f", linewidth=1, label="time on the clock")
    place.plot([], [], **WORK_STYLE, label="as its work")
    place.plot([], [], **CEILING_STYLE, label=f"{MIB_MAX} MiB, the limit of a Python process")
    place.legend(loc="center", fontsize=9, frameon=False)


def _cpu(point: Mapping[str, Any]) -> float:
    return sum(point["cpu_s"].values())


def _of_kind(point: Mapping[str, Any], kind: str) -> float:
    """Return the CPU seconds of a kind, but never 0, which a log scale cannot show."""
    kinds = ("source", "planning") if kind == "source and planning" else (kind,)
    return max(sum(point["cpu_s"].get(each, 0.0) for each in kinds), 1e-3)


def _python_mib(point: Mapping[str, Any]) -> float:
    return sum(
        mib
        for kind, mib in point["mib"].items()
        if kind.startswith(DRIVERS_PYTHON) and kind != DRIVERS_JVM
    )
