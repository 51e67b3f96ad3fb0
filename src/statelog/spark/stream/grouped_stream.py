"""`GroupedStatefulStream`: the output of a stateful operator, grouped for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pyspark.sql import DataFrame, GroupedData

from statelog.errors import UsageError
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.stream.recorded_plan import RecordedPlan


class GroupedStatefulStream(GroupedData):
    """
    What `StatefulStream.groupBy` returns, for another `transform_with_state` in the same query.

    Args:
        stream: The stream.
        operators: The operators before the next one.
        plan: The steps applied to the output of the last of them.
        shape: The shape of the steps, grouped: what Spark knows of the columns.
    """

    def __init__(
        self,
        stream: DataFrame,
        operators: Sequence[OperatorDefinition],
        plan: RecordedPlan,
        shape: GroupedData,
    ) -> None:
        self._df = stream
        self.session = stream.sparkSession
        self.operators = tuple(operators)
        self.plan = plan
        self.shape = shape

    def transformWithState(self, *args: Any, **kwargs: Any) -> DataFrame:
        """See Spark's method, which `statelog.spark.enable` replaces; else it is rejected."""
        return self._of_session("transformWithState")(self, *args, **kwargs)

    def transformWithStateInPandas(self, *args: Any, **kwargs: Any) -> DataFrame:
        """See `transformWithState`."""
        return self._of_session("transformWithStateInPandas")(self, *args, **kwargs)

    def _of_session(self, name: str) -> Callable[..., DataFrame]:
        # Of the session's own kind, classic or Spark Connect.
        return getattr(type(self.shape), name, None) or _refused

    # What every method of Spark's own uses, in a classic session and on Spark Connect.
    _jgd = property(lambda self: _refused())
    _grouping_cols = property(lambda self: _refused())

    def __repr__(self) -> str:
        return f"GroupedStatefulStream[{', '.join(self.plan.shape.columns)}]"


def _refused(*args: object, **kwargs: object) -> NoReturn:
    raise UsageError(
        "the rows of a stateful operator of statelog cannot be grouped for an operator of Spark's: "
        "it would need state of its own behind the state of this query. Call "
        "statelog.spark.transform_with_state with the grouped stream (or transformWithState, in "
        "a session with statelog.spark.enable), or aggregate before the first operator, or in a "
        "second query over the output of this one"
    )
