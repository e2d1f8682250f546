"""One configuration value of a broker, for the text of an error: had when it can be had.

It stands below `calls`, whose refusals need it, and so asks for its one call itself.
"""

from __future__ import annotations

from txnlog_kafka.operations.effects import Call, Calls, Operation, Reply, Unanswered
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

BROKER = 4
"""DescribeConfigs' resource type of a broker."""
CONFIG_TIMEOUT_MS = 2_000
"""The caller has an error to report: an answer soon is better than a complete one."""

_DESCRIBE = APIS[ApiKey.DESCRIBE_CONFIGS]


def fetch_broker_config(session: Session, name: str) -> Operation[str | None]:
    """A broker's value of `name`; None when it cannot be had. One try, and never an error.

    A user may well not be allowed to see it: that takes DESCRIBE_CONFIGS on the cluster, which no
    query needs. Values that all brokers share, as limits do, may be asked from any of them: it is
    one that coordinates something, which has answered before.
    """
    node = next(iter(session.coordinators.values()), min(session.cluster.nodes, default=None))
    if node is None:
        return None
    resource = _DESCRIBE.request.DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(node), configuration_keys=[name]
    )
    message = _DESCRIBE.request(resources=[resource])
    timeout_ms = min(CONFIG_TIMEOUT_MS, session.config.request_timeout_ms)
    outcomes: tuple[Reply | Unanswered] = yield Calls((Call(node, message, timeout_ms),))
    (outcome,) = outcomes
    if isinstance(outcome, Unanswered):
        return None
    for result in outcome.message.results or ():
        for config in result.configs or ():
            if result.error_code == ErrorCode.NONE and config.name == name:
                return None if config.value is None else str(config.value)
    return None
