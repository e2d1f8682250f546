"""Each error of the connector is explained, with its cause and what to do."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from tidy import error_page, markdown

import txnlog_kafka
import txnlog_spark
from txnlog_kafka.errors import TxnLogError
from txnlog_spark.tools.explain import error_texts, explain


def test_the_page_of_errors_is_that_of_the_code() -> None:
    written = error_page.PAGE.read_text(encoding="utf-8")
    assert written == error_page.page(), "run python tests/tidy/error_page.py"


def test_each_error_that_can_be_raised_is_explained() -> None:
    anchors = markdown.anchors_of(error_page.page())
    for package in (txnlog_kafka, txnlog_spark):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    classes = {
        error
        for error in subclasses_of(TxnLogError)
        if error.__module__.startswith(("txnlog_kafka.", "txnlog_spark."))
    }
    assert len(classes) > 30
    texts = error_texts()
    assert set(texts) == {error.condition for error in (TxnLogError, *classes)}
    for error in classes:
        said = explain(str(error.__new__(error, "text")))
        assert said.startswith(f"{error.condition}\n\n")
        assert error.condition.lower() in anchors
    named = {f"{error.__module__}.{error.__name__}" for error in (TxnLogError, *classes)}
    assert {text.class_name for text in texts.values()} <= named


def subclasses_of(error: type[Exception]) -> Iterator[type[Exception]]:
    for each in error.__subclasses__():
        yield each
        yield from subclasses_of(each)
