"""Rows of one partition, encoded by the connector's codec."""

from __future__ import annotations

from typing import Any

import numpy as np

from txnlog_spark.codec.encode import encode_partitioned


def encode_batches(
    keys: Any,
    values: Any,
    timestamps_ms: Any,
    headers: Any,
    *,
    compression: str = "none",
    record_batch_bytes_max: int,
) -> list[memoryview]:
    """Rows of one partition in order: `encode_partitioned` without partitions."""
    partitions = np.zeros(len(values), np.int32)
    encoded = encode_partitioned(
        keys,
        values,
        timestamps_ms,
        headers,
        partitions,
        compression=compression,
        record_batch_bytes_max=record_batch_bytes_max,
    )
    return [batch for _, batch in encoded]
