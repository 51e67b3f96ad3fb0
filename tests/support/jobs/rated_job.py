"""A job that reads broadcast rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.poisoned_keys import output_of
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import COLUMNS

from statelog.checkpoint.attachments import Attachment, of_kinds
from statelog.checkpoint.batch_record import BatchRecord
from statelog.extensions.broadcasts.stored import BROADCAST
from statelog.extensions.broadcasts.tables import Broadcast
from statelog.spark.query.settings import QuerySettings

OUTPUT = "k string, value long, factor long"


class Rated(StatefulProcessor):
    """Multiplies each number by the factor of its operation; 0 fails."""

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long")
        self.rules = handle.broadcast("rules")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (total,) = self.sum.get() or (0,)
        for row in rows:
            (rule,) = self.rules.by("op")[row.op]
            if not rule.factor:
                raise ArithmeticError(f"no factor of {row.op}")
            total += row.n * rule.factor
            yield Row(k=key[0], value=row.n * rule.factor, factor=rule.factor)
        self.sum.update((total,))


@dataclass
class RatedJob:
    """A `RecordedJob` with a table of rules; a new one continues as a new run."""

    location: str
    factor: int = 1
    repeated: int | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        broadcast = Broadcast(self.table, **self.source)
        self.job = RecordedJob(
            self.location, Rated(), COLUMNS, OUTPUT, None, "none", **self.options,
            settings=QuerySettings(broadcast={"rules": broadcast}),
            repeated=self.repeated, clock=lambda: self.clock_s,
        )  # fmt: skip

    def table(self) -> list[Row]:
        return [Row(op=op, factor=self.factor) for op in ("add", "put")]

    def run(self, rows: list[tuple[str, str, int]]) -> set[int]:
        """Run a micro-batch, and return the factors that it saw."""
        acks = self.job.run(rows)
        return {int(row.rpartition(": ")[2].rstrip("}")) for row in output_of(self.job, acks)}

    @property
    def versions(self) -> tuple[Attachment, ...]:
        assert self.job.base is not None
        return of_kinds(BatchRecord.of(self.job.base).attachments, BROADCAST)

    def objects(self) -> set[str]:
        return {info.path for info in self.job.store.list("broadcasts")}


ROWS = [("a", "add", 1), ("b", "put", 2), ("c", "add", 3)]
