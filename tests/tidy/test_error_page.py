"""Each error of the connector is explained, with its cause and what to do."""

from __future__ import annotations

import pytest
from tidy import error_page, markdown


def test_the_page_of_errors_is_that_of_the_code() -> None:
    written = error_page.PAGE.read_text(encoding="utf-8")
    assert written == error_page.page(), "run python tests/tidy/error_page.py"


def test_each_name_is_an_anchor_in_lower_case() -> None:
    names = [vars(error)["condition"] for error in error_page.error_classes()]
    assert len(names) > 25
    anchors = markdown.anchors_of(error_page.page())
    assert {name.lower() for name in names} <= anchors


def test_an_error_without_a_remedy_is_found() -> None:
    class Silent(Exception):
        """It happened."""

    with pytest.raises(ValueError, match="Silent has no remedy"):
        error_page.parts_of(Silent)
