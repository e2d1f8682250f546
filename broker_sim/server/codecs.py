"""The compression codecs that a host gives the core.

A batch that a client sends is decompressed within less than a reader allows itself: a request made
to explode costs the broker, and so everybody, an error only.
"""

from __future__ import annotations

import functools

from broker_sim.core.log.compression import Codecs
from txnlog_kafka.wire.compression import compress, decompress

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024

CODECS = Codecs(functools.partial(decompress, bytes_max=DECOMPRESSED_BYTES_MAX), compress)
