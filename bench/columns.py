"""Column processors and `aggregate` for the benchmarks, where this version of statelog has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

try:
    from statelog.spark import ColumnarProcessor
except ImportError:
    ColumnarProcessor = None
try:
    from statelog.spark import aggregate
except ImportError:
    aggregate = None

NO_COLUMNS = "this version has no ColumnarProcessor"
NO_AGGREGATE = "this version has no aggregate"
_Base: Any = object if ColumnarProcessor is None else ColumnarProcessor


class RunningTotalInColumns(_Base):
    """Count and sum per key, a column at a time, without pre-aggregation."""

    columns = ("value",)

    def init(self, handle: Any) -> None:
        """Declare one column state."""
        self._total = handle.getColumnState("total", "n long, total double")

    def process(self, keys: Any, rows: pa.Table, times: Any) -> Iterator[pa.Table]:
        """Add the rows of all keys of a task."""
        old = self._total.get(keys)
        values = rows["value"].to_numpy()
        n = _filled(old["n"]) + keys.counts
        total = _filled(old["total"]) + np.add.reduceat(values, keys.starts)
        new = pa.table({"n": n, "total": total})
        self._total.put(keys, new)
        yield pa.table({"key": keys.table["key"], "n": new["n"], "total": new["total"]})


def _filled(column: Any) -> np.ndarray:
    return pc.fill_null(column, 0).to_numpy()


def aggregated(grouped: Any, report: Any, delivery: str) -> Any:
    """Return the same totals by `aggregate`, which calls a function with each micro-batch's report."""
    from statelog.spark import functions as F

    return aggregate(
        grouped,
        F.count().alias("n"),
        F.sum("value").alias("total"),
        delivery=delivery,
        on_progress=report,
    )
