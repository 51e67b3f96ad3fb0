"""Warn of output columns that no row names, which a misspelt name leaves null as in Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from statelog.spark.worker.protocol import TaskAck

_log = logging.getLogger("statelog.spark")

_MOST_NAMES: Final = 10


class UnnamedOutput:
    """
    Warns once of an operator whose rows leave output columns out.

    The first micro-batch with output rows decides.

    Args:
        name: The processor, for the message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_decided = False

    def committed(self, batch_id: int, acks: Sequence[TaskAck]) -> None:
        """
        Take a micro-batch that was committed.

        Args:
            batch_id: Spark's id of it.
            acks: The answers of the operator's tasks.
        """
        if self._is_decided:
            return
        answers = [ack.unnamed for ack in acks if ack.output_rows]
        self._is_decided = bool(answers)
        unnamed = [answer for answer in answers if answer is not None]
        if not answers or len(unnamed) < len(answers):  # a task names all columns
            return
        columns = [
            name
            for name in unnamed[0].columns
            if all(name in answer.columns for answer in unnamed[1:])
        ]
        if columns:
            others = sorted({name for answer in unnamed for name in answer.other_names})
            _log.warning("%s", self._message(batch_id, columns, others))

    def _message(self, batch_id: int, columns: Sequence[str], others: Sequence[str]) -> str:
        message = (
            f"no output row of {self._name} in batch {batch_id} names the columns "
            f"{_listed(map(repr, columns))}: they are null"
        )
        if others:
            fields = _listed(_with_advice(name, columns) for name in others)
            message += f". The rows have fields that are no columns: {fields}"
        return message


def _with_advice(name: str, columns: Sequence[str]) -> str:
    """Return a field of rows, with the column that has a similar name."""
    by_lower = {column.lower(): column for column in columns}
    similar = get_close_matches(name.lower(), by_lower, n=1)
    return f"{name!r} (did you mean {by_lower[similar[0]]!r}?)" if similar else repr(name)


def _listed(names: Iterable[str]) -> str:
    """Return names with commas, the first ones only where they are many."""
    every = list(names)
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(every[:_MOST_NAMES]) + more
