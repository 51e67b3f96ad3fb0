"""
A side output of a processor: rows by name, next to its output.

`init` declares each by `handle.sideOutput(name, schema)`, on the driver and in each task.
Source: Flink's `OutputTag` and `Context.output`.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,99}")


def is_name(name: object) -> bool:
    """Return whether a side output or a broadcast table may have a name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class SideOutput(Protocol):
    """A named output of a processor; `handle.sideOutput(name, schema)` returns it in `init`."""

    def emit(self, row: object) -> None:
        """
        Emit a row; it is committed with the micro-batch, unless the call fails.

        Args:
            row: A `Row` with the names of the columns, or a tuple in their order; for a processor of
                frames a DataFrame, for a `ColumnarProcessor` a table.  A column that a Row leaves out
                is null.

        Raises:
            UsageError: It does not fit the columns, or neither rows nor timers are handled now.
        """
