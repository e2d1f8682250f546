"""The host of a read's questions to the brokers: this process's client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.effects import Operation
from txnlog_spark.client_cache import client_for
from txnlog_spark.errors import DeadlineExceeded
from txnlog_spark.source.log_queries import LogQueries
from txnlog_spark.source.settings import SourceSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")


def ask(settings: SourceSettings, operation: Callable[[LogQueries], Operation[T]]) -> T:
    """Run the operation to its end, and return its result or raise its error."""
    client = _reach(settings)
    return client.run(operation(LogQueries(client.session, settings)))


def _reach(settings: SourceSettings) -> Client:
    """Return the client. Connecting is tried as often as the option for asking offsets says."""
    for attempt in range(1, settings.offset_attempts):
        try:
            return client_for(settings.connection)
        except DeadlineExceeded as error:
            logger.warning("attempt %d of %d: %s", attempt, settings.offset_attempts, error)
            time.sleep(settings.offset_retry_ms / 1000)
    return client_for(settings.connection)
