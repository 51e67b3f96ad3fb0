"""
The interface between a processor and its state, for Spark 3.5, whose Python API lacks it.

It has the names, methods and arguments of Spark 4, so that one processor runs on both.  From 4.0 on
`statelog.spark` gives out PySpark's own classes, see `spark_versions`, and nothing uses these.
Source: the documentation of pyspark.sql.streaming.StatefulProcessor; a test compares the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeAlias

from pyspark.sql.types import StructType

Fields: TypeAlias = tuple[Any, ...]
"""The values of a key or of a state variable, of the types that the user has declared."""


class TimerValues:
    """
    The times of a micro-batch.

    Args:
        currentProcessingTimeInMs: Processing time in milliseconds since 1970; -1 without timers.
        currentWatermarkInMs: The watermark in milliseconds since 1970; -1 outside of event time.
    """

    def __init__(self, currentProcessingTimeInMs: int = -1, currentWatermarkInMs: int = -1) -> None:
        self._currentProcessingTimeInMs = currentProcessingTimeInMs
        self._currentWatermarkInMs = currentWatermarkInMs

    def getCurrentProcessingTimeInMs(self) -> int:
        """Return the processing time of the micro-batch in milliseconds."""
        return self._currentProcessingTimeInMs

    def getCurrentWatermarkInMs(self) -> int:
        """Return the watermark of the micro-batch in milliseconds."""
        return self._currentWatermarkInMs


class ExpiredTimerInfo:
    """
    A timer that has fired.

    Args:
        expiryTimeInMs: The time for which it was registered, in milliseconds since 1970.
    """

    def __init__(self, expiryTimeInMs: int = -1) -> None:
        self._expiryTimeInMs = expiryTimeInMs

    def getExpiryTimeInMs(self) -> int:
        """Return the time for which the timer was registered, in milliseconds."""
        return self._expiryTimeInMs


class ValueState(ABC):
    """A single value for the current key."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether there is a value for the key."""

    @abstractmethod
    def get(self) -> Fields | None:
        """Return the value, or None if there is none."""

    @abstractmethod
    def update(self, newValue: Fields) -> None:
        """Set the value."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the value."""


class ListState(ABC):
    """A list of values for the current key."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the list has any elements."""

    @abstractmethod
    def get(self) -> Iterator[Fields]:
        """Return the elements in order."""

    @abstractmethod
    def put(self, newState: list[Fields]) -> None:
        """Replace all elements."""

    @abstractmethod
    def appendValue(self, newState: Fields) -> None:
        """Append one element."""

    @abstractmethod
    def appendList(self, newState: list[Fields]) -> None:
        """Append several elements."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all elements."""


class MapState(ABC):
    """A map for the current key."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the map has any entries."""

    @abstractmethod
    def getValue(self, key: Fields) -> Fields | None:
        """Return the value for *key*, or None if there is none."""

    @abstractmethod
    def containsKey(self, key: Fields) -> bool:
        """Return whether there is a value for *key*."""

    @abstractmethod
    def updateValue(self, key: Fields, value: Fields) -> None:
        """Set the value for *key*."""

    @abstractmethod
    def iterator(self) -> Iterator[tuple[Fields, Fields]]:
        """Return an iterator over the entries, as pairs of key and value."""

    @abstractmethod
    def keys(self) -> Iterator[Fields]:
        """Return the keys of the map."""

    @abstractmethod
    def values(self) -> Iterator[Fields]:
        """Return the values of the map."""

    @abstractmethod
    def removeKey(self, key: Fields) -> None:
        """Remove the value for *key*."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""


class StatefulProcessorHandle(ABC):
    """Gives a processor access to its state variables in `init`, and to timers in all methods."""

    @abstractmethod
    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        """
        Return a value state.

        Args:
            stateName: Its name.
            schema: The fields of the value, as a schema or DDL.
            ttlDurationMs: Time to live after the last update, in milliseconds; None for ever.
        """

    @abstractmethod
    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        """Return a list state; the arguments of `getValueState` apply to each element."""

    @abstractmethod
    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Return a map state; the arguments of `getValueState` apply to each entry."""

    @abstractmethod
    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key; the time is in milliseconds since 1970."""

    @abstractmethod
    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""

    @abstractmethod
    def listTimers(self) -> Iterator[int]:
        """Return the times of the current key's timers, in milliseconds since 1970."""

    @abstractmethod
    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable, including its values for all keys."""


class StatefulProcessor(ABC):
    """
    The logic of a stateful operator: subclass it, and pass an instance to `transform_with_state`.

    Keys are tuples.  Input and output are Rows with `transform_with_state`, and frames of pandas
    with `transform_with_state_in_pandas`.
    """

    @abstractmethod
    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get the state variables from *handle*; called first, once per task."""

    @abstractmethod
    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[Any]:
        """Yield the output for one key's rows in a micro-batch."""

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """Yield the output for a timer that has fired; the default yields nothing."""
        return iter([])

    def close(self) -> None:  # noqa: B027
        """Release the resources acquired in `init`; called at the end of a task."""

    def handleInitialState(  # noqa: B027
        self, key: Any, initialState: Any, timerValues: TimerValues
    ) -> None:
        """Write the initial state of one key; called only in the first micro-batch."""
