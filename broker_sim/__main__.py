"""The command line: `python -m broker_sim start | simulate | topics | groups | ...`."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from broker_sim.core.config import ConfigError, ConfigValue, parse_properties
from broker_sim.core.endpoint import Endpoint

PORT_MAX = 65_535
EXIT_CANNOT_START = 2
EXIT_CRASHED = 70
EXIT_STORAGE_FAILED = 74

CLI_COMMANDS = {
    "topics": "list, describe, create, alter, delete topics of any Kafka broker",
    "groups": "list, describe, delete consumer groups, reset and delete their offsets",
    "transactions": "list, describe, find hanging and abort transactions",
    "produce": "write records, one a line of standard input",
    "consume": "print a topic's records",
    "dump": "print the files of a data directory readably",
    "timeline": "draw a transaction's life as SVG, from the files of a data directory",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 after a clean stop, 2 when it cannot start, 70 after a crash, 74 when the disk
    failed: what was acknowledged is safe, and only a restart may find out what is there."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] and arguments[0] in CLI_COMMANDS:
        from broker_sim.cli.main import main as run_command

        return run_command(arguments)
    if arguments[:1] == ["simulate"]:
        from broker_sim.sim.cli import main as simulate

        return int(simulate(arguments[1:]))
    return _start(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m broker_sim", description="A transactional log store with Kafka's protocol."
    )
    parser.add_argument("--version", action="version", version=f"broker_sim {_version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser(
        "start",
        help="run a broker in the foreground until SIGTERM",
        description="Prints a line, READY bootstrap.servers=HOST:PORT, when it can be used.",
    )
    start.add_argument("--data-dir", type=Path, required=True, help="where all data is kept")
    start.add_argument(
        "--brokers", type=int, default=1, help="number of brokers; only 1 is supported yet"
    )
    start.add_argument(
        "--port", type=int, help="port on 127.0.0.1; 0 chooses a free one (default: 9092)"
    )
    start.add_argument("--config", type=Path, help="a properties file with Kafka's names")
    start.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a configuration by Kafka's name, such as num.partitions=4; may be repeated",
    )
    start.add_argument(
        "--exit-with-pid",
        type=int,
        metavar="PID",
        help="stop cleanly when this process is gone and no client is connected any more",
    )
    start.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="serve Kafka's metrics for Prometheus at http://ADDRESS:N/metrics; 0 chooses a port, "
        "which the line METRICS names (default: off)",
    )
    start.add_argument("--metrics-address", default="127.0.0.1", metavar="ADDRESS")
    start.add_argument(
        "--log-level", default="WARNING", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    commands.add_parser("simulate", help="run seeds of the deterministic simulator", add_help=False)
    for name, text in CLI_COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _version() -> str:
    """Of the distribution that the broker comes in."""
    try:
        return metadata.version("txnlog_spark")
    except metadata.PackageNotFoundError:
        return "of a source tree that is not installed"


def _start(arguments: argparse.Namespace) -> int:
    # The host imports asyncio and sockets: not needed to simulate.
    from broker_sim.server.process import CannotStart, run
    from broker_sim.server.system import StorageError

    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if arguments.brokers != 1:
            raise ConfigError(f"--brokers {arguments.brokers} is not supported yet, only 1 is")
        run(
            arguments.data_dir,
            _overrides(arguments),
            exit_with_pid=arguments.exit_with_pid,
            metrics=_metrics(arguments),
        )
    except (ConfigError, CannotStart) as error:
        print(f"broker_sim: {error}{_hint(error)}", file=sys.stderr)  # noqa: T201
        return EXIT_CANNOT_START
    except StorageError as error:
        logging.shutdown()
        text = f"broker_sim: the storage failed, and the broker stops: {error}"
        print(text, file=sys.stderr)  # noqa: T201
        return EXIT_STORAGE_FAILED
    except Exception:  # noqa: BLE001 the process ends here, whatever it was
        traceback.print_exc()
        return EXIT_CRASHED
    return 0


def _metrics(arguments: argparse.Namespace) -> Endpoint | None:
    port = arguments.metrics_port
    if port is None:
        return None
    if not 0 <= port <= PORT_MAX:
        raise ConfigError(f"--metrics-port {port} is not between 0 and {PORT_MAX}")
    return Endpoint(arguments.metrics_address, port)


def _hint(error: Exception) -> str:
    """Where to look for a name that resembles none of the known ones."""
    text = str(error)
    if not text.startswith("unknown configuration") or "did you mean" in text:
        return ""
    return "; the names are those of Apache Kafka's broker configurations"


def _overrides(arguments: argparse.Namespace) -> dict[str, str | ConfigValue]:
    overrides: dict[str, str | ConfigValue] = {}
    if arguments.config is not None:
        try:
            overrides.update(parse_properties(arguments.config.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"cannot read {arguments.config}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"cannot read {arguments.config}: it is not UTF-8 text") from error
    for pair in arguments.set:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"--set takes KEY=VALUE, not {pair!r}")
        overrides[name.strip()] = value.strip()
    if arguments.port is not None:
        if not 0 <= arguments.port <= PORT_MAX:
            raise ConfigError(f"--port {arguments.port} is not between 0 and {PORT_MAX}")
        overrides["listeners"] = f"PLAINTEXT://127.0.0.1:{arguments.port}"
    return overrides


if __name__ == "__main__":
    sys.exit(main())
