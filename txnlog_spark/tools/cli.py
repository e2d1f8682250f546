"""Command line: `check`, `progress show | set`, `dead-letters show | replay`, `explain`, `prove`.

Exit codes: 0 done or shown, 1 refused, 2 wrong options.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from txnlog_kafka.host.client import Client
from txnlog_kafka.host.command_config import explain_name
from txnlog_kafka.host.sign_of_life import SignOfLife
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import ConnectionSettings, client_for
from txnlog_spark.commit.checkpoint import offsets_path, read_batch_offsets
from txnlog_spark.commit.checkpoint_files import read_file
from txnlog_spark.commit.journal import check_cluster, write_begun
from txnlog_spark.commit.plan import Batch, Begun, CommitOptions, CommitPlan, Committer
from txnlog_spark.commit.set_progress import check_forward, set_progress
from txnlog_spark.errors import ProgressError, TxnLogError
from txnlog_spark.options.kafka_configs import PREFIX
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.storage.location import read_location
from txnlog_spark.tools.check import look_at_all, text_of
from txnlog_spark.tools.check import shown as shown_items
from txnlog_spark.tools.check_item import REFUSED
from txnlog_spark.tools.command_config import CommandConfig, read_command_config
from txnlog_spark.tools.explain import UnknownError, explain
from txnlog_spark.tools.query_state import (
    BrokerState,
    CheckpointState,
    Target,
    after_setting,
    ask_brokers,
    described,
    named_target,
    read_checkpoint,
    target_of,
)

EXIT_OK = 0
EXIT_REFUSED = 1
TIMEOUT_MS = 30_000
MESSAGES_MAX = 20
COMMAND_TRANSACTION_TIMEOUT_MS = 60_000
"""Milliseconds until the brokers abort a transaction that a command left open."""
COMMANDS = "txnlog_spark.commands"
"""Group of entry points whose functions take words and return an exit code."""
NAMES = ("group", "query_id", "transactional_id", "sink", "topic", "to", "input", "output")
"""Options whose values are names on a cluster and must be UTF-8; paths need not be UTF-8."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. For wrong options argparse exits with code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["prove"]:
        return _prove(words[1:])
    options = build_parser().parse_args(words)
    if options.command == "explain":
        return _explain_error(" ".join(options.name))
    try:
        for name in NAMES:
            value = getattr(options, name, "")
            for each in value if isinstance(value, list) else [value]:
                str(each).encode()
        if options.command == "check":
            items = list(look_at_all(options))
            _print_text(
                json.dumps(shown_items(items), indent=2) if options.json else text_of(items)
            )
            return EXIT_REFUSED if any(item.state == REFUSED for item in items) else EXIT_OK
        config = read_command_config(options.command_config, is_embedded=bool(options.path))
        named = {"kafka.bootstrap.servers": options.bootstrap_server, "path": options.path}
        connection = replace(
            ConnectionSettings.of(named, config.security), client_id=f"txnlog-{options.command}"
        ).with_timeouts(options.timeout_ms, options.timeout_ms)
        is_wanted = options.act is not _replay_dead_letters  # Spark shows its own progress
        sign = SignOfLife(f"{options.command} {options.action}", is_wanted=is_wanted)
        with sign, client_for(connection) as client:
            shown = options.act(client, options, config)
    except UnicodeEncodeError as error:
        sys.stderr.write(f"txnlog_spark: {explain_name(error)}\n")
        return EXIT_REFUSED
    except (TxnLogError, OSError, ImportError) as error:  # ImportError: dead-letters needs Spark
        sys.stderr.write(f"txnlog_spark: {error}\n")
        return EXIT_REFUSED
    _print_text(json.dumps(shown, indent=2) if options.json else _text(shown).rstrip("\n"))
    return EXIT_OK


def _prove(words: Sequence[str]) -> int:
    """Run the command that another package of this distribution has."""
    found = entry_points(group=COMMANDS, name="prove")
    if not found:
        sys.stderr.write("txnlog_spark: the installed package has no prove: install it again\n")
        return EXIT_REFUSED
    return int(next(iter(found)).load()(words))


def _explain_error(text: str) -> int:
    try:
        sys.stdout.write(explain(text))
    except UnknownError as error:
        sys.stderr.write(f"txnlog_spark: {error}\n")
        return EXIT_REFUSED
    return EXIT_OK


def _print_text(text: str) -> None:
    """Write the text and a line break; escape characters that the encoding of a C locale lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m txnlog_spark")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prove", help="break a job in many ways and compare its output: prove -h")
    progress = commands.add_parser("progress", help="how far a query has committed")
    actions = progress.add_subparsers(dest="action", required=True)
    text = "show what the brokers and the checkpoint say of a query"
    showing = actions.add_parser("show", help=text, description=text)
    showing.set_defaults(act=show)
    _add_where(showing)
    _add_sink(showing)
    which = showing.add_mutually_exclusive_group(required=True)
    which.add_argument("--checkpoint", metavar="LOCATION", help="its checkpointLocation")
    which.add_argument("--group", help="its kafka.group.id, with --query-id")
    showing.add_argument("--query-id", help="with --group: the id that Spark gave it")
    showing.add_argument("--transactional-id", help="with --group, if the option was set")
    text = "record on the brokers which batches are in the output; stop the query first"
    setting = actions.add_parser("set", help=text, description=text)
    setting.set_defaults(act=set_)
    _add_where(setting)
    _add_sink(setting)
    setting.add_argument(
        "--checkpoint", metavar="LOCATION", required=True, help="its checkpointLocation"
    )
    to = setting.add_mutually_exclusive_group(required=True)
    to.add_argument(
        "--next-batch-id",
        type=_whole_number,
        metavar="N",
        help="all batches below N are in the output",
    )
    to.add_argument(
        "--to-checkpoint",
        action="store_true",
        help="all batches that Spark noted in the checkpoint's commits are in the output",
    )
    _add_execute(setting)
    _add_dead_letters(commands)
    text = "cause and remedy of an error: its name, or the text with it; without one, all names"
    explaining = commands.add_parser("explain", help=text, description=text)
    explaining.add_argument("name", nargs="*", metavar="TXNLOG_X")
    _add_check(commands)
    return parser


def _add_check(commands: Any) -> None:
    text = "look at all that a job's first start needs, and change nothing"
    checking = commands.add_parser("check", help=text, description=text)
    _add_where(checking)
    _add_sink(checking)
    topic = {"action": "append", "default": [], "metavar": "TOPIC"}
    checking.add_argument("--input", help="a topic that it reads; may be repeated", **topic)
    checking.add_argument("--output", help="a topic that it writes; may be repeated", **topic)
    checking.add_argument("--group", help="its kafka.group.id")
    checking.add_argument("--transactional-id", help="its kafka.transactional.id, if it is set")
    checking.add_argument("--checkpoint", metavar="LOCATION", help="its checkpointLocation")


def _add_dead_letters(commands: Any) -> None:
    dead = commands.add_parser("dead-letters", help="the records that could not be read")
    actions = dead.add_subparsers(dest="action", required=True)
    text = "show the records in a topic of dead letters"
    showing = actions.add_parser("show", help=text, description=text)
    showing.set_defaults(act=_show_dead_letters)
    text = "write them back to the topics they came from, each once"
    replaying = actions.add_parser("replay", help=text, description=text)
    replaying.set_defaults(act=_replay_dead_letters)
    for each in (showing, replaying):
        _add_where(each)
        each.add_argument("--topic", required=True, help="the topic of the dead letters")
    showing.add_argument(
        "--max-messages",
        type=_whole_number,
        default=MESSAGES_MAX,
        metavar="N",
        help="how many are shown",
    )
    replaying.add_argument("--to", metavar="TOPIC", help="instead of the topics they came from")
    _add_execute(replaying)


def _add_execute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--execute", action="store_true", help="do it (default: only show it)")


def _add_sink(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sink", default="", help="the name given to foreach_batch, if any")


def _add_where(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bootstrap-server", metavar="HOST:PORT")
    where.add_argument("--path", metavar="DIR", help="the embedded broker's directory")
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="properties file with security.protocol, ssl.* and sasl.*, as of Kafka's own tools, "
        "and with txnlog.fs.*",
    )
    parser.add_argument("--timeout-ms", type=int, default=TIMEOUT_MS)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _whole_number(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return value


def _options_of(options: argparse.Namespace, config: CommandConfig) -> dict[str, str]:
    """Return the brokers and the security as options of a read or a write."""
    where = {"kafka.bootstrap.servers": options.bootstrap_server, "path": options.path}
    security = {PREFIX + name: value for name, value in config.security.options}
    if options.path is None:  # an embedded broker has no security
        security[PREFIX + "security.protocol"] = config.security.protocol
    return {name: value for name, value in where.items() if value is not None} | security


def _show_dead_letters(
    client: Client,  # noqa: ARG001  as the others
    options: argparse.Namespace,
    config: CommandConfig,
) -> dict[str, Any]:
    from txnlog_spark.tools import dead_letters  # with pyarrow

    where = _options_of(options, config)
    return dead_letters.show(where, options.topic, options.max_messages)


def _replay_dead_letters(
    client: Client, options: argparse.Namespace, config: CommandConfig
) -> dict[str, Any]:
    from txnlog_spark.tools import dead_letters  # with Spark

    where = _options_of(options, config)
    topic, to = options.topic, options.to
    with dead_letters.session_for_tools() as session:
        return dead_letters.replay(session, client, where, topic, to, execute=options.execute)


def show(client: Client, options: argparse.Namespace, config: CommandConfig) -> dict[str, Any]:
    """Return everything that is known about the query."""
    if options.checkpoint is None:
        if options.query_id is None:
            raise ProgressError("--group needs --query-id, the id in the checkpoint's metadata")
        target = named_target(options.group, options.query_id, options.transactional_id)
        return described(target, ask_brokers(client, target), None)
    checkpoint = _checkpoint(options, config)
    target = target_of(checkpoint)
    return described(target, ask_brokers(client, target), checkpoint)


def set_(client: Client, options: argparse.Namespace, config: CommandConfig) -> dict[str, Any]:
    """Return the current and the new progress; set it with --execute. Raises ProgressError."""
    # Refuse another cluster and an open transaction before anything is judged.
    checkpoint = _checkpoint(options, config)
    target = target_of(checkpoint)
    client.describe_decided_transaction(target.transactional_id)
    brokers = ask_brokers(client, target)
    begun = present(checkpoint.begun, "a target was read from the checkpoint's record")
    check_cluster(begun.output, brokers.cluster_id)
    _refuse_open(target, brokers)
    # A batch that Spark has not planned cannot be in the output.
    next_batch_id = options.next_batch_id
    if options.to_checkpoint:
        next_batch_id = _noted(checkpoint)
    elif next_batch_id > checkpoint.last_planned + 1:
        raise ProgressError(
            f"--next-batch-id {next_batch_id}: the last batch that Spark planned by the "
            f"checkpoint's folder offsets is {checkpoint.last_planned}; later ones cannot be in "
            "the output"
        )
    plan = _plan(checkpoint, target, begun, next_batch_id)
    place = _place(client, target, plan.batch.source_offsets)
    check_forward(plan, brokers.progress)
    ends = {str(p): at for p, at in sorted(plan.batch.source_offsets.items())}
    found = {
        "query_id": target.query_id,
        "next_batch_id": None if brokers.progress is None else brokers.progress.next_batch_id,
        "new_next_batch_id": next_batch_id,
        "progress_group_id": target.progress_group_id,
        "progress_partition": str(place),
        "group_id": plan.group_id,
        "new_group_offsets": ends if plan.group_id else {},
        "note": _begun_batch_warning(begun.batch_id, next_batch_id),
        "executed": options.execute,
    }
    # The brokers come first, because they may refuse; the sink's record follows them.
    if options.execute:
        missing = client.run(set_progress(client.session, plan, place))
        record = write_begun(checkpoint.folder, after_setting(begun, next_batch_id, place))
        CommitHost(checkpoint.files).run(record)
        found["deleted_partitions"] = sorted(map(str, missing))
    return found


def _checkpoint(options: argparse.Namespace, config: CommandConfig) -> CheckpointState:
    """Read the checkpoint that the options name. Raises ProgressError, OptionError."""
    location = read_location("--checkpoint", options.checkpoint)
    return read_checkpoint(location, config.storage, options.sink)


def _noted(checkpoint: CheckpointState) -> int:
    if checkpoint.last_noted < 0:
        raise ProgressError(
            "--to-checkpoint: the checkpoint notes no batch in its folder commits; say how far the "
            "output is with --next-batch-id N"
        )
    return checkpoint.last_noted + 1


def _refuse_open(target: Target, brokers: BrokerState) -> None:
    found = brokers.open_transaction
    if found is not None:
        raise ProgressError(
            f"transactional id {target.transactional_id!r} of the query is {found.state}: a driver "
            "is at work, or died in its transaction. Nothing was changed. Stop the query; a "
            f"transaction that a dead driver left open ends {found.timeout_ms} ms after its start"
        )


def _plan(
    checkpoint: CheckpointState, target: Target, begun: Begun, next_batch_id: int
) -> CommitPlan:
    """Return the last batch in the output, as the sink would have committed it."""
    last = next_batch_id - 1
    sources, disk = None, CommitHost(checkpoint.files)
    if disk.run(read_file(offsets_path(checkpoint.path, last))) is not None:
        sources = disk.run(read_batch_offsets(checkpoint.path, last))
    ends = {} if sources is None else sources.source_offsets
    committer = Committer(
        output=begun.output,
        run_id="",
        transactional_id=target.transactional_id,
        progress_group_id=target.progress_group_id,
        options=CommitOptions(
            group_id=None if sources is None else target.group_id,
            transaction_timeout_ms=COMMAND_TRANSACTION_TIMEOUT_MS,
        ),
    )
    batch = Batch(
        batch_id=last,
        source_offsets=ends,
        source_digest="" if sources is None else sources.digest,
        batch_hash="" if sources is None else sources.batch_hash,
    )
    return CommitPlan(committer, batch, begun)


def _place(client: Client, target: Target, sources: Iterable[TopicPartition]) -> TopicPartition:
    """Return the partition for the progress: its former partition, else a partition of a source.

    A topic may have been deleted, so the brokers are asked first. Raises ProgressError if no topic
    is left.
    """
    wanted = [] if target.progress_partition is None else [target.progress_partition]
    wanted += sorted(sources)
    missing = client.confirm_missing(wanted) if wanted else frozenset()
    for partition in wanted:
        if partition not in missing:
            return partition
    raise ProgressError(
        f"neither the topic that the progress of query {target.query_id} was committed for nor one "
        "of its sources exists on this cluster any more"
    )


def _begun_batch_warning(begun: int, next_batch_id: int) -> str:
    """Return a warning for the person who sets the progress, or ""."""
    if begun >= next_batch_id:
        return (
            f"batch {begun} was begun: if it is in the output, set --next-batch-id {begun + 1}, or "
            "it is written a second time"
        )
    return ""


def _text(shown: Mapping[str, Any], indent: str = "") -> str:
    """Return one line for each value, nested values below their name; a dash means no value."""
    lines = []
    for name, value in shown.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{name}:\n{_text(value, indent + '  ')}")
        elif isinstance(value, list):
            lines.append(f"{indent}{name}: {', '.join(value) or '-'}\n")
        else:
            said = str(value).lower() if isinstance(value, bool) else value
            lines.append(f"{indent}{name}: {'-' if said in (None, '', {}) else said}\n")
    return "".join(lines)
