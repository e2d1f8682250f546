"""AlterConfigs (key 33): replace all own configurations of topics and brokers."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._configs import alter_each
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.ALTER_CONFIGS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each resource on its own."""
    responses = alter_each(
        parts,
        request,
        lambda resource: parts.configs.plan_replacement(
            resource.resource_type,
            resource.resource_name,
            [(config.name, config.value) for config in resource.configs],
        ),
        _Response.AlterConfigsResourceResponse,
        effects,
    )
    return _Response(responses=responses)
