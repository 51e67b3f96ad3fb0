"""Where the columns of a task's input are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputLayout:
    """
    What stands where in the batches of a task: key group, computed key columns, input columns.

    Args:
        key_positions: Where the key columns stand.
        first_input: Where the columns begin that the processor sees.
    """

    key_positions: tuple[int, ...]
    first_input: int


KEY_GROUP_COLUMN = "__key_group"
