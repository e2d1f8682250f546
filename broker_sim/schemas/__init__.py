"""The records of the internal topics, made from definitions in Kafka's format beside this file.

Names, types and versions are those of Kafka's own definitions (KIP-915 for the tagged fields). What
the members of a group tell each other is in `txnlog_kafka.wire.schemas`.
"""

from __future__ import annotations

from txnlog_kafka.wire.structs import message_class

TransactionLogKey = message_class("TransactionLogKey", __name__)
TransactionLogValue = message_class("TransactionLogValue", __name__)
OffsetCommitKey = message_class("OffsetCommitKey", __name__)
OffsetCommitValue = message_class("OffsetCommitValue", __name__)
GroupMetadataKey = message_class("GroupMetadataKey", __name__)
GroupMetadataValue = message_class("GroupMetadataValue", __name__)
ConsumerProtocolAssignment = message_class("ConsumerProtocolAssignment")
ConsumerProtocolSubscription = message_class("ConsumerProtocolSubscription")
ConsumerGroupMetadataKey = message_class("ConsumerGroupMetadataKey", __name__)
ConsumerGroupMetadataValue = message_class("ConsumerGroupMetadataValue", __name__)
ConsumerGroupMemberMetadataKey = message_class("ConsumerGroupMemberMetadataKey", __name__)
ConsumerGroupMemberMetadataValue = message_class("ConsumerGroupMemberMetadataValue", __name__)
ConsumerGroupTargetAssignmentMetadataKey = message_class(
    "ConsumerGroupTargetAssignmentMetadataKey", __name__
)
ConsumerGroupTargetAssignmentMetadataValue = message_class(
    "ConsumerGroupTargetAssignmentMetadataValue", __name__
)
ConsumerGroupTargetAssignmentMemberKey = message_class(
    "ConsumerGroupTargetAssignmentMemberKey", __name__
)
ConsumerGroupTargetAssignmentMemberValue = message_class(
    "ConsumerGroupTargetAssignmentMemberValue", __name__
)
ConsumerGroupCurrentMemberAssignmentKey = message_class(
    "ConsumerGroupCurrentMemberAssignmentKey", __name__
)
ConsumerGroupCurrentMemberAssignmentValue = message_class(
    "ConsumerGroupCurrentMemberAssignmentValue", __name__
)
ConsumerGroupRegularExpressionKey = message_class("ConsumerGroupRegularExpressionKey", __name__)
ConsumerGroupRegularExpressionValue = message_class("ConsumerGroupRegularExpressionValue", __name__)
