"""The commands of pages that name the location of a query run on such a location."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.house.sources import ROOT
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import steps_job
from tests.support.locations.read_state_page import write
from tests.support.project.snippets import PREPARED, blocks, call, pages, run_blocks

from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors
from statelog.extensions.broadcasts.tables import Broadcast
from statelog.spark.query.record import Record
from statelog.spark.query.settings import QuerySettings

pytestmark = pytest.mark.job

CORRECTED = """
from tests.support.jobs.recorded_processors import Steps


class Totals(Steps):
    def do(self, op, n, now):
        super().do("add" if op == "fail" else op, n, now)
"""


class Checked(StatefulProcessor):
    """Rejects numbers above a limit."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.limits = handle.broadcast("limits")
        self.rejected = handle.sideOutput("rejected", "customer string, n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.n > self.limits.rows[0].most:
                self.rejected.emit(Row(customer=key[0], n=row.n))
        return iter(())


def bad_records(folder: Path) -> None:
    job = steps_job(
        folder / "bucket/jobs/totals",
        operator_id="transform_with_state",
        errors=ErrorPolicy(True, MaxErrors(1000), freezes=True),
    )
    job.run([("c42", "add", 1), ("c7", "add", 2)])
    job.run([("c42", "fail", 3)])
    (folder / "jobs").mkdir()
    (folder / "jobs/totals.py").write_text(CORRECTED)


def checked(location: Path) -> None:
    limits = pa.table({"most": [5]})
    job = RecordedJob(
        str(location), Checked(), "customer string, n long", "customer string", None,
        settings=QuerySettings(broadcast={"limits": Broadcast(lambda: limits)}),
        operator_id="transform_with_state", time_mode="none",
    )  # fmt: skip
    for number in range(41):
        job.run([("c42", number)])


def recorded(folder: Path) -> None:
    job = steps_job(
        folder / "checkpoint/statelog", None, Record(keys=["a"]), operator_id="transform_with_state"
    )
    for _ in range(3):
        job.run([("a", "add", 1), ("b", "add", 1)])
    program = "from tests.support.jobs.recorded_processors import Steps as FraudRule\n"
    (folder / "fraud.py").write_text(program)


def reminders(folder: Path) -> None:
    steps_job(folder / "bucket/jobs/reminders").run([("ann", "timer", 4)])


def files_to_edit(folder: Path) -> None:
    location = folder / "bucket/jobs/totals"
    write(location, 3)
    file = folder / "totals.parquet"
    call(["statelog", "read", str(location), "total", "--to", str(file)])
    table = pq.read_table(file)
    keys = table.select([name for name in table.column_names if name.startswith("key.")])
    pq.write_table(keys.slice(0, 1), folder / "closed.parquet")


PREPARATIONS: dict[str, Callable[[Path], None]] = {
    "docs/how-to/bad-records.md": bad_records,
    "docs/how-to/broadcast-rules.md": lambda folder: checked(folder / "bucket/jobs/alerts"),
    "docs/how-to/move-and-edit-state.md": files_to_edit,
    "docs/how-to/replay.md": recorded,
    "docs/how-to/side-outputs.md": lambda folder: checked(folder / "bucket/jobs/totals"),
    "docs/how-to/timer-does-not-fire.md": reminders,
}


def test_each_page_with_such_a_block_is_run():
    marked = {block.page for path in pages() for block in blocks(path) if block.no_run == PREPARED}
    assert set(PREPARATIONS) == marked


@pytest.mark.parametrize("page", PREPARATIONS)
def test_the_commands_of_the_page_run_on_a_location(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    PREPARATIONS[page](tmp_path)
    prepared = [block for block in blocks(ROOT / page) if block.no_run == PREPARED]
    run_blocks(prepared, tmp_path, {"__name__": "snippets"})
