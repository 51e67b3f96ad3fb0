"""
What a part of the input did is dropped where one of its keys fails, and its other keys run again.

There are many keys here; the model of `side_outputs.test_worker` has few.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.poisoned_keys import (
    LETTERS,
    SKIP,
    output_of,
)
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import OUTPUT

from statelog.extensions.bad_records.dead_letters import failures_of
from statelog.model.handles import FileStateHandle
from statelog.runtime.clock import RandomIds
from statelog.spark.rows.spark_row import RowOutput
from statelog.spark.rows.types import from_ipc
from statelog.spark.worker import output_parts
from statelog.spark.worker.output_parts import DirectOutput, OutputFiles, StagedOutputParts
from statelog.spark.worker.spill_file import SpillFile

pytestmark = pytest.mark.job

MANY = [f"key {number}" for number in range(150)]


class Counts(StatefulProcessor):
    """Counts how often each key was handled; fails for a number below zero."""

    calls: Counter[str]

    def init(self, handle: Any) -> None:
        type(self).calls = Counter()
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        type(self).calls[key[0]] += 1
        total = sum(row.n for row in rows)
        self.total.update((total,))
        yield Row(k=key[0], what="total", n=total)
        if total < 0:
            raise ValueError("below zero")


def counting_job(folder: Path, **options: Any) -> RecordedJob:
    return RecordedJob(
        str(folder), Counts(), "k string, n long", OUTPUT, None, errors=SKIP, **options
    )


def test_each_call_is_made_once_in_a_part_without_a_failure(tmp_path: Path) -> None:
    job = counting_job(tmp_path)
    job.run([(key, 1) for key in MANY])
    assert {1} == set(Counts.calls.values())
    (ack,) = job.run([(key, -1 if key == "key 7" else 1) for key in MANY])
    assert 1 == failures_of(ack).keys
    assert 2 <= min(Counts.calls.values()) + 1
    assert 3 >= max(Counts.calls.values())


class ChangesRows(StatefulProcessor):
    """Changes what it gets, in place."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            row.items.append(100)
            if row.items[0] < 0:
                raise ValueError("below zero")
            yield Row(k=key[0], what="sum", n=sum(row.items))


class ChangesFrames(ChangesRows):
    """The same over frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            cells = frame["n"].to_numpy()
            cells.flags.writeable = True
            cells += 100
            if cells[0] < 100:
                raise ValueError("below zero")
            yield pd.DataFrame({"k": [key[0]], "what": ["sum"], "n": [int(cells.sum())]})


@pytest.mark.parametrize("errors", [LETTERS, SKIP])
def test_a_repeated_call_gets_the_rows_as_they_were(tmp_path: Path, errors: Any) -> None:
    rows = [(key, [1, -1] if key != "key 9" else [-1]) for key in MANY]
    nested = RecordedJob(
        str(tmp_path / "rows"), ChangesRows(), "k string, items array<long>", OUTPUT, None,
        "none", errors=errors,
    )  # fmt: skip
    output = output_of(nested, nested.run(rows))
    assert 149 == len(output) == sum("'n': 100}" in row for row in output)
    frames = RecordedJob(
        str(tmp_path / "frames"), ChangesFrames(), "k string, n long", OUTPUT, None, "none",
        pandas=True, errors=errors,
    )  # fmt: skip
    output = output_of(frames, frames.run([(key, 1 if key != "key 9" else -1) for key in MANY]))
    assert 149 == sum("'n': 101}" in row for row in output)


# ------------------------------------------------------------------------------------ collectors


@pytest.mark.parametrize("is_staged", [False, True])
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["rows", "rows", "flush", "mark", "keep", "drop", "many"]), max_size=60
    )
)
def test_output_that_is_not_dropped_is_delivered(is_staged: bool, steps: list[str]) -> None:
    """At a mark all rows are converted, as a run does it."""
    schema = pa.schema([("n", pa.int64())])
    stored: dict[str, bytes] = {}

    def put(new_path: Any, data: Any) -> str:
        path: str = new_path()
        stored[path] = bytes(data)
        return path

    rows = RowOutput(schema, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_parts, "_HELD_BYTES", 300)
        patch.setattr(output_parts, "_JOINED", 4)
        file = SpillFile()
        output: Any = DirectOutput(rows, lambda _batch: None, schema, file)
        if is_staged:
            files = OutputFiles(put, RandomIds(), lambda path: stored.pop(path) and None)  # type: ignore[arg-type, func-returns-value]
            output = StagedOutputParts(rows, lambda _batch: None, schema, files, 0)
        expected: list[int] = []
        marks: list[int] = []
        for number, step in enumerate(steps):
            if step in ("rows", "many"):
                added = range(number * 1000, number * 1000 + (50 if step == "many" else 3))
                output.extend([Row(n=item) for item in added])
                expected += added
            elif step == "flush":
                output.flush()
            elif step == "mark":
                output.flush()
                output.mark()
                marks.append(len(expected))
            elif step == "keep" and marks:
                output.flush()
                output.keep()
                marks.pop()
            elif step == "drop" and marks:
                output.roll_back()
                del expected[marks.pop() :]
        output.flush()
        assert len(expected) == output.row_count
        if not is_staged:
            tables = [pa.Table.from_batches([batch]) for batch in output.batches()]
        else:
            handles: Any = output.staged() or ()
            assert all(isinstance(handle, FileStateHandle) for handle in handles)
            assert set(stored) == {handle.path for handle in handles}
            tables = [from_ipc(stored[handle.path]) for handle in handles]
            assert [table.num_rows for table in tables] == output.file_rows
        assert expected == [n for table in tables for n in table.column("n").to_pylist()]
        file.close()
