"""Each error of the connector is explained, with its cause and what to do."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from tidy import error_page, markdown

import txnlog_kafka
import txnlog_spark
from txnlog_kafka.errors import TxnLogError


def test_the_page_of_errors_is_that_of_the_code() -> None:
    written = error_page.PAGE.read_text(encoding="utf-8")
    assert written == error_page.page(), "run python tests/tidy/error_page.py"


def test_what_an_error_prints_ends_with_its_anchor_on_the_page() -> None:
    anchors = markdown.anchors_of(error_page.page())
    for package in (txnlog_kafka, txnlog_spark):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    classes = {
        error for error in subclasses_of(TxnLogError) if error.__module__.startswith("txnlog")
    }
    assert len(classes) > 30
    for error in classes:
        page, _, anchor = str(error.__new__(error, "text")).rpartition("(")[2][:-1].partition("#")
        assert page == "docs/errors.md"
        assert anchor in anchors, error


def subclasses_of(error: type[Exception]) -> Iterator[type[Exception]]:
    for each in error.__subclasses__():
        yield each
        yield from subclasses_of(each)


def test_an_error_without_a_remedy_is_found() -> None:
    class Silent(Exception):
        """It happened."""

    with pytest.raises(ValueError, match="Silent has no remedy"):
        error_page.parts_of(Silent)
