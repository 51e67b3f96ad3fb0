"""
Make `spark.read.format("statelog")` known to Spark.

Spark imports every package `pyspark_<name>` that it finds when a query first names a format that is
not its own, and an error then would fail the formats of others too.  So this module imports little;
what reads state is imported when a query asks for it: `statelog.extensions.spark_source`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from statelog.extensions.spark_source import StateSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """
    The state of a query on statelog, as a frame that Spark reads.

    The options are fields of `statelog.extensions.spark_source.options.SourceOptions`.
    """

    _source: StateSource | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "statelog"

    def schema(self) -> StructType:
        """Return the columns; this is where the checkpoint is chosen."""
        with _sentence_first():
            return self._opened().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads rows with these columns."""
        with _sentence_first():
            return self._opened().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads rows with these columns as a stream."""
        # With its traceback: Spark's worker fails again while it handles an error of this call, and
        # reports the message of that one alone.
        return self._opened().stream(schema)

    def _opened(self) -> StateSource:
        # Spark pickles this object after `schema`, so all that follows has the same checkpoint.
        if self._source is None:
            from statelog.extensions.spark_source import StateSource

            self._source = StateSource(dict(self.options))
        return self._source


@contextlib.contextmanager
def _sentence_first() -> Iterator[None]:
    """
    Let Spark report an error of statelog by its message, without a traceback before it.

    The worker process that reports an error ends with it, so the setting is that of this error.
    """
    try:
        yield
    except Exception as error:
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        is_worker = main is not None and main.name.startswith("pyspark.")
        if is_worker and any(kind.__module__ == "statelog.errors" for kind in type(error).__mro__):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
