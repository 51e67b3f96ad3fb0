"""The positions of the columns in a task's input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputLayout:
    """
    The layout of a task's batches: key group, keys, input columns.

    Args:
        key_positions: Positions of the key columns.
        first_input: Position of the first column that the processor gets.
    """

    key_positions: tuple[int, ...]
    first_input: int


INPUT_KEY_GROUP_COLUMN = "__key_group"
"""Name of the first column of a task's input."""
