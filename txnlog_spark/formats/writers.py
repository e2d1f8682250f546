"""The writer of keys and values, of every format.

The driver makes a writer when it plans a batch, where it asks a registry, and sends it to the tasks
as it is: plain data. The task makes the encoder and keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from txnlog_spark.formats.columns import join
from txnlog_spark.formats.decoded import Encode


@dataclass(frozen=True, slots=True)
class Writer:
    """Encodes columns by `make(*arguments)`, a function of a module, behind `header`."""

    make: Callable[..., Encode]
    arguments: tuple[Any, ...] = ()
    header: bytes = b""

    def encode(self, column: Any) -> Any:
        """Return a binary array of an array without null. Raises TxnLogError naming a column."""
        encoded = _encoder(self.make, self.arguments)(column)
        return join([self.header, encoded], len(encoded)) if self.header else encoded


@lru_cache(maxsize=256)
def _encoder(make: Callable[..., Encode], arguments: tuple[Any, ...]) -> Encode:
    return make(*arguments)


def text_encoder() -> Encode:
    """Return the encoder of text in UTF-8, which it is in Arrow."""
    return lambda column: column.cast(pa.binary())
