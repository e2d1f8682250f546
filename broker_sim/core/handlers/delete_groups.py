"""DeleteGroups (key 42)."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import group_allowed
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

_Response = APIS[ApiKey.DELETE_GROUPS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Only groups without members go, with all their offsets."""

    names = request.message.groups_names
    allowed = [name for name in names if group_allowed(parts, request, name)]
    refused = dict.fromkeys(
        (name for name in names if name not in set(allowed)), ErrorCode.GROUP_AUTHORIZATION_FAILED
    )

    def answer(errors: dict[str, ErrorCode], effects: Effects) -> None:
        results = [
            _Response.DeletableGroupResult(group_id=group_id, error_code=int(error))
            for group_id, error in (errors | refused).items()
        ]
        respond(request, _Response(results=results), effects)

    parts.groups.delete_groups(allowed, answer, effects)
