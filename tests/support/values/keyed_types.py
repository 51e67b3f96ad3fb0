"""
Keys and values of all types, in a time zone, and the processors that count them.

What a query over all micro-batches gives is compared with Spark's `groupBy` over all rows.
"""

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from math import inf, nan
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.values.time_zones import REPEATED_HOURS

from statelog.spark import ColumnarProcessor

FLOATS = [0.0, -0.0, nan, 1.5, -inf]
TYPES = {
    "int": "int",
    "long": "bigint",
    "double": "double",
    "float": "float",
    "text": "string",
    "raw": "binary",
    "flag": "boolean",
    "day": "date",
    "at": "timestamp",
    "clock": "timestamp_ntz",
    "price": "decimal(38,18)",
    "pair": "struct<at: timestamp, x: double>",
    "list": "array<double>",
    "deep": "array<struct<at: timestamp, x: float>>",
}
"""By name of a type: its DDL."""
MAP_KEYS = [name for name in TYPES if name not in ("list", "deep")]
"""The types that a map of Spark's state takes as its key."""


def pools(zone: str) -> dict[str, list[Any]]:
    """Return a few values of each type, those that are easily confused among them."""
    moments = [
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=since_1970)
        for since_1970 in REPEATED_HOURS[zone]
    ]
    return {
        "int": [0, 1, -(2**31)],
        "long": [0, -1, 2**63 - 1],
        "double": FLOATS,
        "float": FLOATS,
        "text": ["", "a", "A", "\x00", "🙂"],
        "raw": [b"", b"\x00", b"a"],
        "flag": [True, False],
        "day": [moment.date() for moment in moments[:1]] + [dt.date(1582, 10, 15)],
        "at": moments,
        "clock": [moment.replace(tzinfo=None) for moment in moments],
        "price": [Decimal(0), Decimal("0.000000000000000001"), Decimal(-1)],
        "pair": [{"at": at, "x": x} for at in (*moments[:5], None) for x in FLOATS[:3]],
        "list": [[], [0.0], [-0.0], [nan, None]],
        "deep": [[{"at": at, "x": x}] for at in moments[:5] for x in FLOATS[:2]],
    }


def value_of(rng: random.Random, pool: Sequence[Any]) -> Any:
    return None if rng.random() < 0.15 else rng.choice(pool)


class Counts(StatefulProcessor):
    """Counts the rows of each key, and of each value in a map; shows the last value."""

    def __init__(self, value: str, kind: str) -> None:
        self.value, self.kind = value, kind

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", f"n bigint, last {self.kind}")
        self.seen = handle.getMapState("seen", f"value {self.kind}", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0, None))[0]
        for row in rows:
            value, n = row[self.value], n + 1
            self.count.update((n, value))
            seen = self.seen.getValue((value,))
            self.seen.updateValue((value,), ((seen[0] if seen else 0) + 1,))
        for (value,), (times,) in self.seen.iterator():
            yield Row(key=key[0], n=n, value=value, times=times)


class LatestColumns(ColumnarProcessor):
    """Counts the rows of each key, and keeps the values of the row with the greatest number."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def init(self, handle: Any) -> None:
        fields = ", ".join(f"v_{name} {TYPES[name]}" for name in self.names)
        self.latest = handle.getColumnState("latest", f"n bigint, number bigint, {fields}")

    def process(self, keys: Any, rows: Any, times: Any) -> Iterator[Any]:
        numbers = rows["number"].to_numpy()
        order = np.lexsort((numbers, keys.row_keys()))
        newest = rows.take(pa.array(order[keys.ends - 1]))
        old = self.latest.get(keys)
        is_new = pa.compute.greater(newest["number"], old["number"].fill_null(-1))
        newest_values = {
            name: pa.compute.if_else(is_new, newest[name], old[name])
            for name in ["number", *(f"v_{name}" for name in self.names)]
        }
        n = pa.compute.add(old["n"].fill_null(0), pa.array(keys.counts))
        self.latest.put(keys, {"n": n, **newest_values})
        yield {"key": keys.table.column(0), "n": n, **newest_values}


def in_text(rows: Sequence[Row], *, close: Sequence[str] = ()) -> list[str]:
    """
    Return rows as texts, in order, so that NaN equals itself.

    Only a key shows the sign of its zeros: Spark takes the one or the other for the extreme of two.
    """
    return sorted(
        "; ".join(
            f"{name}={_text(value, is_key=name == 'key')}"
            for name, value in row.asDict().items()
            if name not in close
        )
        for row in rows
    )


def _text(value: Any, *, is_key: bool) -> str:
    if isinstance(value, Row | tuple):
        return f"({', '.join(_text(part, is_key=is_key) for part in value)})"
    if isinstance(value, list):
        return f"[{', '.join(_text(part, is_key=is_key) for part in value)}]"
    if isinstance(value, float) and not is_key:
        return repr(value + 0.0)
    return repr(value)
