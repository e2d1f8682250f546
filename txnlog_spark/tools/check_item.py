"""Lines of `check`, and the grants that a job needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from txnlog_kafka.host.security import PLAINTEXT, Security

OK, WARNING, REFUSED = "ok", "warning", "refused"
TOPIC, GROUP, TRANSACTIONAL_ID = "topic", "group", "transactional-id"
"""Resources, named like the options of Kafka's kafka-acls.sh."""
MADE_UP_QUERY_ID = "00000000-0000-0000-0000-000000000000"
"""Placeholder for the id that Spark will give to a new query."""
USERS_BY_NAME = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PLACE = "HOST:PORT"


@dataclass(frozen=True, slots=True)
class Item:
    """Result of one check: its state, a text, and a command to paste."""

    name: str
    state: str
    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Names from the command line, and the brokers' address and user for commands."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    group: str | None = None
    transactional_id: str | None = None
    sink: str = ""
    bootstrap_servers: str = PLACE
    security: Security = PLAINTEXT

    @property
    def principal(self) -> str:
        """Kafka's name of this user; "User:NAME" if the options do not contain the name."""
        if not self.security.has_login and not self.security.has_tls:
            return "User:ANONYMOUS"
        named = self.security.has_login and self.security.mechanism in USERS_BY_NAME
        return f"User:{self.security.login_module.options['username'] if named else 'NAME'}"

    def tool(self, script: str, words: str) -> str:
        """Return a command line of Kafka's own tools, as an administrator runs it."""
        secured = self.security.protocol != "PLAINTEXT"
        config = " --command-config admin.properties" if secured else ""
        return f"{script} --bootstrap-server {self.bootstrap_servers}{config} {words}"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """Operation that the job needs, on one resource or on all resources whose names begin with
    `prefix`.

    `name` is the name that the job uses, or an example of the names that the rule has to allow.
    """

    resource: str
    name: str
    operation: str
    prefix: str = ""

    def __str__(self) -> str:
        """Return the grant in words."""
        named = f"s {self.prefix + '*'!r}" if self.prefix else f" {self.name!r}"
        return f"{self.operation} on {self.resource.replace('-', ' ')}{named}"

    def command(self, job: Job) -> str:
        """Return the call of kafka-acls.sh that adds this grant."""
        words = f"--add --allow-principal {shlex.quote(job.principal)}"
        words += f" --operation {self.operation.title()}"
        words += f" --{self.resource} {shlex.quote(self.prefix or self.name)}"
        return job.tool(
            "kafka-acls.sh", words + " --resource-pattern-type prefixed" * bool(self.prefix)
        )


def grants_of(
    job: Job, query_id: str, own_id: str, progress: str, former_ids: Sequence[str] = ()
) -> list[Grant]:
    """List the grants that the job needs, by the table in docs/security.md.

    A new query has a placeholder id. It commits under the transactional id `own_id`, and stores its
    progress in the group `progress`; both names may contain the query's id.
    """
    group = [job.group] if job.group else []
    if not job.outputs:
        grants = [Grant(TOPIC, each, "READ") for each in job.inputs]
        return grants + [Grant(GROUP, each, "DESCRIBE") for each in group]
    before_id = own_id.partition(query_id)[0] if query_id in own_id else ""
    return [
        Grant(TRANSACTIONAL_ID, own_id, "WRITE", before_id),
        *(Grant(TRANSACTIONAL_ID, each, "WRITE") for each in former_ids),
        *(Grant(TOPIC, each, "WRITE") for each in job.outputs),
        *(Grant(TOPIC, each, "READ") for each in job.inputs or job.outputs),
        *(Grant(GROUP, each, "READ") for each in group),
        Grant(GROUP, progress, "READ", progress.partition(query_id)[0]),
    ]
