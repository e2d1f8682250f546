"""Entry point: from the command line to a command's output and exit code.

Exit codes: 0 done, 1 the broker refused or did not answer, or a file is damaged, 2 wrong options.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from broker_sim.cli import consume, dump, groups, produce, timeline, topics, transactions
from broker_sim.cli.arguments import UsageError
from broker_sim.cli.cluster import Cluster, Refused
from broker_sim.cli.printing import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_USAGE,
    Output,
    write_error,
)
from txnlog_kafka.errors import OptionError, TxnLogError
from txnlog_kafka.host.addresses import BOOTSTRAP_OPTION
from txnlog_kafka.host.broker_process import ensure_broker
from txnlog_kafka.host.command_config import explain_name, read_command_config
from txnlog_kafka.host.security import PLAINTEXT, Security
from txnlog_kafka.host.sign_of_life import SignOfLife

MAKERS = (produce.produce, topics.create_topic)
"""Commands that make the embedded broker of a --path without data; the others need a broker
there."""

STREAMING = (produce.produce, consume.consume)
"""Commands that print or read while they work."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m broker_sim")
    commands = parser.add_subparsers(dest="command", required=True)
    for module in (topics, groups, transactions, produce, consume, dump, timeline):
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code. Wrong options leave through argparse with code 2."""
    options = build_parser().parse_args(arguments)
    try:
        code = _run_command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has enough, as `head` does. What is left of it goes nowhere, or
        # the interpreter would complain when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _servers(options: argparse.Namespace) -> str:
    """Return the servers of --bootstrap-server, or the address of the embedded broker of --path.

    The embedded broker is found, started and ended as the connector does it: a command and a job
    never run two brokers on one directory. Raises Refused, and TxnLogError if the broker does not
    start.
    """
    if options.path is None:
        return str(options.bootstrap_server)
    try:
        return ensure_broker(options.path, is_made=options.run in MAKERS)
    except OptionError as error:
        raise Refused(f"--path {options.path}: {error.allowed}") from error


def _security(options: argparse.Namespace) -> Security:
    """Read the security of --command-config. Raises UsageError, OptionError."""
    path = options.command_config
    if path is None:
        return PLAINTEXT
    if options.path is not None:
        raise UsageError("--command-config needs --bootstrap-server: --path has no security")
    try:
        return read_command_config(path)
    except OSError as error:
        raise UsageError(f"--command-config {path}: {error.strerror or error}") from error


def _run_command(options: argparse.Namespace) -> int:
    try:
        if options.command == "dump":
            return dump.run(options)
        if options.command == "timeline":
            return timeline.run(options)
        security = _security(options)
        words = (options.command, getattr(options, "action", ""))
        sign = SignOfLife(" ".join(filter(None, words)), is_wanted=options.run not in STREAMING)
        with sign, Cluster(_servers(options), options.timeout_ms, security, sign) as cluster:
            done: Output | int = options.run(cluster, options)
        return done.write(as_json=options.json) if isinstance(done, Output) else done
    except UsageError as error:
        write_error(str(error))
        return EXIT_USAGE
    except OptionError as error:
        if error.name == BOOTSTRAP_OPTION:
            write_error(f"--bootstrap-server {options.bootstrap_server}: {error.allowed}")
        else:
            write_error(str(error))
        return EXIT_USAGE
    except UnicodeEncodeError as error:
        write_error(explain_name(error))
        return EXIT_REFUSED
    except (Refused, TxnLogError) as error:
        write_error(str(error))
        return EXIT_REFUSED
