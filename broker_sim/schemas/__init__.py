"""The records of the internal topics, made from definitions in Kafka's format beside this file.

Names, types and versions are those of Kafka's own definitions (KIP-915 for the tagged fields). The
subscription of a consumer is defined in kafka-python.
"""

from __future__ import annotations

from txnlog_kafka.wire.kafka_python import data_class

TransactionLogKey = data_class("TransactionLogKey", __name__)
TransactionLogValue = data_class("TransactionLogValue", __name__)
OffsetCommitKey = data_class("OffsetCommitKey", __name__)
OffsetCommitValue = data_class("OffsetCommitValue", __name__)
GroupMetadataKey = data_class("GroupMetadataKey", __name__)
GroupMetadataValue = data_class("GroupMetadataValue", __name__)
ConsumerProtocolSubscription = data_class("ConsumerProtocolSubscription")
