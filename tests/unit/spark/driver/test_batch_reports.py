"""The figures of a micro-batch, from the answers of its tasks to the record, the report and warnings."""

import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.project.declared_figures import OF_EXTENSIONS

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.task_count import BatchCost
from statelog.errors import InvariantError
from statelog.metrics import METRICS, Metrics
from statelog.metrics.table import FIGURES, BatchFigures, FigureKind, camel_case
from statelog.model import KeyGroupRange
from statelog.runtime.clock import Stopwatch
from statelog.spark.driver.batch_reports import (
    DOMINATING_SHARE,
    BatchReports,
    after_commit,
    batch_cost,
    figures_of,
    largest_groups,
    largest_keys,
    skew_of,
)
from statelog.spark.query.progress import BatchProgress, Observers, source_metrics
from statelog.spark.worker.protocol import TaskAck, TaskPlace
from statelog.spark.worker.task_input import RowCounter


def ack(partition: int = 0, uploads: Any = (), **figures: Any) -> TaskAck:
    place = TaskPlace(partition, KeyGroupRange(partition, partition))
    return TaskAck(place, figures=figures, uploads=uploads)


def stored(record: BatchRecord) -> Any:
    return record.to_properties()["figures"]


def test_rows_are_those_into_the_first_operator_and_out_of_the_last() -> None:
    answers = [
        [ack(0, rows=5, keys=2, output_rows=4), ack(1, rows=3, keys=1)],
        [ack(2, rows=4, keys=4, output_rows=9, late_rows=1)],
    ]
    figures = figures_of(answers)
    assert (8, 9, 7, 1) == (figures.rows, figures.output_rows, figures.keys, figures.late_rows)
    assert (8, 0) == (figures_of([*answers, []]).rows, figures_of([*answers, []]).output_rows)


def test_uploads_are_counted_where_there_were_any() -> None:
    assert figures_of([[ack(0), ack(1)]]) == BatchFigures()
    nothing = dict.fromkeys(OF_EXTENSIONS, 0)
    assert nothing == figures_of([[ack(0)]], OF_EXTENSIONS).extras
    acks = []
    for task, attempts in enumerate((1, 3)):
        uploads = [
            ("number_of_upload_requests", 1),
            *[("number_of_upload_requests", 1), ("number_of_upload_failures", 1)] * (attempts - 1),
            ("total_attempts_per_upload", attempts),
            ("upload_sizes", 1_000),
            ("upload_durations", attempts * 2_000_000),
            ("changelog_busy_time", 1_500_000),
        ]
        acks.append(ack(task, uploads))
    assert figures_of([acks]) == BatchFigures(
        uploads=2, upload_attempts=4, upload_failures=2, upload_retries=2, upload_bytes=2_000,
        slowest_upload_ms=6.0, upload_wait_ms=3.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["rowz", "log_bytes"])
def test_a_task_counts_declared_figures_only(name: str) -> None:
    with pytest.raises(InvariantError, match=f"reported '{name}'"):
        figures_of([[ack(**{name: 1})]])


def test_the_record_has_whole_numbers_and_no_zeros() -> None:
    figures = BatchFigures(
        rows=3, upload_wait_ms=2.6, milliseconds={"plan": 1.4, "run": 40.5}, catch_up={"folded": 0}
    )
    figures = replace(figures, task_milliseconds={"spill": 0.3, "process": 1.9})
    record = msgspec.structs.replace(one_operator(), figures=figures)
    assert {
        "rows": 3,
        "upload_wait_ms": 3,
        "milliseconds": {"plan": 1, "run": 40},
        "task_milliseconds": {"process": 2},
    } == stored(record)
    read = BatchRecord.of_properties(record.to_properties(), 1).figures
    assert (3, 3.0, 0) == (read.rows, read.upload_wait_ms, read.keys)
    assert read.catch_up == BatchFigures().catch_up


def test_the_phases_after_a_commit_are_for_the_next_record() -> None:
    watch = Stopwatch()
    watch.milliseconds = {"plan": 1.0, "commit": 3.0, "deliver": 4.4, "clean_up": 5.0}
    assert {"commit": 3, "deliver": 4, "clean_up": 5} == after_commit(watch)


def reported(
    figures: BatchFigures, declared: Mapping[str, Any] = MappingProxyType({})
) -> tuple[BatchProgress, Metrics]:
    """Report the figures of a micro-batch; return its progress, and what was counted."""
    metrics, seen = Metrics(), list[BatchProgress]()
    figures = replace(figures, milliseconds={"total": 1.0, **figures.milliseconds})
    BatchReports(Observers(seen.append, metrics), declared).committed(3, 4, figures, [])
    return seen[0], metrics


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_everywhere_by_its_declaration_alone(name: str) -> None:
    figure, number = FIGURES[name], isinstance(getattr(BatchFigures(), name), int | float)
    value: Any = 7 if number else {"part": 7.0}
    record = one_operator(**{name: value})
    assert value == stored(record)[name]
    progress, metrics = reported(record.figures)
    shown = getattr(progress, name)
    assert shown == value if number else shown.items() >= value.items()
    assert progress.to_json()[name] == shown
    assert f"{name}: {figure.text}" in (BatchProgress.__doc__ or "")
    assert not number or "7" == source_metrics(progress)[camel_case(name)]
    for metric in filter(None, (figure.counter, figure.gauge)):
        assert 7 == metrics.value(metric)
        assert (figure.unit, figure.text) == (METRICS[metric].unit, METRICS[metric].description)


@pytest.mark.parametrize("name", OF_EXTENSIONS)
def test_a_figure_of_an_extension_is_everywhere_by_its_declaration_alone(name: str) -> None:
    figure = OF_EXTENSIONS[name]
    figures = figures_of([[ack(0, **{name: 3}), ack(1, **{name: 4})]], OF_EXTENSIONS)
    record = msgspec.structs.replace(one_operator(), figures=figures)
    assert {name: 7} == stored(record)["extras"]
    assert {name: 7} == BatchRecord.of_properties(record.to_properties(), 1).figures.extras
    progress, metrics = reported(figures, OF_EXTENSIONS)
    assert 7 == getattr(progress, name) == progress.to_json()[name]
    assert "7" == source_metrics(progress)[camel_case(name)]
    assert f" {name}=7 " in str(progress)
    assert ">7<" in progress._repr_html_()
    assert 7 == metrics.value(figure.counter)
    spec = metrics.spec(figure.counter)
    assert (figure.unit, figure.text) == (spec.unit, spec.description)
    others = {other: 0 for other in OF_EXTENSIONS if other != name}
    assert others.items() < progress.to_json().items()


def test_an_undeclared_figure_raises_an_attribute_error() -> None:
    progress = BatchProgress(batch_id=1, checkpoint_id=2, extras={"late": 1})
    assert 1 == progress.late == pickle.loads(pickle.dumps(progress)).late
    with pytest.raises(AttributeError, match="'later'"):
        _ = progress.later


def test_figures_of_tasks_are_combined_by_their_kind() -> None:
    kinds = {
        name: figure.kind
        for name, figure in FIGURES.items()
        if figure.kind is not FigureKind.DRIVER and not figure.recorded
    }
    nothing = asdict(BatchFigures())

    def counted(value: int) -> dict[str, Any]:
        return {name: value if nothing[name] == 0 else {"part": value} for name in kinds}

    acks = [ack(task, **counted(value)) for task, value in enumerate((2, 3, 1))]
    combined = asdict(figures_of([acks]))
    for name, kind in kinds.items():
        total = 3 if kind is FigureKind.MOST else 6
        assert combined[name] == (total if nothing[name] == 0 else nothing[name] | {"part": total})


# --- what a micro-batch has cost ----------------------------------------------------------------------


def cost(partition: int, rows: int, **milliseconds: float) -> TaskAck:
    return ack(partition, rows=rows, task_milliseconds=milliseconds)


def test_the_work_of_tasks_is_added_without_waits_for_rows() -> None:
    acks = [
        cost(0, 3, input=90, wait=70, process=40, output=5, append=2, stage=1),
        cost(1, 4, input=10, wait=8, process=6),
    ]
    assert BatchCost(2, 7, 100, work_ms=68 + 8, input_ms=70) == batch_cost(acks, 100)


def test_time_for_state_is_not_work_on_rows() -> None:
    acks = [cost(0, 3, catch_up=500, snapshot=300, spill=200, process=1)]
    assert 1 == batch_cost(acks, None).work_ms
    assert BatchCost(0, 0, None, work_ms=0, input_ms=0) == batch_cost([], None)


RANGE = KeyGroupRange(10, 19)


def batch(rows: list[tuple[int, str]]) -> pa.RecordBatch:
    groups = pa.array([key_group for key_group, _ in rows], pa.int32())
    keys = pa.array([key for _, key in rows])
    return pa.RecordBatch.from_arrays([groups, keys, keys], names=["kg", "key", "other"])


def counted(*batches: pa.RecordBatch) -> TaskAck:
    counter = RowCounter(RANGE, (1,))
    assert list(batches) == list(counter.through(batches))
    rows = sum(batch.num_rows for batch in batches)
    tops = {"top_groups": counter.groups(), "top_keys": counter.keys()}
    return TaskAck(TaskPlace(0, RANGE), figures={"rows": rows}, **tops)


def test_a_key_with_most_of_the_rows_is_named() -> None:
    rows = [(13, "hot")] * 900 + [(13, "warm")] * 100 + [(10 + i % 10, f"k{i}") for i in range(500)]
    ack = counted(batch(rows), batch(rows))
    groups, keys = largest_groups([ack]), largest_keys([ack])
    assert (13, 2100) == (groups[0]["key_group"], groups[0]["rows"])
    assert {"key": "('hot',)", "key_group": 13, "rows": 1800, "share": 0.6} == keys[0]
    assert 200 == keys[1]["rows"]
    assert "key ('hot',) receives 60% of the rows" in skew_of(groups, keys).warning


def test_a_key_group_of_many_keys_is_named_as_such() -> None:
    ack = counted(batch([(13, f"k{i}") for i in range(2000)] + [(14, "x")] * 10))
    warning = skew_of(largest_groups([ack]), largest_keys([ack])).warning
    assert warning.startswith("key group 13 receives 100%")


def test_an_even_load_gives_no_warning() -> None:
    assert [] == largest_groups([counted()])
    ack = counted(batch([(10 + i % 10, f"k{i}") for i in range(5000)]))
    place = TaskPlace(1, KeyGroupRange(20, 29))
    other = TaskAck(place, figures={"rows": 600}, top_groups=[(25, 600)])
    groups = largest_groups([ack, other])
    assert [600, 500, 500] == [group["rows"] for group in groups]
    assert [] == largest_keys([ack, other])
    assert "" == skew_of(groups, []).warning


def test_keys_of_nested_types_do_no_harm() -> None:
    nested = pa.array([{"a": [1]}] * 2000)
    columns = [pa.array([13] * 2000, pa.int32()), nested]
    counter = RowCounter(RANGE, (1,))
    list(counter.through([pa.RecordBatch.from_arrays(columns, names=["kg", "key"])]))
    assert [(13, 2000)] == counter.groups()


def test_only_the_wait_for_the_input_is_measured() -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            time.sleep(0.03)
            yield batch([(13, "key")])

    counter = RowCounter(RANGE, (1,))
    began = time.perf_counter()
    for _ in counter.through(slow()):
        time.sleep(0.03)
    took_ms = (time.perf_counter() - began) * 1e3
    assert 60 <= counter.waited_ms <= took_ms - 60


def test_a_share_at_the_bound_gives_a_warning() -> None:
    def warning(rows: int, group_share: float, key_share: float) -> str:
        groups = [{"key_group": 13, "rows": rows, "share": group_share}]
        return skew_of(groups, [{"key": "('k',)", "share": key_share}]).warning

    least, less = DOMINATING_SHARE, DOMINATING_SHARE - 0.01
    assert warning(1000, least, least).startswith("key ('k',)")
    assert warning(1000, least, less).startswith("key group 13")
    assert "" == warning(1000, less, less)
    assert "" == warning(999, least, least)
