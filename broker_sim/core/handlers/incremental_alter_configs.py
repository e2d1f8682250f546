"""IncrementalAlterConfigs (key 44): set or delete single configurations of topics and brokers."""

from __future__ import annotations

from broker_sim.core.controller.configs import ConfigChange
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._configs import alter_each
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each resource on its own."""
    responses = alter_each(
        parts,
        request,
        lambda resource: parts.configs.plan_changes(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(c.name, c.config_operation, c.value) for c in resource.configs],
        ),
        _Response.AlterConfigsResourceResponse,
        effects,
    )
    return _Response(responses=responses)
