"""The extensions of the engine: one row for each, in the order in which the engine calls them."""

from __future__ import annotations

from importlib import import_module
from typing import Final

DRIVER: Final = (
    "statelog.extensions.recordings.driver:Recordings",
    "statelog.extensions.bad_records.driver:BadRecords",
    "statelog.extensions.side_outputs.driver:SideOutputs",
    "statelog.extensions.broadcasts.driver:Broadcasts",
)
"""The half on the driver of each: a class that is made of a `DriverContext`."""


def half(row: str) -> type:
    """Return the class of a row, which is imported at its first use."""
    module, _, name = row.partition(":")
    loaded: type = getattr(import_module(module), name)
    return loaded
