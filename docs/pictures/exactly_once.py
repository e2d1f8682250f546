"""Draws `exactly_once.svg`: one micro-batch on its way into one Kafka transaction.

Run it to write the picture beside it; `tests/tidy/test_pictures.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 920, 430
INK, GREY, BLUE, GREEN, PAPER = "#24292f", "#6e7781", "#0550ae", "#1a7f37", "#ffffff"
LINE_HEIGHT = 18
FONT = "Helvetica, Arial, sans-serif"


def text(
    x: int, y: int, words: str, colour: str = INK, *, bold: bool = False, at: str = "start"
) -> str:
    """Return a line of text; `at` says if x is its start, its middle or its end."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{at}"{weight}>{escape(words)}</text>'
    )


def box(
    x: int, y: int, width: int, height: int, colour: str = GREY, *, dashed: bool = False
) -> str:
    """A frame with round corners."""
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" '
        f'stroke="{colour}" stroke-width="1.5"{dashes}/>'
    )


def arrow(x: int, y: int, to_x: int, to_y: int, colour: str = INK) -> str:
    """A line with a head at its end."""
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{colour}" stroke-width="1.5" '
        f'marker-end="url(#head)"/>'
    )


def titled(
    x: int, y: int, width: int, height: int, title: str, lines: Sequence[str]
) -> Iterator[str]:
    """A frame with a title and lines below it."""
    yield box(x, y, width, height)
    yield text(x + 14, y + 24, title, bold=True)
    for number, line in enumerate(lines):
        yield text(x + 14, y + 48 + LINE_HEIGHT * number, line, GREY)


def shapes() -> Iterator[str]:
    """Yield all parts of the picture, from left to right."""
    yield from titled(
        20, 70, 170, 110, "topic orders", ["offsets 0 ... 39", "", "batch 7: 20 to 39"]
    )
    yield arrow(190, 125, 262, 125)
    yield text(226, 115, "read", GREY, at="middle")

    yield from titled(
        264,
        70,
        210,
        110,
        "Spark's tasks",
        ["rows to record batches:", "staged, not sent:", "no task talks to Kafka"],
    )
    yield arrow(369, 180, 369, 222)
    yield text(380, 206, "1  staged batches", BLUE)

    yield from titled(
        264,
        224,
        210,
        116,
        "the driver's committer",
        ["one transactional producer", "for the whole batch"],
    )
    yield text(278, 326, "2  InitProducerId", BLUE)

    yield box(520, 20, 380, 320, GREEN, dashed=True)
    yield text(710, 44, "one Kafka transaction", GREEN, bold=True, at="middle")
    yield from titled(660, 64, 220, 76, "topic orders-loud", ["the rows of batch 7"])
    yield from titled(660, 156, 220, 60, "group shouter", [])
    yield text(674, 204, "offsets: next is 40", GREY)
    yield from titled(660, 232, 220, 60, "the query's progress", [])
    yield text(674, 280, "next batch is 8", GREY)
    yield arrow(474, 244, 656, 104)
    yield arrow(474, 256, 656, 186)
    yield arrow(474, 268, 656, 260)
    yield text(530, 136, "3  Produce", BLUE)
    yield text(586, 245, "4  offsets", BLUE)
    yield arrow(474, 318, 656, 318)
    yield text(536, 310, "5  EndTxn", BLUE)
    yield text(668, 323, "all of it, or nothing", GREEN, bold=True)

    yield text(20, 380, "killed before 5: nothing is visible, batch 7 is done again", INK)
    yield text(20, 404, "killed after 5: progress says 8, batch 7 is skipped", INK)
    yield text(900, 380, "read_committed consumers see batch 7 once", INK, at="end")
    yield text(900, 404, "checkpoint: offsets/7 before 1, commits/7 after 5", GREY, at="end")


def draw() -> str:
    """The whole picture as SVG."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="{FONT}" font-size="14">'
    )
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
    )
    title = "<title>One micro-batch in one Kafka transaction</title>"
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{PAPER}"/>'
    return "\n".join([head, title, marker, paper, *shapes(), "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw(), encoding="utf-8")
