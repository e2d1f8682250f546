"""Settings of Spark's with which a batch could be computed in part twice: a task refuses them."""

from __future__ import annotations

import pytest

from txnlog_spark.errors import SparkSettingRefused
from txnlog_spark.sink.writers import (
    FULL_RETRY_PROPERTY,
    MASTER_PROPERTY,
    PUSH_PROPERTY,
    check_full_retry,
)

CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enabled"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {FULL_RETRY_PROPERTY: "true"},
        {CHECKSUMS: "false"},
        {PUSH_PROPERTY: "true", MASTER_PROPERTY: "spark://host:7077"},
        {PUSH_PROPERTY: "false", MASTER_PROPERTY: "yarn"},
        {MASTER_PROPERTY: "yarn"},
    ],
)
def test_settings_with_which_spark_computes_a_batch_again_as_a_whole_are_taken(
    settings: dict[str, str],
) -> None:
    check_full_retry(settings.get)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({FULL_RETRY_PROPERTY: "false"}, f"{FULL_RETRY_PROPERTY}=false"),
        ({FULL_RETRY_PROPERTY: " FALSE ", CHECKSUMS: "true"}, f"{FULL_RETRY_PROPERTY}=false"),
        ({PUSH_PROPERTY: "TRUE", MASTER_PROPERTY: "yarn"}, f"{PUSH_PROPERTY}=true"),
    ],
)
def test_settings_with_which_spark_keeps_parts_of_two_computations_are_refused_by_name(
    settings: dict[str, str], named: str
) -> None:
    with pytest.raises(SparkSettingRefused) as caught:
        check_full_retry(settings.get)
    assert named in str(caught.value)
    assert "Nothing was written" in str(caught.value)
