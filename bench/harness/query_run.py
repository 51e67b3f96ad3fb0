"""Run a streaming query over the files of a benchmark, for a bounded time."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.harness.results import Run
from pyspark.sql import DataFrame, SparkSession

_POLL_S = 0.2
_WARM_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """
    How long a query runs.

    Args:
        seconds: After this time the query is stopped, unless it has fewer micro-batches than *least*.
        least: Micro-batches to measure, the first one not counted.
        most_seconds: After this time it is stopped in any case.
        batches: Micro-batches with rows after which it is stopped: in processing time Spark goes on with
            micro-batches without data, also with `availableNow`.
    """

    seconds: float = 120.0
    least: int = 2
    most_seconds: float = 600.0
    batches: int = 1 << 30


def warm_up(seconds: float) -> Bounds:
    """
    Return the bounds of a run that does not count: no more than the *seconds* of a run that does.

    Spark's JVM compiles for its first minutes, on the cores that a micro-batch needs.
    """
    return Bounds(min(_WARM_UP_S, seconds), least=1)


def noop(frame: DataFrame, batch_id: int) -> None:
    """Evaluate the output and drop it."""
    frame.write.format("noop").mode("append").save()


def same_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what comes in: the least that a Python job does."""
    yield from batches


def one_python_job(frame: DataFrame, batch_id: int) -> None:
    """Evaluate a micro-batch in one Python job that does nothing: what Spark itself needs for one."""
    noop(frame.coalesce(1).mapInArrow(same_rows, frame.schema), batch_id)


def run_query(writer: Any, work: Path, bounds: Bounds) -> Run:
    """
    Run a query with `availableNow`, and return the facts of its micro-batches but the first.

    Args:
        writer: The writer of the stream, with its sink.
        work: The checkpoint location, a new folder; the state is below it.
        bounds: When to stop.

    Raises:
        RuntimeError: The query ended before it had a micro-batch to measure.
    """
    began = time.monotonic()
    writer = writer.option("checkpointLocation", str(work)).trigger(availableNow=True)
    query = writer.start()
    while not query.awaitTermination(_POLL_S):
        if _is_over(query, time.monotonic() - began, bounds):
            query.stop()
            break
    with_rows = [one for one in query.recentProgress if one["numInputRows"] > 0]
    if len(with_rows) < 2:
        raise RuntimeError(
            f"a query over {work.name} had {len(with_rows)} micro-batches with rows in "
            f"{time.monotonic() - began:.0f} s; the first one is never measured"
        )
    return {
        "milliseconds": [one["durationMs"]["triggerExecution"] for one in with_rows[1:]],
        "events": [one["numInputRows"] for one in with_rows[1:]],
        **written(work, len(query.recentProgress)),
        "said": said(with_rows[1:]),
    }


def _is_over(query: Any, seconds: float, bounds: Bounds) -> bool:
    """Return whether a query is to be stopped; costs it next to nothing until then."""
    if seconds > bounds.most_seconds:
        return True
    last = query.lastProgress
    if last is None or (seconds <= bounds.seconds and last["batchId"] + 1 < bounds.batches):
        return False
    # All reports, which are many: each is made into JSON by the JVM that is measured.
    done = sum(one["numInputRows"] > 0 for one in query.recentProgress) - 1
    return done + 1 >= bounds.batches or (seconds > bounds.seconds and done >= bounds.least)


def rows_of(frame: Any, work: Path, batches: int) -> Counter[tuple[Any, ...]]:
    """
    Run a stream to the end of its input, and return how often it gave each row.

    Args:
        frame: The stream.
        work: The checkpoint location.
        batches: Micro-batches with rows after which it is stopped.
    """
    found: Counter[tuple[Any, ...]] = Counter()

    def collect(rows: DataFrame, batch_id: int) -> None:
        found.update(comparable(rows.collect()))

    writer = frame.writeStream.foreachBatch(collect).outputMode("update")
    query = writer.option("checkpointLocation", str(work)).trigger(availableNow=True).start()
    until = time.monotonic() + 300
    while not query.awaitTermination(0.2) and time.monotonic() < until:
        if sum(one["numInputRows"] > 0 for one in query.recentProgress) >= batches:
            break
    query.stop()
    return found


def comparable(rows: Iterable[Any]) -> Iterable[tuple[Any, ...]]:
    """Yield rows as tuples; the sum of floats depends on their order in the last digits."""
    for row in rows:
        yield tuple(round(one, 6) if isinstance(one, float) else one for one in row)


def said(batches: Sequence[Any]) -> str:
    """Return the median of some micro-batches for people."""
    times = [one["durationMs"]["triggerExecution"] for one in batches]
    return f"{statistics.median(times):,.0f} ms a micro-batch, of {len(times)}"


def written(work: Path, batches: int) -> Run:
    """Return the objects and bytes of state per micro-batch below a checkpoint location."""
    files, size = files_and_bytes(work / "state", work / "statelog")
    return {
        "files_per_batch": round(files / batches, 2),
        "bytes_per_batch": round(size / batches),
    }


def files_and_bytes(*folders: Path, without: str = "") -> tuple[int, int]:
    """
    Return number and bytes of the files below some folders, which Spark may still change.

    Args:
        folders: The folders; those that do not exist have no files.
        without: The name of a folder to leave out.
    """
    files = size = 0
    # Unlike `rglob`, it leaves out folders that are deleted meanwhile.
    for root, below, names in (step for folder in folders for step in os.walk(folder)):
        if without in below:
            below.remove(without)  # `walk` does not go there
        for name in names:
            try:
                size += (Path(root) / name).stat().st_size
            except OSError:
                continue  # deleted meanwhile
            files += 1
    return files, size


def file_stream(
    session: SparkSession, folder: Path, schema: str, files_per_batch: int = 2
) -> DataFrame:
    """Return a stream of Parquet files, some of them for each micro-batch, oldest first."""
    reader = session.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
    return reader.parquet(str(folder))


def set_age(path: Path, number: int) -> None:
    """Give a file the time by which Spark reads it as the so-many-th."""
    os.utime(path, (1_700_000_000 + 10 * number,) * 2)
