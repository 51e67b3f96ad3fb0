"""
The approximate number of distinct values, as a HyperLogLog sketch.

Spark's `hll_sketch_agg` and the package `datasketches` are the same library in two languages with one
format: Spark makes the sketches of a micro-batch, and the tasks unite them with those of the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.types import DataType, IntegerType, LongType

from statelog.errors import UsageError
from statelog.extras import load, require
from statelog.spark.aggregate.extremes import check_ordered
from statelog.spark.aggregate.kind import Parts

_LEAST, _MOST = 4, 21  # of Spark's hll_sketch_agg
_HASHED = "CASE WHEN {0} IS NOT NULL THEN xxhash64({0}) END"


def log_of_buckets(rsd: float) -> int:
    """Return log2 of the number of buckets for a relative standard deviation, if a sketch has it."""
    log_buckets = math.ceil(2 * math.log2(1.04 / rsd)) if 0 < rsd < 1 else 0
    if rsd >= 1 or rsd <= 0 or log_buckets > _MOST:
        raise UsageError(
            f"approx_count_distinct: rsd={rsd!r}; the relative standard deviation is a number from "
            f"{1.04 / 2 ** (_MOST / 2):.4f} to below 1"
        )
    return max(log_buckets, _LEAST)


@dataclass(frozen=True, slots=True)
class DistinctCount:
    """
    The approximate number of distinct values that are not null.

    Args:
        log_buckets: Base 2 logarithm of the number of buckets.
        conversion: SQL that makes of the argument, `{0}`, a type that Spark's sketch takes.
    """

    log_buckets: int
    title: str = "approx_count_distinct"
    conversion: str = "{0}"

    def bind(self, types: Sequence[DataType], *, is_ansi: bool) -> Self:
        require(self.title, "sketches", "datasketches")
        (kind,) = types
        check_ordered(self.title, kind, "counts")
        # Sketches take whole numbers and text, and leave out the empty text; a hash stands for all else.
        is_whole = isinstance(kind, IntegerType | LongType)
        return replace(self, conversion="{0}" if is_whole else _HASHED)

    def whole(self, arguments: Sequence[str]) -> str:
        return f"hll_sketch_estimate({self.partials(arguments)['']})"

    def partials(self, arguments: Sequence[str]) -> Mapping[str, str]:
        value = self.conversion.format(arguments[0])
        return {"": f"hll_sketch_agg({value}, {self.log_buckets})"}

    def combine(self, left: Parts, right: Parts) -> Parts:
        sketches = load(self.title, "sketches", "datasketches")
        united: list[bytes] = []
        for old, new in zip(left[""].to_pylist(), right[""].to_pylist(), strict=True):
            united.append(new if old is None else self._united(sketches, old, new))
        return {"": pa.array(united, left[""].type)}

    def _united(self, sketches: Any, old: bytes, new: bytes) -> bytes:
        union = sketches.hll_union(self.log_buckets)
        union.update(sketches.hll_sketch.deserialize(old))
        union.update(sketches.hll_sketch.deserialize(new))
        # 4 bits a bucket: half the bytes in state and log.
        sketch: bytes = union.get_result(sketches.tgt_hll_type.HLL_4).serialize_compact()
        return sketch

    def result(self, state: Parts, kind: pa.DataType) -> pa.Array:
        sketch = load(self.title, "sketches", "datasketches").hll_sketch
        estimates = [
            math.floor(sketch.deserialize(data).get_estimate() + 0.5)
            for data in state[""].to_pylist()
        ]
        return pa.array(estimates, kind)
