"""ApiVersions (key 18): which requests, in which versions, and the finalized features."""

from __future__ import annotations

import functools
import re
from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, KNOWN_APIS, ApiKey, Message

_Response = APIS[ApiKey.API_VERSIONS].response

PRODUCE_ADVERTISED_MIN = 0
"""librdkafka turns idempotence and compression off unless Produce starts at 0, although Kafka 4
refuses the versions below 3 itself (KAFKA-18659)."""
FEATURES = {"group.version": 1, "transaction.version": 2}
"""The highest level of each feature that clients decide by (KIP-848, KIP-890)."""
LEVEL_0_VERSION = 4
"""Before it clients cannot read a feature whose lowest level is 0 (KAFKA-17492): Java clients from
3.3 to 3.8 would refuse the whole answer."""
CLIENT_NAME_VERSION = 3
CLUSTER_CHECK_VERSION = 5
NO_NODE = -1
_CLIENT_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Pattern of the name and the version of a client's software (KIP-511)."""


@functools.cache
def _api_keys(apis: frozenset[ApiKey]) -> list[Any]:
    """Made once: each connection begins with this answer."""
    return [
        _Response.ApiVersion(
            api_key=int(api.key),
            min_version=PRODUCE_ADVERTISED_MIN if key is ApiKey.PRODUCE else api.version_min,
            max_version=api.version_max,
        )
        for key, api in sorted((key, KNOWN_APIS[key]) for key in apis)
    ]


def unsupported_version_response() -> Message:
    """The answer to an ApiVersions request newer than is supported; encoded as version 0 (KIP-511).

    It names the versions of ApiVersions only, for the client's next try.
    """
    keys = _api_keys(frozenset([ApiKey.API_VERSIONS]))
    return _Response(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=keys)


def handle(parts: BrokerParts, request: Request) -> Message:
    """The table, and the levels of the features."""
    if not _is_valid(request):
        return _Response(error_code=int(ErrorCode.INVALID_REQUEST), api_keys=[])
    if parts.logins.has_ended(request) and _is_misrouted(parts, request):
        return _Response(error_code=int(ErrorCode.REBOOTSTRAP_REQUIRED), api_keys=[])
    parts.logins.on_versions(request)
    levels = {name: parts.config.integer(name) for name in FEATURES}
    finalized = [
        _Response.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in levels.items()
        if level > 0
    ]
    features = {}
    if finalized:
        features = {"finalized_features_epoch": 0, "finalized_features": finalized}
    supported = [
        _Response.SupportedFeatureKey(name=name, min_version=0, max_version=level_max)
        for name, level_max in FEATURES.items()
    ]
    return _Response(
        api_keys=_api_keys(parts.membership.apis),
        supported_features=supported if request.api_version >= LEVEL_0_VERSION else [],
        **features,
    )


def _is_misrouted(parts: BrokerParts, request: Request) -> bool:
    """True if the client means another broker (KIP-1242)."""
    message = request.message
    if request.api_version < CLUSTER_CHECK_VERSION or message.cluster_id is None:
        return False
    meant, own = (message.cluster_id, message.node_id), (parts.image.cluster_id, parts.node_id)
    return bool(meant != own)


def _is_valid(request: Request) -> bool:
    if request.api_version < CLIENT_NAME_VERSION:
        return True
    message = request.message
    knows_half = (message.cluster_id is None) != (message.node_id == NO_NODE)
    if request.api_version >= CLUSTER_CHECK_VERSION and knows_half:
        return False
    names = (message.client_software_name, message.client_software_version)
    return all(_CLIENT_NAME.fullmatch(name) for name in names)
