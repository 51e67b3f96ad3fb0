"""
Measure what recording 0.1 % of the keys costs a micro-batch.

Question: by how much is a micro-batch of 100,000 events longer with `record=Record(share=0.001)` than without, for
a processor of Rows and one of pandas frames?

Workload: `w1zipf` of pipeline.py, with staged delivery and the sink `noop`.

Method: one JVM, local[2].  Runs with and without recording take turns, in the order A B B A, each a
new query over the same files; the first micro-batch of each is discarded.  Each micro-batch is
compared with the same micro-batch of the run beside it, which had the same rows and state: the result
is the median of these ratios.  `--rate 0` compares runs without recording with each other, which
shows how much of the ratio is noise.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from columns import RunningTotalInColumns
from pipeline import OUTPUT, RunningTotal, RunningTotalInPandas, machine, noop, write_input
from pyspark.sql import SparkSession

from statelog.demo.java import prepare_environment
from statelog.extensions.columns.rows import ColumnarFormat
from statelog.model import KeyGroupRange
from statelog.spark import transform_with_state, transform_with_state_in_pandas
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import declared_by
from statelog.spark.query.record import Record, RecordSpec
from statelog.spark.rows.formats import PandasRowFormat, SparkRowFormat
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InputLayout
from statelog.spark.rows.pandas_input import PandasSettings
from statelog.spark.rows.types import arrow_schema
from statelog.spark.worker.protocol import BatchContext, TaskAck, TaskRows, TaskSpec, TaskState
from statelog.spark.worker.task import run_task
from statelog.state.keys.key_hash import hash_columns


def run(
    session: SparkSession, flavour: str, data: Path, work: Path, record: Any
) -> list[dict[str, float]]:
    """Run one query over all input; return the times of each micro-batch but the first."""
    progress: list[Any] = []
    in_pandas = flavour == "pandas"
    events = session.readStream.schema("key long, value double").option("maxFilesPerTrigger", 2)
    transform = transform_with_state_in_pandas if in_pandas else transform_with_state
    stream = transform(
        events.parquet(str(data)).groupBy("key"),
        RunningTotalInPandas() if in_pandas else RunningTotal(),
        OUTPUT,
        "Update",
        "None",
        record=Record(share=record or 0.0),
        on_progress=progress.append,
    )
    writer = stream.writeStream.foreachBatch(noop).option("checkpointLocation", str(work))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    times = [batch["durationMs"]["triggerExecution"] for batch in query.recentProgress]
    kept = (
        sum(path.stat().st_size for path in (work / "statelog" / "recordings").rglob("*"))
        if (work / "statelog" / "recordings").exists()
        else 0
    )
    shutil.rmtree(work, ignore_errors=True)
    return [
        {"ms": ms, "record_ms": one.task_milliseconds.get("record", 0.0), "kept_bytes": kept}
        for ms, one in zip(times[1:], progress[1:], strict=True)
    ]


def task_spec(location: str, flavour: str, rate: float) -> TaskSpec:
    """Return the instructions of a task over all key groups, from an empty state."""
    columns = parse_ddl(OUTPUT)
    processor, row_format = {
        "rows": (RunningTotal(), SparkRowFormat()),
        "pandas": (RunningTotalInPandas(), PandasRowFormat(PandasSettings.defaults(), columns)),
        "columns": (RunningTotalInColumns(), ColumnarFormat()),
    }[flavour]
    key = pa.schema([("key", pa.int64())])
    schema, _ = declared_by(processor, "bench", key, parse_ddl, time_mode="none")
    record = None
    if rate:
        record = RecordSpec(
            share=rate, keys=(), batch_bytes=4 << 20, key_bytes=512 << 10, operator_id=""
        )
    return TaskSpec(
        context=BatchContext(processor, 0, "none"),
        rows=TaskRows(
            layout=InputLayout((1,), 1),
            row_format=row_format,
            output=arrow_schema(columns),
        ),
        state=TaskState(location=location, storage_options={}, epoch=1, schema=schema.to_json()),
        checkpoint_id=0,
        base_id=-1,
        restore_id=-1,
        committed=(),
        ranges=(KeyGroupRange(0, 127),),
        snapshots={},
        inline_bytes=1 << 20,
        staged=True,
        extras={} if record is None else {"recordings": record},
    )


def task_input(folder: Path) -> list[pa.RecordBatch]:
    """Return the rows of one micro-batch as a task gets them, in batches of 10,000."""
    return keyed(pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*"))[:2]]))


def keyed(table: pa.Table) -> list[pa.RecordBatch]:
    """Return rows with their key groups, in batches of 10,000."""
    hashes = hash_columns([table.column("key").combine_chunks()], pa.schema([("key", pa.int64())]))
    groups = pa.array((hashes.astype(np.int64) % 128).astype(np.int32))
    whole = table.add_column(0, INPUT_KEY_GROUP_COLUMN, groups).combine_chunks()
    return whole.to_batches(max_chunksize=10_000)


def measure_task(flavour: str, data: Path, work: Path, pairs: int, rate: float) -> dict[str, Any]:
    """Run a task with and without recording in turns; print the ratio of their CPU times."""
    batches = task_input(data)
    specs = [task_spec(f"{work}/task-{flavour}", flavour, each) for each in (0.0, rate)]
    acks: list[TaskAck] = []
    times: list[list[float]] = [[], []]
    for pair in range(-1, pairs):
        for at in (0, 1) if pair % 2 == 0 else (1, 0):
            start = time.process_time()
            for _ in run_task(specs[at], batches, acks.append):
                pass
            if pair >= 0:
                times[at].append((time.process_time() - start) * 1e3)
    ratios = sorted(record / plain for plain, record in zip(*times, strict=True))
    quarter = len(ratios) // 4
    recorded = [each for ack in acks for each in ack.extras.get("recordings", ())]
    found = {
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_quartiles": [round(ratios[quarter], 4), round(ratios[-1 - quarter], 4)],
        "pairs": pairs,
        "cpu_ms_median_plain": round(statistics.median(times[0]), 1),
        "cpu_ms_median_record": round(statistics.median(times[1]), 1),
        "cpu_ms_best_plain": round(min(times[0]), 1),
        "cpu_ms_best_record": round(min(times[1]), 1),
        "keys": acks[-1].count("keys"),
        "recorded_keys": max(each.count for each in recorded),
        "recording_bytes": max(sum(map(len, each.data)) for each in recorded),
    }
    print(f"task {flavour:8} {json.dumps(found)}", flush=True)
    return found


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--flavours", default="rows,pandas")
    parser.add_argument("--task", action="store_true", help="measure one task, without Spark")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    prepare_environment()
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    if arguments.task:
        data = work / "input"
        data.mkdir()
        write_input(data, 1, arguments.events)
        found = {
            flavour: measure_task(flavour, data, work, arguments.pairs, arguments.rate)
            for flavour in arguments.flavours.split(",")
        }
        shutil.rmtree(work, ignore_errors=True)
        if arguments.json:
            result = {"machine": machine(), "task": found}
            arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return 0
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statelog bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    result: dict[str, Any] = {"machine": machine(), "arguments": vars(arguments) | {"json": ""}}
    try:
        data = work / "input"
        data.mkdir()
        write_input(data, arguments.batches, arguments.events)
        for flavour in arguments.flavours.split(","):
            result[flavour] = measure(session, flavour, data, work, arguments)
    finally:
        session.stop()
        shutil.rmtree(work, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(
    session: SparkSession, flavour: str, data: Path, work: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run pairs of one flavour, and print the ratio."""
    record = arguments.rate or None
    run(session, flavour, data, work / "warm", record)
    ratios, plain, recording = [], [], []
    for pair in range(arguments.pairs):
        order = (None, record) if pair % 2 == 0 else (record, None)
        both = {}
        for at, each in enumerate(order):
            side = "plain" if (at == 0) == (pair % 2 == 0) else "record"
            both[side] = run(session, flavour, data, work / f"{flavour}-{pair}-{side}", each)
        plain += both["plain"]
        recording += both["record"]
        ratios += [
            one["ms"] / other["ms"]
            for one, other in zip(both["record"], both["plain"], strict=True)
        ]
        print(
            f"{flavour} pair {pair}: {statistics.median(ratios):.3f}", file=sys.stderr, flush=True
        )
    ratios.sort()
    quarter = len(ratios) // 4
    found = {
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_quartiles": [round(ratios[quarter], 4), round(ratios[-1 - quarter], 4)],
        "micro_batches": len(ratios),
        "ms_median_plain": statistics.median(one["ms"] for one in plain),
        "ms_median_record": statistics.median(one["ms"] for one in recording),
        "record_phase_ms_median": round(
            statistics.median(one["record_ms"] for one in recording), 2
        ),
        "kept_bytes_per_run": statistics.median(one["kept_bytes"] for one in recording),
    }
    print(f"{flavour:8} {json.dumps(found)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
