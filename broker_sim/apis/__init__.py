"""Requests between broker_sim's processes that clients never send: numbers, classes and codes.

The registry's requests are our own. They are framed as Kafka's requests are, so both hosts carry
them, and numbered from 20000 up, where Kafka has no requests. The requests between brokers are
Kafka's, in one version each. No broker advertises any of them in ApiVersions. A class is made from
the definition of its name beside this file, in the format of Kafka's own definitions, when it is
first used.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.structs import message_class


class RegistryApiKey(enum.IntEnum):
    """Requests of the registry."""

    REGISTRY_OPEN_SESSION = 20000
    REGISTRY_CLOSE_SESSION = 20001
    REGISTRY_HEARTBEAT = 20002
    REGISTRY_MULTI = 20003
    REGISTRY_GET_NODES = 20004
    REGISTRY_APPEND = 20005
    REGISTRY_READ = 20006
    REGISTRY_WAIT = 20007
    REGISTRY_WRITE_SNAPSHOT = 20008
    REGISTRY_READ_SNAPSHOT = 20009


class BrokerApiKey(enum.IntEnum):
    """Kafka's requests between brokers."""

    ALTER_PARTITION = 56
    ENVELOPE = 58
    ALLOCATE_PRODUCER_IDS = 67


AnyApiKey = ApiKey | RegistryApiKey | BrokerApiKey
OWN_API_VERSION = 0
"""Version of each of the registry's requests; there is only one so far."""


@dataclass(frozen=True)
class OwnApi:
    """Kind of request that is defined here."""

    key: RegistryApiKey | BrokerApiKey
    name: str
    version: int = OWN_API_VERSION
    """The only version of the request."""
    has_tagged_header: bool = False
    """True if the header ends with tagged fields, as Kafka's newer headers do."""

    @cached_property
    def request(self) -> Any:
        """Class of the request."""
        return message_class(f"{self.name}Request", __name__)

    @cached_property
    def response(self) -> Any:
        """Class of the answer."""
        return message_class(f"{self.name}Response", __name__)


def _name(key: enum.IntEnum) -> str:
    return key.name.title().replace("_", "")


OWN_APIS: dict[int, OwnApi] = {key: OwnApi(key, _name(key)) for key in RegistryApiKey}
"""Requests of the registry, by their numbers."""
_VERSIONS = {
    BrokerApiKey.ALTER_PARTITION: 3,
    BrokerApiKey.ENVELOPE: 0,
    BrokerApiKey.ALLOCATE_PRODUCER_IDS: 0,
}
BROKER_APIS: dict[int, OwnApi] = {
    key: OwnApi(key, _name(key), version, has_tagged_header=True)
    for key, version in _VERSIONS.items()
}
DEFINED_APIS: dict[int, OwnApi] = OWN_APIS | BROKER_APIS
"""Requests whose definitions are here."""
_BATCHED_VERSION = 4
"""Version from which on brokers verify transactions by AddPartitionsToTxn (KIP-890)."""
_BY_NAME = {f"{own.name}Request": own for own in DEFINED_APIS.values()}


def own_api_of(message: Any) -> OwnApi:
    """Return the API of a request defined here. Raises KeyError for any other message."""
    return _BY_NAME[type(message).__name__]


def only_brokers_ask(api_key: int, api_version: int, message: Any) -> bool:
    """Return True if only brokers send this request.

    WriteTxnMarkers counts, although Kafka's tools send it too when they abort a transaction.
    """
    match api_key:
        case ApiKey.FETCH:
            state = message.replica_state
            return message.replica_id >= 0 or (state is not None and state.replica_id >= 0)
        case ApiKey.LIST_OFFSETS:
            return bool(message.replica_id >= 0)
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return api_version >= _BATCHED_VERSION
        case _:
            return api_key in BROKER_APIS or api_key == ApiKey.WRITE_TXN_MARKERS
