"""DescribeUserScramCredentials (key 50): the users that can log in by SCRAM, and never their
passwords."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS].response
_Result = _Response.DescribeUserScramCredentialsResult


def handle(parts: BrokerParts, request: Request) -> Message:
    """These users, or all for none; one that is named twice is refused."""
    if not cluster_allowed(parts, request):
        return _Response(
            error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            error_message="the users are not open to this principal",
            results=[],
        )
    counts = Counter(user.name for user in request.message.users or ())
    results = []
    for name, iterations in parts.scram.describe(list(counts)).items():
        if counts[name] > 1:
            text = "the request names the user more than once"
            results.append(_refused(name, ErrorCode.DUPLICATE_RESOURCE, text))
        elif not iterations:
            text = "the user has no SCRAM credential"
            results.append(_refused(name, ErrorCode.RESOURCE_NOT_FOUND, text))
        else:
            infos = [
                _Result.CredentialInfo(mechanism=int(mechanism), iterations=count)
                for mechanism, count in iterations.items()
            ]
            results.append(_Result(user=name, error_message=None, credential_infos=infos))
    return _Response(error_message=None, results=results)


def _refused(name: str, error: ErrorCode, text: str) -> Any:
    return _Result(user=name, error_code=int(error), error_message=text, credential_infos=[])
