"""`ConnectStream`: the output of a stateful operator on Spark Connect."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.connect.dataframe import DataFrameNaFunctions

from statelog.errors import UsageError
from statelog.spark.connect.recorded_steps import ConnectPlan
from statelog.spark.connect.writer import ConnectStreamWriter
from statelog.spark.stream.stateful_stream import StatefulStream


class ConnectStream(StatefulStream):
    """
    The output of a stateful operator over a stream of a Connect session.

    Args:
        operator: The operator.
        plan: The steps applied to its output.
    """

    _plan: ConnectPlan

    @property
    def na(self) -> Any:
        """Functions for missing values."""
        return DataFrameNaFunctions(self)

    def groupBy(self, *cols: Any) -> NoReturn:
        """
        Refuse: a Connect query has one stateful operator.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "groupBy cannot follow a stateful operator on Spark Connect, where a query has one: do it in "
            "the processor, or before it, or in a second query over the output of this one"
        )

    groupby = groupBy

    @property
    def writeStream(self) -> ConnectStreamWriter:
        """A writer with the methods of Spark's."""
        return ConnectStreamWriter(self._operator, self._plan)
