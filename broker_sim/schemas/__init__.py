"""The records of the internal topics, made from definitions in Kafka's format beside this file.

Names, types and versions are those of Kafka's own definitions (KIP-915 for the tagged fields). What
the members of a group tell each other is in `txnlog_kafka.wire.schemas`.
"""

from __future__ import annotations

from functools import partial

from txnlog_kafka.wire.structs import message_class

_own = partial(message_class, package=__name__)

TransactionLogKey = _own("TransactionLogKey")
TransactionLogValue = _own("TransactionLogValue")
OffsetCommitKey = _own("OffsetCommitKey")
OffsetCommitValue = _own("OffsetCommitValue")
GroupMetadataKey = _own("GroupMetadataKey")
GroupMetadataValue = _own("GroupMetadataValue")
ConsumerProtocolAssignment = message_class("ConsumerProtocolAssignment")
ConsumerProtocolSubscription = message_class("ConsumerProtocolSubscription")
ConsumerGroupMetadataKey = _own("ConsumerGroupMetadataKey")
ConsumerGroupMetadataValue = _own("ConsumerGroupMetadataValue")
ConsumerGroupMemberMetadataKey = _own("ConsumerGroupMemberMetadataKey")
ConsumerGroupMemberMetadataValue = _own("ConsumerGroupMemberMetadataValue")
ConsumerGroupTargetAssignmentMetadataKey = _own("ConsumerGroupTargetAssignmentMetadataKey")
ConsumerGroupTargetAssignmentMetadataValue = _own("ConsumerGroupTargetAssignmentMetadataValue")
ConsumerGroupTargetAssignmentMemberKey = _own("ConsumerGroupTargetAssignmentMemberKey")
ConsumerGroupTargetAssignmentMemberValue = _own("ConsumerGroupTargetAssignmentMemberValue")
ConsumerGroupCurrentMemberAssignmentKey = _own("ConsumerGroupCurrentMemberAssignmentKey")
ConsumerGroupCurrentMemberAssignmentValue = _own("ConsumerGroupCurrentMemberAssignmentValue")
ConsumerGroupRegularExpressionKey = _own("ConsumerGroupRegularExpressionKey")
ConsumerGroupRegularExpressionValue = _own("ConsumerGroupRegularExpressionValue")
