"""Both brokers with an authorizer: the client under test may do what a test allows it.

The connector speaks PLAINTEXT, and over PLAINTEXT every client is User:ANONYMOUS: the tests set the
ACLs of that user. The broker itself, its controller and the tests' admin client use a listener with
SASL/PLAIN, as a super user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.probe import free_ports, wait_until
from support.brokers.sim_broker import SimBroker

USER = "User:ANONYMOUS"
ADMIN, PASSWORD = "admin", "admin-secret"
TIMEOUT_S = 600.0
_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="{ADMIN}" password="{PASSWORD}" user_{ADMIN}="{PASSWORD}";'
)


@dataclass(frozen=True, order=True)
class Acl:
    """An operation that is allowed on a resource, in Kafka's words; `name*` is a prefix."""

    operation: str
    resource_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource_type} {self.name}"

    def binding(self) -> AclBinding:
        prefixed = self.name.endswith("*") and self.name != "*"
        return AclBinding(
            ResourceType[self.resource_type],
            self.name[:-1] if prefixed else self.name,
            ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
            USER,
            "*",
            AclOperation[self.operation],
            AclPermissionType.ALLOW,
        )


EVERYTHING = (
    Acl("ALL", "TOPIC", "*"),
    Acl("ALL", "GROUP", "*"),
    Acl("ALL", "TRANSACTIONAL_ID", "*"),
)
_OF_USER = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    USER,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


class Guard:
    """The listener of the tests' admin client, and the user's ACLs."""

    def __init__(self) -> None:
        (self._port,) = free_ports(1)
        self._admin: AdminClient | None = None

    def settings(self, more: dict[str, str]) -> dict[str, str]:
        """Return the settings of the authorizer, with the listeners and protocols of `more`."""
        protocols, settings = "PLAINTEXT:PLAINTEXT,ADMIN:SASL_PLAINTEXT", {}
        if "CONTROLLER" in more["listeners"]:
            protocols += ",CONTROLLER:SASL_PLAINTEXT"
            settings["sasl.mechanism.controller.protocol"] = "PLAIN"
            settings["listener.name.controller.plain.sasl.jaas.config"] = _LOGIN
        admin = f"ADMIN://127.0.0.1:{self._port}"
        return settings | {
            "listener.security.protocol.map": protocols,
            "listeners": f"{more['listeners']},{admin}",
            "advertised.listeners": f"{more['advertised.listeners']},{admin}",
            "inter.broker.listener.name": "ADMIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.admin.plain.sasl.jaas.config": _LOGIN,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
        }

    def opened(self, _bootstrap_servers: str) -> None:
        """The broker runs: the user may do everything."""
        if self._admin is None:
            self._admin = AdminClient(
                {
                    "bootstrap.servers": f"127.0.0.1:{self._port}",
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": ADMIN,
                    "sasl.password": PASSWORD,
                    "log_level": 0,
                }
            )
            self._allow(EVERYTHING)

    @contextlib.contextmanager
    def only(self, acls: Iterable[Acl]) -> Iterator[None]:
        """The user may do what these allow, and nothing else; everything again afterwards."""
        self._allow(acls)
        try:
            yield
        finally:
            self._allow(EVERYTHING)

    def _allow(self, acls: Iterable[Acl]) -> None:
        """Replace the user's ACLs, and wait until the broker's authorizer has taken them in."""
        wanted, present = {acl.binding() for acl in acls}, self._present()
        missing, unwanted = wanted - present, present - wanted
        made = self._admin.create_acls(list(missing)) if missing else {}
        filters = [_filter_of(binding) for binding in unwanted]
        gone = self._admin.delete_acls(filters) if filters else {}
        for future in (*made.values(), *gone.values()):
            future.result(TIMEOUT_S)
        wait_until(lambda: self._present() == wanted, "the authorizer to know the new ACLs")

    def _present(self) -> set[AclBinding]:
        return set(self._admin.describe_acls(_OF_USER).result(TIMEOUT_S))


def _secured(kind: type[ApacheKafka | SimBroker], folder: Path) -> ApacheKafka | SimBroker:
    return kind(folder, {"num.partitions": "2"}, security=Guard())


SECURED_BROKERS = {
    "broker_sim": partial(_secured, SimBroker),
    "apache_kafka": partial(_secured, ApacheKafka),
}
"""ACLs outside of `security.only`: the user may do everything."""


def _filter_of(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
