"""An output that cannot be converted, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Row

from statelog.errors import ProcessorError

NOTHING_COMMITTED: Final = "Nothing of this batch was committed; the last checkpoint is valid"
_MOST_NAMES: Final = 6


class UnfitOutputError(ProcessorError):
    """
    An item that a processor yields or returns does not fit the output; see `unfit_output`.

    The run of the processor, which knows the call, reports it with method and key.
    """


def unfit_output(what: str, batch_id: int, at: int | None = None) -> UnfitOutputError:
    """
    Return the error for an item that does not fit.

    Args:
        what: What does not fit, and what to do; an attribute of the error.
        batch_id: The micro-batch.
        at: Position of the item among those since the last conversion, an attribute too; None where
            the method that runs gave it.
    """
    message = f"the output of batch {batch_id}: {what}. {NOTHING_COMMITTED}"
    return UnfitOutputError(message, batch_id=batch_id, what=what, at=at)


def described_item(item: object) -> str:
    """Return the item as a noun for a message."""
    if item is None:
        return "None"
    if isinstance(item, Row):
        return f"{item!r:.100}" if hasattr(item, "__fields__") else f"{item!r:.100} without names"
    kind = type(item).__name__
    if hasattr(item, "iloc") or isinstance(item, pa.Table | pa.RecordBatch):
        return f"a {kind}"
    return f"the {kind} {item!r:.100}"


def row_call(names: Sequence[str]) -> str:
    """Return how a row with these names is yielded."""
    some = [f"{name}=..." for name in names[:_MOST_NAMES]]
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"`yield Row({', '.join(some)}{more})`"
