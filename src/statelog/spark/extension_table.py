"""The extensions of the engine: one row for each, in the order in which the engine calls them."""

from __future__ import annotations

from importlib import import_module
from typing import Final

DRIVER: Final = (
    "statelog.spark.driver.recordings:Recordings",
    "statelog.spark.driver.dead_letters:BadRecords",
    "statelog.spark.driver.side_outputs:SideOutputs",
    "statelog.spark.driver.broadcasts:Broadcasts",
)
"""The half on the driver of each: a class that is made of a `DriverContext`."""


def half(row: str) -> type:
    """Return the class of a row, which is imported at its first use."""
    module, _, name = row.partition(":")
    loaded: type = getattr(import_module(module), name)
    return loaded
