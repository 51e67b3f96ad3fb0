"""
What an aggregate is: its expressions in Spark, and its arithmetic on columns.

A kind holds no column and no session, so that it can be pickled into a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import pyarrow as pa
from pyspark.sql.types import DataType

Parts = Mapping[str, pa.Array]
"""The columns of one aggregate's state, by the name of the part; of equal length."""


class AggregateKind(Protocol):
    """
    The rules of one aggregate function.

    A part's name is "" where an aggregate has only one, which is then named as the result.
    """

    @property
    def title(self) -> str:
        """The function's name, for messages."""
        ...

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        """
        Return the rules for arguments of these types.

        Args:
            types: The types of the arguments.
            is_ansi: Whether Spark reports an overflow as an error.

        Raises:
            UsageError: The function does not take them.
        """
        ...

    def whole(self, arguments: Sequence[str]) -> str:
        """Return the same aggregate as SQL of Spark, over all rows at once."""
        ...

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        """Return the parts of the state as SQL of Spark, over the rows of one micro-batch."""
        ...

    def combine(self, left: Parts, right: Parts) -> Parts:
        """
        Return the state of two runs of rows, element by element.

        Args:
            left: Of the earlier rows; all null where there are none.
            right: Of the later rows, of the same length; never without rows.
        """
        ...

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        """Return the values of the aggregate, in the type that Spark gives it."""
        ...
