"""Report of a proof: the table, the page, JUnit XML, and what makes it wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from txnlog_testing.prove.report import (
    EXACT,
    NOT_REACHED,
    REFUSED,
    STUCK,
    NotExactlyOnce,
    Report,
    Result,
)

GOOD = Result("replay", "commits/2 taken out, started again", EXACT, "", 1.5)
SKIPPED = Result("kill write:after", "the job does not come to write:after", NOT_REACHED)
WRONG = Result("two drivers", "paused <b>", "3 doubled", "id=1 is there again at out-0@7", 2.0)


def test_a_report_is_exact_unless_a_result_is_wrong():
    assert Report([GOOD, SKIPPED, Result("lost tail", "lost", REFUSED, "an error")]).is_exact
    assert not Report([GOOD, WRONG]).is_exact
    assert not Report([Result("replay", "", STUCK)]).is_exact
    assert Report([GOOD, WRONG]).finding("two drivers") == "3 doubled"
    with pytest.raises(KeyError):
        Report([GOOD]).finding("two drivers")


def test_the_table_has_a_row_for_each_disturbance_and_the_first_row_that_differs():
    text = Report([GOOD, SKIPPED, WRONG], seed=4).text()
    assert text.splitlines()[1].split() == [
        "replay", "exact", "commits/2", "taken", "out,", "started", "again",
    ]  # fmt: skip
    assert "id=1 is there again at out-0@7" in text
    assert text.endswith("2 disturbances, seed 4: 1 WRONG")
    assert Report([GOOD]).text().endswith("1 disturbances, seed 0: exactly once")
    assert "3 doubled" in str(NotExactlyOnce(Report([WRONG])))


def test_the_page_escapes_what_it_shows_and_has_the_pictures(tmp_path):
    drawn = Result("replay", "a", EXACT, "", 1.0, ["<svg>picture</svg>"])
    Report([drawn, WRONG]).write_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<svg>picture</svg>" in page
    assert "paused &lt;b&gt;" in page
    assert "class='wrong'" in page


def test_junit_has_a_case_for_each_disturbance(tmp_path):
    Report([GOOD, SKIPPED, WRONG]).write_junit(tmp_path / "junit.xml", "job")
    (suite,) = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    good, skipped, wrong = suite
    assert good.get("name") == "replay"
    assert list(good) == []
    assert [each.tag for each in skipped] == ["skipped"]
    assert wrong[0].get("message") == "3 doubled"
