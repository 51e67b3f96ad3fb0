"""The extensions of the engine: one row for each, in the order in which the engine calls them."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from statelog.spark.driver.extension import DriverContext, DriverExtension, DriverExtensions

_DRIVER: Final = (
    "statelog.spark.driver.recordings:Recordings",
    "statelog.spark.driver.dead_letters:BadRecords",
    "statelog.spark.driver.side_outputs:SideOutputs",
    "statelog.spark.driver.broadcasts:Broadcasts",
)
"""The driver's half of each: a class that is made of a `DriverContext`."""


def driver_extensions(context: DriverContext) -> DriverExtensions:
    """Return the driver's halves of all extensions, for one run of a query."""
    extensions: list[DriverExtension] = []
    for row in _DRIVER:
        module, _, name = row.partition(":")
        extensions.append(getattr(import_module(module), name)(context))
    return DriverExtensions(
        extensions, [operator.schema.operator_id for operator in context.query.operators]
    )
