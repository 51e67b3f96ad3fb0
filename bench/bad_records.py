"""
Measure what leaving bad records out costs a task.

Question: by how much does a micro-batch of 100,000 rows take longer with `onError="dead-letter"`, without a bad
row, and where 0.1 % and 5 % of the rows are bad?

Workload: `w1zipf` of pipeline.py, all key groups in one task, from an empty state.  The processor raises for a
bad row.

Method: the task runs in this process.  The variants run alternately, in an order that reverses each time, and
each round compares them with the run of `onError="fail"` next to them.  Times are CPU times.  The output is
compared with the sums of the keys that have no bad row.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pipeline import RunningTotal, machine, write_input
from pyspark.sql import Row
from record import keyed, task_spec

from statelog.extensions.bad_records.dead_letters import BAD_RECORDS, failures_of
from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.spark.worker.task import run_task

BAD = -1.0
SHARES = {"none": 0.0, "0.1 %": 0.001, "5 %": 0.05}


class CheckedTotal(RunningTotal):
    """`RunningTotal` that does not take some values."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows of one key."""
        state = self._total.get()
        n, total = state if state is not None else (0, 0.0)
        for row in rows:
            if row.value == BAD:
                raise ValueError(f"{row.value} cannot be added")
            n += 1
            total += row.value
        self._total.update((n, total))
        yield Row(key=key[0], n=n, total=total)


def with_bad_rows(table: pa.Table, share: float) -> pa.Table:
    """Return rows with bad ones among them."""
    bad = np.random.default_rng(1).random(table.num_rows) < share
    values = pc.if_else(pa.array(bad), BAD, table.column("value"))
    return table.set_column(table.column_names.index("value"), "value", values)


def expected(table: pa.Table) -> tuple[int, float]:
    """Return the number of the keys without a bad row, and the sum of their values."""
    keys = table.group_by("key").aggregate([("value", "sum"), ("value", "min")])
    good = keys.filter(pc.not_equal(keys.column("value_min"), BAD))
    return good.num_rows, pc.sum(good.column("value_sum")).as_py()


def run(spec: TaskSpec, batches: list[pa.RecordBatch]) -> tuple[float, TaskAck, pa.Table]:
    """Run the task; return its CPU time in milliseconds, its answer and its output."""
    acks: list[TaskAck] = []
    start = time.process_time()
    output = list(run_task(spec, batches, acks.append))
    return (time.process_time() - start) * 1e3, acks[-1], pa.Table.from_batches(output)


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    write_input(work, 1, arguments.events)
    table = pa.concat_tables([pq.read_table(path) for path in sorted(work.glob("*"))[:2]])
    plain = task_spec(f"{work}/state", "rows", 0.0)
    plain = replace(plain, staged=False, context=replace(plain.context, processor=CheckedTotal()))
    policy = ErrorPolicy(keeps_letters=True, most=MaxErrors(1 << 30))
    tables = {name: with_bad_rows(table, share) for name, share in SHARES.items()}
    variants = {
        name: (replace(plain, extras={BAD_RECORDS: policy}), keyed(rows))
        for name, rows in tables.items()
    }
    variants["fail"] = plain, keyed(table)
    times: dict[str, list[float]] = {name: [] for name in variants}
    failed: dict[str, int] = {}
    try:
        for number in range(-1, arguments.rounds):
            for name in list(variants)[:: 1 if number % 2 else -1]:
                ms, ack, output = run(*variants[name])
                count, total = expected(tables.get(name, table))
                assert output.num_rows == count
                assert abs(pc.sum(output.column("total")).as_py() - total) < 1e-6 * total
                if number >= 0:
                    times[name].append(ms)
                    failed[name] = failures_of(ack).keys
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result: dict[str, Any] = {}
    for name, mine in times.items():
        ratios = sorted(one / other for one, other in zip(mine, times["fail"], strict=True))
        quarter = len(ratios) // 4
        result[name] = {
            "ratio_median": round(statistics.median(ratios), 3),
            "ratio_quartiles": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
            "cpu_ms_median": round(statistics.median(mine), 1),
            "cpu_ms_best": round(min(mine), 1),
            "failed_keys": failed[name],
        }
        print(f"{name:6} {json.dumps(result[name])}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
