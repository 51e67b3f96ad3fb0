"""Where the sinks of the job that `sink_kills` kills write to, when that is not a folder."""

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRANSACTIONAL = ("sqlite", "postgres", "iceberg", "kafka")
"""Sinks that `exactly_once` writes to."""
BATCHES = "statelog_batches"


def table_of(name: str, sink: str = "") -> str:
    """Return the table of a query in the database or the catalog, which other queries use too."""
    table = f"totals_{name.replace('-', '_')}"
    return table if sink else f"chaos.{table}"


def topic_of(name: str) -> str:
    return f"chaos-{name}"


def catalog_of(folder: Path) -> dict[str, str]:
    """Return the properties of the Iceberg catalog, which all queries use."""
    uri = f"sqlite:///{folder}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/iceberg"}


def connection_of(sink: str, place: Path, servers: dict[str, str]) -> Callable[[], Any]:
    """Return a function that connects to the database of a query."""
    if sink == "sqlite":
        return functools.partial(sqlite3.connect, place, check_same_thread=False)
    import psycopg

    return functools.partial(psycopg.connect, servers[sink])
