"""
`observe` after a stateful operator: metrics of each micro-batch's rows.

Spark computes the metrics of a stream's own plan, which ends before the operator.  Here each micro-batch
is observed by an `Observation` of its own, as a batch frame is, and its values are added to the query's
progress.  Spark keeps the values of the first action on a frame.

Rows between two operators are read by the engine's own jobs, which Spark reports to no observation.
So their metrics are computed by a job of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.observation import Observation

from statelog.spark.jvm.gateway import is_connect
from statelog.spark.jvm.queries import is_observed
from statelog.spark.query.query import OperatorDefinition

_WAIT_SECONDS: Final = 2.0
"""Spark reports values some milliseconds after the action, on another thread."""
_POLL_SECONDS: Final = 0.01


class Observing(Protocol):
    """Observes the rows of a micro-batch."""

    def on(self, frame: DataFrame, name: str, columns: Sequence[Column]) -> DataFrame:
        """Return the rows, observed under *name*."""


class Observations:
    """
    The metrics of one query, in the micro-batch that runs.

    Thread: that of the query.
    """

    def __init__(self) -> None:
        self._current: dict[str, Any] = {}

    def on(self, frame: DataFrame, name: str, columns: Sequence[Column]) -> DataFrame:
        """Return the rows of a micro-batch, observed under *name* by the first action on them."""
        self._current[name] = observation = _observation(frame, name)
        return frame.observe(observation, *columns)

    def add(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep values that are known already."""
        self._current[name] = _Known(values)

    def take(self) -> ObservedBatch:
        """Return the metrics of the micro-batch that has ended."""
        batch, self._current = self._current, {}
        return ObservedBatch(batch)


class _BetweenOperators:
    """Observes rows that the next operator reads."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations

    def on(self, frame: DataFrame, name: str, columns: Sequence[Column]) -> DataFrame:
        """Compute the metrics by a Spark job, and return the rows."""
        row = frame.agg(*columns).first()
        self._observations.add(name, {} if row is None else row.asDict())
        return frame.select("*")


@dataclass(frozen=True, slots=True)
class _Known:
    """Values in the form of an observation of PySpark."""

    get: Mapping[str, Any]


class ObservedBatch:
    """The metrics of one micro-batch, as PySpark's observations by name."""

    def __init__(self, observations: Mapping[str, Any]) -> None:
        self._observations = observations
        self._deadline: float | None = None

    def values(self) -> dict[str, dict[str, Any]]:
        """
        Return the values by name and column, without the names whose rows no action read.

        Blocks: Until Spark has reported them; two seconds at most in all calls.
        """
        if self._deadline is None:
            self._deadline = time.monotonic() + _WAIT_SECONDS
        return {
            name: json.loads(json.dumps(dict(observation.get), default=str))
            for name, observation in self._observations.items()
            if self._is_reported(observation)
        }

    def _is_reported(self, observation: Any) -> bool:
        # On Spark Connect the values come with the action.
        if not isinstance(observation, Observation):
            return bool(observation.get)
        while not is_observed(observation):
            if time.monotonic() >= (self._deadline or 0.0):
                return False
            time.sleep(_POLL_SECONDS)
        return True


def observed(
    frame: DataFrame, arguments: Sequence[Any], observations: Observing | None
) -> DataFrame:
    """Apply a recorded `observe` to the rows of a micro-batch, unless metrics are left out."""
    if observations is None:
        return frame.select("*")  # a frame of its own, as after every step
    name, *columns = arguments
    return observations.on(frame, name, columns)


def observed_operators(
    operators: Sequence[OperatorDefinition], observations: Observations
) -> tuple[OperatorDefinition, ...]:
    """Return *operators*, with the metrics of steps between them kept in *observations*."""
    between = _BetweenOperators(observations)
    return tuple(
        operator
        if operator.of_upstream is None
        else replace(operator, of_upstream=partial(operator.of_upstream, observations=between))
        for operator in operators
    )


def _observation(frame: DataFrame, name: str) -> Any:
    if not is_connect(frame):
        return Observation(name)
    # Imported here, because it needs the packages of Spark Connect.
    from pyspark.sql.connect.observation import Observation as ConnectObservation

    return ConnectObservation(name)
