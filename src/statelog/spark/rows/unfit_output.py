"""
Report output that does not fit its columns, and the processor call that yielded it.

Items are converted many calls later, so an item that does not fit is found when the calls are over.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from types import GeneratorType
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from statelog.errors import ProcessorError
from statelog.state.kinds import Key

NOTHING_COMMITTED: Final = "Nothing of this batch was committed; the state is unchanged"
_MOST_NAMES: Final = 6
_ITERATORS: Final = frozenset(
    (GeneratorType, list, tuple, map, filter, itertools.chain, type(iter([])), type(iter(())))
)


class UnfitOutputError(ProcessorError):
    """
    An item that a processor yields or returns does not fit the output columns.

    The run of the processor, which knows the call, reports it with method and key.
    """

    item_number: int | None = None
    """Its index in the output."""


def unfit_output(what: str, batch_id: int, item_number: int | None = None) -> UnfitOutputError:
    """Return the error for an item that does not fit."""
    message = f"the output of batch {batch_id}: {what}. {NOTHING_COMMITTED}"
    return UnfitOutputError(message, batch_id=batch_id, what=what, item_number=item_number)


def described_item(item: object) -> str:
    """Describe an item as a noun phrase for a message."""
    if item is None:
        return "None"
    if isinstance(item, Row):
        return f"{item!r:.100}" if hasattr(item, "__fields__") else f"{item!r:.100} without names"
    kind = type(item).__name__
    if hasattr(item, "iloc") or isinstance(item, pa.Table | pa.RecordBatch):
        return f"a {kind}"
    return f"the {kind} {item!r:.100}"


def row_call(names: Sequence[str]) -> str:
    """Return code that yields a row with these field names."""
    fields = [f"{name}=..." for name in names[:_MOST_NAMES]]
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"`yield Row({', '.join(fields)}{more})`"


def check_event_times(batch: pa.RecordBatch, column: str, watermark_ms: int, batch_id: int) -> None:
    """Raise `ProcessorError` if an output row's event time is before the watermark."""
    times = batch.column(column).cast(pa.timestamp("us", tz="UTC"))
    oldest = pc.min(times.cast(pa.int64())).as_py()
    if oldest is not None and oldest < watermark_ms * 1000:
        raise ProcessorError(
            f"the output of batch {batch_id}: {column} = {pc.min(times).as_py()} is older than the "
            f"watermark, {watermark_ms} ms since 1970. With eventTimeColumnName a processor must not "
            f"yield such rows. {NOTHING_COMMITTED}",
            batch_id=batch_id,
        )


class OutputCall(NamedTuple):
    """
    The processor call that yielded an item.

    Args:
        key: The key as tables hold it.
        key_group: Its key group.
        method: The method.
        timer_ms: The timer that fired, or -1.
        is_over: Whether the call has returned.
    """

    key: Key
    key_group: int
    method: str
    timer_ms: int
    is_over: bool


class _Span(NamedTuple):
    """Calls of one method in one key group: the position of the first call, and all keys."""

    first: int
    keys: Sequence[Key]
    key_group: int
    method: str
    timer_ms: int


class OutputCalls:
    """
    The processor calls since the last conversion.

    Attributes: `ends`: for each call the number of items after it.  The run appends to it, because
    one more method for each key takes too long.
    """

    def __init__(self) -> None:
        self.ends: list[int] = []
        self._spans: list[_Span] = []

    def begin(
        self, keys: Sequence[Key], key_group: int, method: str, timer_ms: int = -1
    ) -> list[int]:
        """Begin a series of calls of one method in one key group, one per key; return `ends`."""
        self._spans.append(_Span(len(self.ends), keys, key_group, method, timer_ms))
        return self.ends

    def call_of(self, item: int) -> OutputCall:
        """Return the call that yielded the item at this position."""
        call = bisect.bisect_right(self.ends, item)
        span = self._spans[bisect.bisect_right(self._spans, call, key=itemgetter(0)) - 1]
        key = span.keys[call - span.first]
        return OutputCall(
            key, span.key_group, span.method, span.timer_ms, is_over=call < len(self.ends)
        )

    def finish(self) -> None:
        """Finish the latest series of calls; drop calls without items if they are the majority."""
        span = self._spans[-1]
        ends = self.ends
        before = ends[span.first - 1] if span.first else 0
        count = len(ends) - span.first
        grown = ends[-1] - before if count else 0
        if not grown:
            del ends[span.first :]
            self._spans.pop()
        elif grown <= count // 2:
            steps = enumerate(pairwise([before, *ends[span.first :]]))
            with_items = [call for call, (start, end) in steps if end > start]
            self._spans[-1] = span._replace(keys=[span.keys[call] for call in with_items])
            ends[span.first :] = [ends[span.first + call] for call in with_items]

    def clear(self) -> None:
        """Discard finished calls whose items have been converted."""
        if self._spans:
            span = self._spans[-1]
            keys = span.keys[len(self.ends) - span.first :]
            self._spans = [span._replace(first=0, keys=keys)] if keys else []
        self.ends.clear()

    def forget(self) -> None:
        """Discard all calls."""
        self.ends.clear()
        self._spans.clear()


def returned(produced: Any, batch_id: int, noun: str) -> Iterable[Any]:
    """
    Return the result of a processor method, if it can be iterated as output.

    One item, as by `return` in the place of `yield`, raises `UnfitOutputError`; *noun* says what
    items are.
    """
    if produced.__class__ in _ITERATORS:
        items: Iterable[Any] = produced
        return items
    is_item = isinstance(produced, Row | dict | str | bytes) or any(
        hasattr(produced, name) for name in ("iloc", "to_batches", "__arrow_c_stream__")
    )
    if is_item or not isinstance(produced, Iterable):
        raise unfit_output(
            f"it returned {described_item(produced)}, not an iterator of {noun}: write `yield` "
            "instead of `return`",
            batch_id,
        )
    return produced
