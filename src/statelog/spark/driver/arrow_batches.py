"""
Let Spark cut the rows of Python jobs into Arrow batches without measuring them.

Before it writes a row, Spark adds up the buffers of the batch, to end it at a number of bytes.  That
takes longer than to write a row of two numbers.  Where every column has a fixed width, the number of
rows says that the bytes are not reached, and here Spark is told so.  Columns of text, binary data,
arrays and maps are measured as before: a batch of long texts could be too large for the worker.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statelog.spark.query.session import is_connect, with_setting
from statelog.spark.rows.arrow_limits import MAX_BYTES, NO_LIMIT, ArrowLimits, row_bytes
from statelog.spark.rows.types import arrow_schema


class ArrowBatches:
    """
    The batches of the Python jobs of one query.

    Thread: Spark's thread of the query.
    """

    def __init__(self) -> None:
        self._fit: dict[Hashable, bool] = {}

    @contextmanager
    def not_measured(self, rows: DataFrame, columns: Hashable) -> Iterator[None]:
        """
        Let Spark only count the rows of a batch, in the jobs that run meanwhile.

        That holds for all jobs of the session.  Nothing changes where a batch may reach the limit in
        bytes, where the user has set that limit, and on Connect, where the session may be the
        user's own.

        Args:
            rows: The input of the job.
            columns: The same for all inputs that have the same columns.
        """
        if is_connect(rows):
            yield
            return
        session = rows.sparkSession
        if columns not in self._fit:
            self._fit[columns] = _fits(session, rows)
        if not self._fit[columns]:
            yield
            return
        with with_setting(session, MAX_BYTES, str(NO_LIMIT), unless_set=True):
            yield


def _fits(session: SparkSession, rows: DataFrame) -> bool:
    """Return whether batches of these rows stay below the limit in bytes."""
    try:
        size = row_bytes(arrow_schema(rows.schema))
    except PySparkException:  # a type that Arrow lacks: an error where the job is made
        return False
    if size is None:
        return False
    limits = ArrowLimits.of(session)
    return limits.records < NO_LIMIT and limits.records * size <= limits.size
