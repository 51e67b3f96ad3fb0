"""A stream with aggregates, and the same in one frame."""

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from tests.support.spark.streams import BatchSource, run_to_end

from statelog.spark import Aggregate, aggregate
from statelog.spark import functions as F

COLUMNS = (
    "name string, place int, whole int, tiny tinyint, big bigint, price decimal(10,2), ratio double, "
    "part float, text string, flag boolean, day date, at timestamp, raw binary"
)
FUNCTIONS: dict[str, tuple[Aggregate, str]] = {
    "n": (F.count(), "count(*)"),
    "known": (F.count("whole"), "count(whole)"),
    "ints": (F.sum("whole"), "sum(whole)"),
    "tinies": (F.sum("tiny"), "sum(tiny)"),
    "prices": (F.sum("price"), "sum(price)"),
    "ratios": (F.sum("ratio"), "sum(ratio)"),
    "parts": (F.sum("part"), "sum(part)"),
    "mean_int": (F.mean("whole"), "avg(whole)"),
    "mean_price": (F.mean("price"), "avg(price)"),
    "spread": (F.variance("ratio"), "var_samp(ratio)"),
    "least": (F.min("ratio"), "min(ratio)"),
    "most": (F.max("part"), "max(part)"),
    "least_text": (F.min("text"), "min(text)"),
    "most_price": (F.max("price"), "max(price)"),
    "most_flag": (F.max("flag"), "max(flag)"),
    "least_day": (F.min("day"), "min(day)"),
    "most_at": (F.max("at"), "max(at)"),
    "most_raw": (F.max("raw"), "max(raw)"),
    "first_text": (F.first("text", by="big"), "min_by(text, big)"),
    "last_text": (F.last("text", by="big"), "max_by(text, big)"),
    "row": (F.latest_row("big"), "max_by(struct(*), big)"),
    "some": (F.latest_row("big", "text", "at"), "max_by(struct(text, at), big)"),
    "top": (
        F.top_k("text", 3, by="ratio"),
        "transform(slice(sort_array(collect_list(CASE WHEN ratio IS NOT NULL THEN "
        "struct(ratio, text) END), false), 1, 3), x -> x.text)",
    ),
    "greatest": (F.top_k("whole", 2), "slice(sort_array(collect_list(whole), false), 1, 2)"),
}
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


def rows_of(rng: random.Random, size: int, first_number: int) -> list[tuple[Any, ...]]:
    """Return rows; `big` is different in each, all sums are exact, a third of all values is null."""

    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.7 else None

    numbers = rng.sample(range(first_number, first_number + 10_000), size)
    return [
        (
            maybe(f"k{rng.randrange(6)}"),
            maybe(rng.randrange(3)),
            maybe(rng.randrange(-(2**31), 2**31)),
            maybe(rng.randrange(-128, 128)),
            number if rng.random() < 0.9 else None,
            maybe(Decimal(rng.randrange(-(10**9), 10**9)) / 100),
            maybe(rng.choice([rng.randrange(-800, 800) / 8, -0.0, 0.0])),
            maybe(rng.randrange(-800, 800) / 8),
            maybe("".join(rng.choices("aäz 🙂", k=rng.randrange(3)))),
            maybe(rng.random() < 0.5),
            maybe((NOON + timedelta(days=rng.randrange(-9000, 9000))).date()),
            maybe(NOON + timedelta(microseconds=rng.randrange(-(10**15), 10**15))),
            maybe(bytes(rng.choices(range(256), k=2))),
        )
        for number in numbers
    ]


class Query:
    """A query over a source that is run again and again."""

    def __init__(self, source: BatchSource, folder: Path, **settings: Any) -> None:
        self.source = source
        self.folder = folder
        self.settings = {"stateLocation": str(folder / "state"), **settings}

    def run(self, *keys: Any, rows: DataFrame | None = None, **changes: Any) -> list[list[Row]]:
        frame = self.source.frame() if rows is None else rows
        settings = {**self.settings, **changes}
        names = [name for name, value in settings.items() if isinstance(value, Aggregate)]
        aggregates = [settings.pop(name).alias(name) for name in names]
        out = aggregate(frame.groupBy(*keys), *aggregates, **settings)
        return [batch for batch in run_to_end(out, self.folder / "query") if batch]


def functions_of(table: dict[str, tuple[Aggregate, str]]) -> dict[str, Aggregate]:
    return {name: function for name, (function, _) in table.items()}


def columns_of_spark(table: dict[str, tuple[Aggregate, str]]) -> list[Column]:
    """Return the same aggregates as columns of Spark."""
    return [sf.expr(sql).alias(name) for name, (_, sql) in table.items()]
