"""The location that the page docs/how-to/read-state.md reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.recorded_job import RecordedJob


class Totals(StatefulProcessor):
    """Stores a total and the orders of one country; the number of a row decides both."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total double")
        self.countries = handle.getMapState("countries", "country string", "orders bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.total.update((10.0 * (1 + row.n),))
            self.countries.updateValue(("DE",), (row.n,))
        return iter(())


def write(location: Path, checkpoints: int) -> None:
    """Write so many checkpoints; in each the total of c42 grows by 10, and one key is new."""
    job = RecordedJob(str(location), Totals(), "customer string, n long", "customer string", None)
    for checkpoint_id in range(1, checkpoints + 1):
        job.run([("c42", checkpoint_id), (f"c{100 + checkpoint_id}", checkpoint_id - 1)])
        assert job.base is not None and checkpoint_id == job.base.checkpoint_id
