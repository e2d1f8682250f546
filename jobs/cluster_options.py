"""Options of the jobs for a cluster: `--bootstrap-servers`, and `--command-config` if it is
secured."""

from __future__ import annotations

import argparse
from pathlib import Path

from txnlog_kafka.host.client import Client
from txnlog_kafka.host.command_config import read_command_config, read_options


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two arguments."""
    parser.add_argument("--bootstrap-servers", required=True, help="host:port,host:port")
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        type=Path,
        help="properties of a secured cluster, as Kafka's tools take them: "
        "conf/client-secured.properties",
    )


def connector_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of `format("txnlog")`. Raises OptionError and OSError for the file."""
    given = {} if args.command_config is None else read_options(args.command_config)
    secured = {f"kafka.{name}": value for name, value in given.items()}
    return {"kafka.bootstrap.servers": args.bootstrap_servers, **secured}


def cluster_client(args: argparse.Namespace, client_id: str) -> Client:
    """Return a client of the same cluster. Raises OptionError and OSError for the file."""
    if args.command_config is None:
        return Client(args.bootstrap_servers, client_id=client_id)
    security = read_command_config(args.command_config)
    return Client(args.bootstrap_servers, client_id=client_id, security=security)
