"""The output columns that no Row of a task names."""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_NAMES: Final = 100
"""Most other names that are noted; a Row may get its names from data."""


class UnnamedColumns(NamedTuple):
    """
    What a task notes of its Rows where they leave a column out.

    Args:
        columns: The output columns that are in no Row, which are null.
        other_names: Fields of the Rows that are no output columns, at most `MOST_NAMES`.
    """

    columns: tuple[str, ...]
    other_names: tuple[str, ...]
