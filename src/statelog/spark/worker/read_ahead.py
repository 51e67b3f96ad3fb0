"""
Read the first rows of a task while its state is brought forward.

Spark's executor makes the rows of a partition while the worker reads them, and stops when some hundred
kilobytes are unread.  So the worker reads from the start: what takes longer, the state or the rows,
is what the task waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import pyarrow as pa

_Result = TypeVar("_Result")


def read_during(
    work: Callable[[], _Result],
    batches: Iterable[pa.RecordBatch],
    cost: Callable[[pa.RecordBatch], int],
    max_cost: int,
) -> tuple[_Result, Iterator[pa.RecordBatch]]:
    """
    Do *work* in another thread, and read batches until it is done.

    Args:
        work: What is done meanwhile.
        batches: The input.
        cost: Returns the bytes of memory that a batch needs.
        max_cost: So many bytes are read; then only *work* is awaited.

    Returns:
        The result of *work*, and all batches: those that were read, then the others.

    Raises:
        Exception: What *work* or the input raised; *work* has ended in any case.

    Blocks: Until *work* is done.
    """
    rest = iter(batches)
    read: list[pa.RecordBatch] = []
    size = 0
    with ThreadPoolExecutor(1, "statelog-catch-up") as thread:
        pending = thread.submit(work)
        while size <= max_cost and not pending.done():
            batch = next(rest, None)
            if batch is None:
                break
            read.append(batch)
            size += cost(batch)
        result = pending.result()
    return result, chain(_emptied(read), rest)


def _emptied(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield *batches* and drop each from the list."""
    batches.reverse()
    while batches:
        yield batches.pop()
