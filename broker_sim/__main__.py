"""The command line: `python -m broker_sim start | registry | topics | groups | ...`."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from broker_sim.core.config import INT32_MAX, ConfigError, ConfigValue, parse_properties
from broker_sim.core.endpoint import PORT_MAX, Endpoint
from broker_sim.registry.config import RegistryConfig
from txnlog_kafka.version import __version__

DEFAULT_PORT = 9092
REGISTRY_PORT = 2181
"""ZooKeeper's."""
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
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
    parsed = _parser().parse_args(arguments)
    return _start(parsed) if parsed.command == "start" else _start_registry(parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m broker_sim", description="A transactional log store with Kafka's protocol."
    )
    parser.add_argument("--version", action="version", version=f"broker_sim {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser(
        "start",
        help="run a broker in the foreground until SIGTERM",
        description="Prints a line, READY bootstrap.servers=HOST:PORT, when it can be used.",
    )
    start.add_argument("--data-dir", type=Path, required=True, help="where all data is kept")
    start.add_argument(
        "--brokers",
        type=int,
        default=1,
        metavar="N",
        help="run so many brokers and their registry, as processes of their own; broker k listens "
        "on the port after that of broker k-1 (default: 1, and no registry)",
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
    _add_exit_with_pid(start)
    start.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="serve Kafka's metrics for Prometheus at http://ADDRESS:N/metrics; 0 chooses a port, "
        "which the line METRICS names (default: off)",
    )
    start.add_argument("--metrics-address", default="127.0.0.1", metavar="ADDRESS")
    start.add_argument(
        "--fault-port",
        type=int,
        metavar="N",
        help="take rules of faults at http://127.0.0.1:N/faults; 0 chooses a port, which the line "
        "FAULTS names (default: off)",
    )
    start.add_argument("--log-level", default="WARNING", choices=LOG_LEVELS)
    _add_registry(commands)
    for name, text in CLI_COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _add_exit_with_pid(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--exit-with-pid",
        type=int,
        metavar="PID",
        help="stop cleanly when this process is gone and no client is connected any more",
    )


def _add_registry(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    registry = commands.add_parser(
        "registry",
        help="run the registry of a cluster in the foreground until SIGTERM",
        description="What ZooKeeper is to Kafka before KRaft: sessions, nodes and the metadata "
        "log. Prints a line, READY registry=127.0.0.1:PORT, when it can be used. Only processes of "
        "this machine can connect to it.",
    )
    registry.add_argument(
        "--data-dir", type=Path, required=True, help="its files are in the folder registry there"
    )
    registry.add_argument(
        "--port",
        type=int,
        default=REGISTRY_PORT,
        help=f"port on 127.0.0.1; 0 chooses a free one (default: {REGISTRY_PORT})",
    )
    limits = RegistryConfig()
    for bound, default_ms in (
        ("min", limits.session_timeout_min_ms),
        ("max", limits.session_timeout_max_ms),
    ):
        registry.add_argument(
            f"--session-timeout-{bound}-ms",
            type=int,
            default=default_ms,
            metavar="MS",
            help=f"the {bound}imum that a session's timeout may be (default: {default_ms})",
        )
    _add_exit_with_pid(registry)
    registry.add_argument("--log-level", default="WARNING", choices=LOG_LEVELS)


def _start(arguments: argparse.Namespace) -> int:
    # The host imports asyncio and sockets: not needed for the other commands.
    from broker_sim.server.process import run

    def serve() -> None:
        if arguments.brokers != 1:
            _run_cluster(arguments)
            return
        run(
            arguments.data_dir,
            _overrides(arguments),
            exit_with_pid=arguments.exit_with_pid,
            metrics=_side_port("--metrics-port", arguments.metrics_port, arguments.metrics_address),
            faults=_side_port("--fault-port", arguments.fault_port, "127.0.0.1"),
        )

    return _serve(serve, "broker", arguments.log_level)


def _run_cluster(arguments: argparse.Namespace) -> None:
    from broker_sim.cluster_process import run

    for option, port in (
        ("--metrics-port", arguments.metrics_port),
        ("--fault-port", arguments.fault_port),
    ):
        if port is not None:
            raise ConfigError(f"{option} is of one broker, not of several")
    first_port = DEFAULT_PORT if arguments.port is None else _checked_port(arguments.port)
    arguments.port = None
    run(
        arguments.data_dir,
        arguments.brokers,
        first_port,
        _overrides(arguments),
        exit_with_pid=arguments.exit_with_pid,
    )


def _start_registry(arguments: argparse.Namespace) -> int:
    from broker_sim.server.registry_process import run

    def serve() -> None:
        least_ms = arguments.session_timeout_min_ms
        most_ms = arguments.session_timeout_max_ms
        if not 0 < least_ms <= most_ms <= INT32_MAX:
            raise ConfigError(
                f"--session-timeout-min-ms {least_ms} and --session-timeout-max-ms {most_ms} "
                f"must be between 1 and {INT32_MAX}, and the first not larger than the second"
            )
        limits = RegistryConfig(session_timeout_min_ms=least_ms, session_timeout_max_ms=most_ms)
        run(
            arguments.data_dir,
            _checked_port(arguments.port),
            limits,
            exit_with_pid=arguments.exit_with_pid,
        )

    return _serve(serve, "registry", arguments.log_level)


def _serve(serve: Callable[[], None], what: str, log_level: str) -> int:
    """Run until it ends; the exit code."""
    from broker_sim.server.process import CannotStart
    from broker_sim.server.system import StorageError

    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(message)s")
    try:
        serve()
    except (ConfigError, CannotStart) as error:
        print(f"broker_sim: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_CANNOT_START
    except StorageError as error:
        logging.shutdown()
        text = f"broker_sim: the storage failed, and the {what} stops: {error}"
        print(text, file=sys.stderr)  # noqa: T201
        return EXIT_STORAGE_FAILED
    except Exception:  # noqa: BLE001 the process ends here, whatever it was
        traceback.print_exc()
        return EXIT_CRASHED
    return 0


def _side_port(option: str, port: int | None, address: str) -> Endpoint | None:
    if port is None:
        return None
    if not 0 <= port <= PORT_MAX:
        raise ConfigError(f"{option} {port} is not between 0 and {PORT_MAX}")
    return Endpoint(address, port)


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
        overrides["listeners"] = f"PLAINTEXT://127.0.0.1:{_checked_port(arguments.port)}"
    return overrides


def _checked_port(port: int) -> int:
    if not 0 <= port <= PORT_MAX:
        raise ConfigError(f"--port {port} is not between 0 and {PORT_MAX}")
    return port


if __name__ == "__main__":
    sys.exit(main())
