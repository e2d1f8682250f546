"""What can go wrong with values that have a format, beside a wrong option (`OptionError`)."""

from __future__ import annotations

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import TxnLogError


class MalformedValue(TxnLogError):
    """A key or a value of a topic is not what its format and its schema say.

    Remedy: read with the schema it was written with, or set value.mode=PERMISSIVE (key.mode for a
    key) and send what is malformed to a topic of its own with txnlog_spark.dead_letters.
    """

    condition = "TXNLOG_MALFORMED_VALUE"

    def __init__(self, side: str, partition: TopicPartition, offset: int, problem: str) -> None:
        super().__init__(
            f"the {side} of {partition} at offset {offset} is malformed: {problem}. With "
            f"{side}.mode=PERMISSIVE it is null, and the columns {side}_bytes and {side}_error say "
            "what and why"
        )
