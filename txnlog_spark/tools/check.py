"""`check`: report everything that would stop a job's first start, at once. It changes nothing."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from txnlog_kafka.host.broker_process import running_broker
from txnlog_kafka.host.client import Client
from txnlog_spark.client_cache import ConnectionSettings, client_for
from txnlog_spark.errors import TxnLogError
from txnlog_spark.storage.location import read_location
from txnlog_spark.tools.check_cluster import check_cluster
from txnlog_spark.tools.check_item import OK, PLACE, REFUSED, WARNING, Item, Job
from txnlog_spark.tools.check_machine import check_machine
from txnlog_spark.tools.check_query import (
    NEXT,
    Stand,
    check_query,
    needed_grants,
    read_stand,
    with_recorded,
)
from txnlog_spark.tools.command_config import CommandConfig, read_command_config


def look_at_all(options: argparse.Namespace) -> Iterator[Item]:
    """Check one thing after the other. A refusal ends only the checks that depend on it."""
    yield from check_machine(os.environ)
    try:
        config = read_command_config(options.command_config, is_embedded=bool(options.path))
    except (TxnLogError, OSError) as error:
        yield Item("--command-config", REFUSED, f"{error}. The brokers were not asked")
        return
    stand: Stand | None = Stand()
    try:
        if options.checkpoint is not None:
            location = read_location("--checkpoint", options.checkpoint)
            stand = read_stand(location, config.storage, options.sink)
            yield stand.item
    except (TxnLogError, OSError) as error:
        yield Item("checkpoint", REFUSED, str(error))
        stand = None
    yield from _look_at_brokers(options, config, stand)


def _look_at_brokers(
    options: argparse.Namespace, config: CommandConfig, stand: Stand | None
) -> Iterator[Item]:
    servers = options.bootstrap_server or running_broker(options.path)
    if servers is None:
        is_there = (Path(options.path) / "data").is_dir()
        text = "has data, and no broker runs: one" if is_there else "has no data: an empty broker"
        text = f"{options.path} {text} starts with the job. Topics and group are not known"
        yield Item("brokers", WARNING, text)
        return
    job = Job(
        inputs=tuple(options.input),
        outputs=tuple(options.output),
        group=options.group,
        transactional_id=options.transactional_id,
        sink=options.sink,
        bootstrap_servers=options.bootstrap_server or PLACE,
        security=config.security,
    )
    try:
        connection = ConnectionSettings.of({"kafka.bootstrap.servers": servers}, config.security)
        connection = connection.with_timeouts(options.timeout_ms, options.timeout_ms)
        with client_for(replace(connection, client_id="txnlog-check")) as client:
            yield from _ask_brokers(client, job, stand)
    except (TxnLogError, OSError) as error:
        command = job.tool("kafka-broker-api-versions.sh", "").rstrip()
        yield Item("brokers", REFUSED, str(error), command)
        yield Item(NEXT, WARNING, "not known without the brokers")


def _ask_brokers(client: Client, job: Job, stand: Stand | None) -> Iterator[Item]:
    """Check topics and grants. If nothing is refused, check the group and the query too."""
    is_refused = stand is None
    job = with_recorded(job, stand or Stand())
    for item in check_cluster(client, job, needed_grants(job, stand or Stand())):
        is_refused = is_refused or item.state == REFUSED
        yield item
    if stand is None or is_refused:
        yield Item(NEXT, WARNING, "not known before what is refused above is done")
        return
    try:
        yield from check_query(client, job, stand)
    except TxnLogError as error:
        yield Item(NEXT, REFUSED, str(error))


def shown(items: Sequence[Item]) -> dict[str, Any]:
    """Return the items as JSON values."""
    refused = sum(item.state == REFUSED for item in items)
    return {"refused": refused, "items": [asdict(item) for item in items]}


def text_of(items: Sequence[Item]) -> str:
    """Return a line for each item, a line for its command, and the result."""
    lines = []
    for item in items:
        lines.append(f"{item.state:<8} {item.name}: {item.text}")
        if item.command and item.state != OK:
            lines.append(f"         $ {item.command}")
    refused = shown(items)["refused"]
    end = f"{refused} refused: see above" if refused else "nothing is refused: the job can start"
    return "\n".join([*lines, end])
