"""
State that aggregates many values into one: reducing and aggregating state.

Both keep one tuple per key in a `ValueState`, and share its time to live and its format.
Source: Flink's ReducingState, AggregatingState and AggregateFunction.  Deviations: values are
tuples; None is rejected where Flink treats it as a clear.
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
    Aggregate values in an accumulator, which is a tuple of the state's schema.

    No method may keep or change its arguments; each returns a new accumulator or result.
    Source: Flink's AggregateFunction.
    """

    def create_accumulator(self) -> Values:
        """Return the accumulator of no values."""
        ...

    def add(self, value: Any, accumulator: Values) -> Values:
        """Return *accumulator* with *value* added."""
        ...

    def get_result(self, accumulator: Values) -> Any:
        """Return the result of *accumulator*."""
        ...

    def merge(self, first: Values, second: Values) -> Values:
        """Return the accumulator of the values in both."""
        ...


class ReducingState:
    """
    One value per key: the reduction of all values added.

    Args:
        value: Stores the reduced value.
        reduce: Makes one value of two.
    """

    def __init__(self, value: ValueState, reduce: ReduceFunction) -> None:
        self._value = value
        self._reduce = reduce

    def add(self, value: Values) -> None:
        """Reduce *value* into the stored value; raises `UsageError` if it does not fit."""
        if value is None:
            raise UsageError("a reducing state takes a tuple, not None; use clear()")
        before = self._value.get()
        self._value.update(value if before is None else self._reduce(before, value))

    def get(self) -> Values | None:
        """Return the reduced value, or None if no value was added."""
        return self._value.get()

    def exists(self) -> bool:
        """Return whether a value was added."""
        return self._value.exists()

    def clear(self) -> None:
        """Remove the stored value."""
        self._value.clear()


class AggregatingState:
    """
    One accumulator per key, and its result.

    Args:
        value: Stores the accumulator.
        function: Aggregates values.
    """

    def __init__(self, value: ValueState, function: AggregateFunction) -> None:
        self._value = value
        self._function = function

    def add(self, value: Any) -> None:
        """Add *value*; raises `UsageError` if the accumulator does not fit the schema."""
        before = self._value.get()
        if before is None:
            before = self._function.create_accumulator()
        self._value.update(self._function.add(value, before))

    def merge(self, accumulator: Values) -> None:
        """Add the values of another *accumulator*."""
        before = self._value.get()
        merged = accumulator if before is None else self._function.merge(before, accumulator)
        self._value.update(merged)

    def get(self) -> Any:
        """Return the result, or None if no value was added."""
        accumulator = self._value.get()
        return None if accumulator is None else self._function.get_result(accumulator)

    def accumulator(self) -> Values | None:
        """Return the accumulator, or None if no value was added."""
        return self._value.get()

    def exists(self) -> bool:
        """Return whether a value was added."""
        return self._value.exists()

    def clear(self) -> None:
        """Remove the stored value."""
        self._value.clear()
