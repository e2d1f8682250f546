"""Questions before a job's first start. No answer changes or creates anything.

Metadata shows what this user may do with a topic (KIP-430). Only a group's coordinator shows that
for a group, and no request shows it for a transactional id. FindCoordinator is not used, because it
creates the internal topics of a new cluster. So the client sends all brokers a request that no
broker can carry out: a broker checks the ACLs first, then whether it is the coordinator, then
whether there is such a member or such a producer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnlog_kafka.operations.calls import call_all, call_any
from txnlog_kafka.operations.effects import Call, Operation, Reply, Sleep, Unanswered
from txnlog_kafka.operations.metadata import UNKNOWN_TOPIC_PATIENCE_MS, api_versions_request
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import TRANSACTION_VERSION
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

OPERATION_BITS = {3: "READ", 4: "WRITE", 5: "CREATE"}
"""Bits of Kafka's `AclOperation` that matter here."""
NO_OPERATIONS = -(2**31)
"""Answer of brokers that do not report which operations are authorized."""
TRANSACTION_APIS = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
ASK_AGAIN_MS = 500
_REFUSALS = frozenset(
    {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
)
_NOWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """Broker of the cluster: its address, and why it did not answer or cannot do transactions."""

    node: int
    address: str
    unanswered: str = ""
    missing_apis: tuple[str, ...] = ()
    transaction_version: int = 1


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """Topic as one broker has it; `operations` is None if brokers do not report them."""

    error_code: int
    partition_count: int
    operations: frozenset[str] | None

    def allows(self, operation: str) -> bool | None:
        """True if this user may do it, None if brokers do not report operations."""
        if self.is_hidden:
            return False
        return None if self.operations is None else operation in self.operations

    @property
    def is_missing(self) -> bool:
        """True if the topic does not exist."""
        return self.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @property
    def is_hidden(self) -> bool:
        """True if this user may not know whether the topic exists."""
        return self.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class Probe:
    """Error codes that brokers answered to a request that no broker can carry out."""

    codes: frozenset[int]

    @property
    def is_granted(self) -> bool | None:
        """True if this user may do the operation that was asked for, None without an answer."""
        return not self.codes & _REFUSALS if self.codes else None

    @property
    def has_coordinator(self) -> bool:
        """True if a broker coordinates the name that was asked for."""
        return bool(self.codes - _REFUSALS - _NOWHERE)


def ask_brokers(session: Session) -> Operation[tuple[BrokerAnswer, ...]]:
    """Ask each broker, at the address that the cluster gives, for its versions and features."""
    found = []
    for node, outcome in (yield from _ask_brokers(session, api_versions_request())).items():
        host, port = session.cluster.nodes[node]
        address = f"{host}:{port}"
        if isinstance(outcome, Unanswered):
            found.append(BrokerAnswer(node, address, unanswered=outcome.reason))
        else:
            missing = _missing_apis(outcome.message)
            found.append(
                BrokerAnswer(node, address, "", missing, _transaction_version(outcome.message))
            )
    return tuple(found)


def topic_access(session: Session, topics: Iterable[str]) -> Operation[dict[str, TopicAccess]]:
    """Return a broker's report on these topics, and on what this user may do with them."""
    request = APIS[ApiKey.METADATA].request
    message = request(
        topics=[request.MetadataRequestTopic(name=name) for name in sorted(set(topics))],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    doing = "asking what this user may do with the topics"
    reply = yield from call_any(message, doing=doing, deadline=session.deadline())
    return {topic.name: _access_of(topic) for topic in reply.message.topics}


def probe_group(session: Session, group_id: str) -> Operation[Probe]:
    """Ask for READ on a group, by the heartbeat of a member that it does not have."""
    message = APIS[ApiKey.HEARTBEAT].request(
        group_id=group_id, generation_id=-1, member_id="txnlog-check"
    )
    return (yield from _probe_brokers(session, message))


def is_group_coordinated(session: Session, group_id: str) -> Operation[bool]:
    """True if a broker coordinates the group; else nothing was ever committed on the cluster.

    A coordinator may be moving to another broker, so the client asks for a while.
    """
    deadline = session.deadline(UNKNOWN_TOPIC_PATIENCE_MS)
    while not (yield from probe_group(session, group_id)).has_coordinator:
        if deadline.left_ms <= ASK_AGAIN_MS:
            return False
        yield Sleep(ASK_AGAIN_MS)
    return True


def probe_transactional_id(session: Session, transactional_id: str) -> Operation[Probe]:
    """Ask for WRITE on a transactional id, by the abort of a producer id that no broker gives."""
    message = APIS[ApiKey.END_TXN].request(
        transactional_id=transactional_id, producer_id=-1, producer_epoch=-1, committed=False
    )
    return (yield from _probe_brokers(session, message))


def _probe_brokers(session: Session, message: Message) -> Operation[Probe]:
    outcomes = (yield from _ask_brokers(session, message)).values()
    return Probe(frozenset(o.message.error_code for o in outcomes if isinstance(o, Reply)))


def _ask_brokers(session: Session, message: Message) -> Operation[dict[int, Reply | Unanswered]]:
    """Ask each known broker once."""
    nodes, deadline = sorted(session.cluster.nodes), session.deadline()
    calls = tuple(Call(node, message, deadline.call_ms) for node in nodes)
    outcomes = yield from call_all(calls)
    return dict(zip(nodes, outcomes, strict=True))


def _missing_apis(answer: Message) -> tuple[str, ...]:
    known = {each.api_key for each in answer.api_keys}
    return tuple(APIS[key].name for key in TRANSACTION_APIS if key not in known)


def _transaction_version(answer: Message) -> int:
    levels = {f.name: f.max_version_level for f in answer.finalized_features or ()}
    return 2 if levels.get(TRANSACTION_VERSION, 1) >= 2 else 1


def _access_of(topic: Message) -> TopicAccess:
    bits = topic.topic_authorized_operations
    operations = None
    if bits is not None and bits != NO_OPERATIONS:
        operations = frozenset(n for bit, n in OPERATION_BITS.items() if bits & 1 << bit)
    return TopicAccess(int(topic.error_code), len(topic.partitions or ()), operations)
