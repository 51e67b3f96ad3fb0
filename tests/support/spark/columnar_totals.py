"""The totals of each key, in columns."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.spark import ColumnarProcessor


class ColumnarTotals(ColumnarProcessor):
    """Adds up amounts by key, as `Totals` does."""

    def init(self, handle: Any) -> None:
        self.total = handle.getColumnState("total", "total bigint, rows bigint")

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        old = self.total.get(keys)
        sums = np.add.reduceat(rows["amount"].to_numpy(), keys.starts)
        new = {
            "total": old["total"].fill_null(0).to_numpy() + sums,
            "rows": old["rows"].fill_null(0).to_numpy() + keys.counts,
        }
        self.total.put(keys, new)
        yield {"key": keys["key"], **new}

    def initialize(self, keys: Any, rows: Any, times: Any) -> None:
        first = rows.take(keys.starts)
        self.total.put(keys, {"total": first["total"], "rows": pa.array([0] * len(keys))})
