"""`ConnectStream`: the output of a stateful operator on Spark Connect."""

from __future__ import annotations

from typing import Any

from pyspark.sql.connect.dataframe import DataFrameNaFunctions

from statelog.spark.connect.recorded_steps import ConnectPlan
from statelog.spark.connect.writer import ConnectStreamWriter
from statelog.spark.stream.stateful_stream import StatefulStream


class ConnectStream(StatefulStream):
    """
    The output of a stateful operator over a stream of a Connect session.

    Args:
        operators: The operator, after the operators before it in the same query.
        plan: The steps applied to its output.
    """

    _plan: ConnectPlan

    @property
    def na(self) -> Any:
        """Functions for missing values."""
        return DataFrameNaFunctions(self)

    @property
    def writeStream(self) -> ConnectStreamWriter:
        """A writer with the methods of Spark's."""
        return ConnectStreamWriter(self._operators, self._plan)
