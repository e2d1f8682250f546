"""Compression codecs that a host gives the core.

The limit for a batch of a client is lower than the limit for a reader's own batches: a request made
to explode costs an error only, not the broker's memory.
"""

from __future__ import annotations

import functools

from broker_sim.core.log.compression import Codecs
from txnlog_kafka.wire.compression import compress, decompress

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024

CODECS = Codecs(functools.partial(decompress, bytes_max=DECOMPRESSED_BYTES_MAX), compress)
