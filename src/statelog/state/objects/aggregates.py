"""
State that gathers many values into one: reducing and aggregating state.

Both keep one tuple per key and stand on a `ValueState`, whose time to live and files they share.
Source: Flink's ReducingState, AggregatingState and AggregateFunction.  Deviations: values are
tuples; None is refused where Flink takes it for a clear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from statelog.errors import UsageError
from statelog.state.kinds import Values
from statelog.state.objects.value import ValueState

ReduceFunction = Callable[[Values, Values], Values]
"""Makes one value of two; must be associative."""


class AggregateFunction(Protocol):
    """
    How values are gathered in an accumulator, which is a tuple of the state's schema.

    No method may keep or change what it is given; each returns what is to count from now on.
    Source: Flink's AggregateFunction.
    """

    def create_accumulator(self) -> Values:
        """Return the accumulator of no values."""
        ...

    def add(self, value: Any, accumulator: Values) -> Values:
        """Return *accumulator* with *value* gathered too."""
        ...

    def get_result(self, accumulator: Values) -> Any:
        """Return what the values in *accumulator* come to."""
        ...

    def merge(self, first: Values, second: Values) -> Values:
        """Return the accumulator of the values in both."""
        ...


class ReducingState:
    """
    One value per key: all that were added, reduced to one.

    Args:
        value: Where it is kept.
        reduce: Makes one value of two.
    """

    def __init__(self, value: ValueState, reduce: ReduceFunction) -> None:
        self._value = value
        self._reduce = reduce

    def add(self, value: Values) -> None:
        """Reduce *value* into what is there; raises `UsageError` if it does not fit the schema."""
        if value is None:
            raise UsageError("a reducing state takes a tuple, not None; use clear()")
        before = self._value.get()
        self._value.update(value if before is None else self._reduce(before, value))

    def get(self) -> Values | None:
        """Return the reduced value, or None if nothing was added."""
        return self._value.get()

    def exists(self) -> bool:
        """Return whether anything was added."""
        return self._value.exists()

    def clear(self) -> None:
        """Forget what was added."""
        self._value.clear()


class AggregatingState:
    """
    One accumulator per key, and what it comes to.

    Args:
        value: Where the accumulator is kept.
        function: How values are gathered.
    """

    def __init__(self, value: ValueState, function: AggregateFunction) -> None:
        self._value = value
        self._function = function

    def add(self, value: Any) -> None:
        """Gather *value*; raises `UsageError` if the accumulator does not fit the schema."""
        before = self._value.get()
        if before is None:
            before = self._function.create_accumulator()
        self._value.update(self._function.add(value, before))

    def merge(self, accumulator: Values) -> None:
        """Gather all that was gathered in another *accumulator*."""
        before = self._value.get()
        merged = accumulator if before is None else self._function.merge(before, accumulator)
        self._value.update(merged)

    def get(self) -> Any:
        """Return what the values added come to, or None if there were none."""
        accumulator = self._value.get()
        return None if accumulator is None else self._function.get_result(accumulator)

    def accumulator(self) -> Values | None:
        """Return the accumulator, or None if nothing was added."""
        return self._value.get()

    def exists(self) -> bool:
        """Return whether anything was added."""
        return self._value.exists()

    def clear(self) -> None:
        """Forget what was added."""
        self._value.clear()
