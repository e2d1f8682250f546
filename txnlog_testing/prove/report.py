"""Report of a proof: a table in the terminal, a page of HTML with timelines, and JUnit XML."""

from __future__ import annotations

import html
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

EXACT, NOT_REACHED, REFUSED = "exact", "not reached", "refused"
STUCK, OFFSETS = "stuck", "group offsets differ"
GOOD = (EXACT, NOT_REACHED, REFUSED)
TEXT_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Result:
    """Effect of a disturbance on the job's output."""

    disturbance: str
    happened: str
    finding: str
    detail: str = ""
    seconds: float = 0.0
    pictures: Sequence[str] = field(default_factory=tuple)
    """Timelines of transactions, as SVG."""

    @property
    def is_good(self) -> bool:
        """True if the job did right."""
        return self.finding in GOOD


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all disturbances."""

    results: Sequence[Result]
    seed: int = 0

    @property
    def is_exact(self) -> bool:
        """True if no result is wrong."""
        return all(result.is_good for result in self.results)

    @property
    def reached(self) -> Sequence[Result]:
        """Results of the disturbances that the job came to: the others show nothing."""
        return [result for result in self.results if result.finding != NOT_REACHED]

    def finding(self, disturbance: str) -> str:
        """Return the finding on a disturbance. Raises KeyError if it was not run."""
        for result in self.results:
            if result.disturbance == disturbance:
                return result.finding
        raise KeyError(disturbance)

    def text(self) -> str:
        """Return the table, with details below the rows that need a look."""
        names = max([len("disturbance"), *(len(each.disturbance) for each in self.results)])
        findings = max([len("finding"), *(len(each.finding) for each in self.results)])
        lines = [f"{'disturbance':{names}}  {'finding':{findings}}  what happened"]
        for each in self.results:
            lines.append(
                f"{each.disturbance:{names}}  {each.finding:{findings}}  {each.happened}".rstrip()
            )
            if each.detail:
                indent = " " * (names + 2)
                lines += textwrap.wrap(
                    each.detail, TEXT_WIDTH, initial_indent=indent, subsequent_indent=indent
                )
        wrong = sum(not each.is_good for each in self.results)
        said = f"{wrong} WRONG" if wrong else "exactly once"
        lines.append(f"{len(self.reached)} disturbances, seed {self.seed}: {said}")
        return "\n".join(lines)

    def write_html(self, path: Path) -> None:
        """Write a page with the table, and the transactions of each run as pictures."""
        rows = "\n".join(
            f"<tr class='{'good' if each.is_good else 'wrong'}'><td>{_text(each.disturbance)}</td>"
            f"<td>{_text(each.finding)}</td><td>{_text(each.happened)}<br>"
            f"<em>{_text(each.detail)}</em></td><td>{each.seconds:.1f} s</td></tr>"
            for each in self.results
        )
        drawn = "\n".join(
            f"<h2>{_text(each.disturbance)}: {_text(each.finding)}</h2>" + "\n".join(each.pictures)
            for each in self.results
            if each.pictures
        )
        path.write_text(
            _PAGE.format(rows=rows, drawn=drawn, last=_text(self.text().rpartition("\n")[2])),
            encoding="utf-8",
        )

    def write_junit(self, path: Path, suite: str) -> None:
        """Write a test case for each disturbance, in the form in which pytest writes them."""
        seconds = sum(each.seconds for each in self.results)
        root = ET.Element("testsuites")
        cases = ET.SubElement(
            root,
            "testsuite",
            name=suite,
            tests=str(len(self.results)),
            errors="0",
            failures=str(sum(not each.is_good for each in self.results)),
            skipped=str(sum(each.finding == NOT_REACHED for each in self.results)),
            time=f"{seconds:.3f}",
        )
        for each in self.results:
            case = ET.SubElement(
                cases,
                "testcase",
                classname=suite,
                name=each.disturbance,
                time=f"{each.seconds:.3f}",
            )
            if each.finding == NOT_REACHED:
                ET.SubElement(case, "skipped", message=each.happened)
            elif not each.is_good:
                said = ET.SubElement(case, "failure", message=each.finding)
                said.text = f"{each.happened}\n{each.detail}"
        ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


class NotExactlyOnce(AssertionError):
    """An output is not what the undisturbed job writes; the text is the report's table."""

    def __init__(self, report: Report) -> None:
        super().__init__("the job is not exactly-once\n" + report.text())
        self.report = report


def _text(text: str) -> str:
    return html.escape(text)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Exactly-once</title>
<style>
body {{ font: 15px/1.5 sans-serif; margin: 2em; }} table {{ border-collapse: collapse; }}
td, th {{ border: 1px solid #bbb; padding: .3em .7em; text-align: left; vertical-align: top; }}
.good td:nth-child(2) {{ color: #186a3b; }} .wrong td:nth-child(2) {{ color: #b03a2e; }}
.wrong td:nth-child(2) {{ font-weight: bold; }} em {{ color: #555; }}
</style>
<h1>Exactly-once</h1><p>{last}</p>
<table><tr><th>disturbance</th><th>finding</th><th>what happened</th><th>time</th></tr>
{rows}</table>
{drawn}
</html>
"""
