"""Command `dump PATH...`: the content of files of a data directory, of ours or of Apache Kafka's.

It reads files and asks no broker: a broker may run on them, or not. It never writes. It reports the
first damaged byte of a file, and the exit code is then 1; other files are dumped all the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker_sim.cli.dump_files import FILE_DUMPERS, is_known
from broker_sim.cli.dump_log import dump_segment
from broker_sim.cli.dump_records import GROUPS, METADATA, PLAIN, TRANSACTIONS, decoder_of
from broker_sim.cli.dump_values import Damage, Item
from broker_sim.cli.printing import EXIT_OK, EXIT_REFUSED, write_error, write_line

SEGMENT_SUFFIXES = (".log", ".checkpoint")
"""Suffixes of record batches; Kafka's metadata snapshots are record batches, too."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options of dump."""
    help_text = "print segments, indexes, snapshots and checkpoints readably"
    parser = commands.add_parser("dump", help=help_text, description=help_text)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="file, or folder")
    parser.add_argument(
        "--deep", "--deep-iteration", action="store_true", help="print the records of a segment too"
    )
    decoders = parser.add_mutually_exclusive_group()
    for name, decoder in (
        ("--offsets-decoder", GROUPS),
        ("--transaction-log-decoder", TRANSACTIONS),
        ("--cluster-metadata-decoder", METADATA),
        ("--no-decoder", PLAIN),
    ):
        decoders.add_argument(
            name,
            dest="decoder",
            action="store_const",
            const=decoder,
            help="how to read records; default: by the folder's name",
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Dump every path in its order; return 1 if a path is missing, unknown or damaged."""
    code = EXIT_OK
    for path in arguments.paths:
        try:
            files = list(_files(path))
        except OSError as error:
            write_error(f"{path}: {error.strerror}")
            code = EXIT_REFUSED
            continue
        if not files:
            write_error(f"{path}: the folder has no file of a broker")
            code = EXIT_REFUSED
        for file in files:
            if not _dump_file(file, arguments):
                code = EXIT_REFUSED
    return code


def _files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or all known files in a folder and the folders below."""
    if not path.is_dir():
        path.stat()
        yield path
        return
    for each in sorted(path.iterdir()):
        if each.is_dir():
            yield from _files(each)
        elif each.suffix in SEGMENT_SUFFIXES or is_known(each):
            yield each


def _dump_file(path: Path, arguments: argparse.Namespace) -> bool:
    """Dump a file; return True if the file is whole."""
    show = _write_json if arguments.json else _write_text
    try:
        show(path, Item("file", {"path": str(path), "bytes": path.stat().st_size}))
        for item in _items(path, arguments):
            show(path, item)
    except Damage as damage:
        show(path, Item("damaged", {"position": damage.position, "reason": damage.reason}))
        write_error(f"{path} is damaged at byte {damage.position}: {damage.reason}")
        return False
    except BrokenPipeError:
        raise  # it is not the file's
    except OSError as error:
        write_error(f"{path}: {error.strerror}")
        return False
    return True


def _items(path: Path, arguments: argparse.Namespace) -> Iterator[Item]:
    if path.suffix in SEGMENT_SUFFIXES:
        decoder = arguments.decoder or decoder_of(path.absolute().parent.name)
        return dump_segment(path, decoder, deep=arguments.deep)
    dumper = FILE_DUMPERS.get(path.suffix) or FILE_DUMPERS.get(path.name)
    if dumper is None:
        raise Damage(0, "this is not a file of a broker")
    return dumper(path)


def _write_json(path: Path, item: Item) -> None:
    fields = {name: _plain(value) for name, value in item.fields.items()}
    write_line(json.dumps({"kind": item.kind, "file": path.name, **fields}))


def _plain(value: Any) -> Any:
    return _readable(value) if isinstance(value, bytes) else value


def _write_text(path: Path, item: Item) -> None:
    del path
    if item.kind == "file":
        write_line(f"Dumping {item.fields['path']} ({item.fields['bytes']} bytes)")
        return
    indent = "    " if item.kind == "record" else "  "
    fields = " ".join(f"{name}={_text(value)}" for name, value in item.fields.items())
    write_line(f"{indent}{item.kind}: {fields}")


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return _readable(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=str)
    return str(value)


def _readable(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"
