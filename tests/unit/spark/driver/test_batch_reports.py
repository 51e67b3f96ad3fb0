"""The figures of a micro-batch, from the answers of its tasks to the record and the report."""

import pickle
from dataclasses import asdict, replace
from typing import Any

import msgspec
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
from statelog.spark.driver.batch_reports import BatchReports, after_commit, batch_cost, figures_of
from statelog.spark.query.progress import BatchProgress, Observers, source_metrics
from statelog.spark.worker.protocol import TaskAck, TaskPlace


def ack(partition: int = 0, uploads: Any = (), **figures: Any) -> TaskAck:
    place = TaskPlace(partition, KeyGroupRange(partition, partition))
    return TaskAck(place, figures=figures, uploads=uploads)


def stored(record: BatchRecord) -> Any:
    return record.to_properties()["figures"]


def test_the_slowest_task_counts_in_each_phase_and_other_figures_add_up() -> None:
    acks = [
        ack(0, task_milliseconds={"process": 7.6, "input": 0.2}, objects=2, object_bytes=100),
        ack(
            1,
            [("repeated_requests", 4.0)],
            task_milliseconds={"process": 3.0, "input": 9.4},
            catch_up={"replayed": 2},
            objects=1,
            object_bytes=20,
        ),
    ]
    figures = figures_of([acks])
    assert {"process": 7.6, "input": 9.4} == figures.task_milliseconds
    assert (3, 120, 4) == (figures.objects, figures.object_bytes, figures.repeated_requests)
    assert {
        "folded": 0,
        "replayed": 2,
        "restored": 0,
        "local": 0,
        "compacted": 0,
    } == figures.catch_up
    record = one_operator(task_milliseconds=figures.task_milliseconds)
    assert {"process": 8, "input": 9} == stored(record)["task_milliseconds"]


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
        uploads=2,
        upload_attempts=4,
        upload_failures=2,
        upload_retries=2,
        upload_bytes=2_000,
        slowest_upload_ms=6.0,
        upload_wait_ms=3.0,
    )


@pytest.mark.parametrize("name", ["rowz", "log_bytes"])
def test_a_task_counts_declared_figures_only(name: str) -> None:
    with pytest.raises(InvariantError, match=f"counted '{name}'"):
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


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_everywhere_by_its_declaration_alone(name: str) -> None:
    figure, number = FIGURES[name], isinstance(getattr(BatchFigures(), name), int | float)
    value: Any = 7 if number else {"part": 7.0}
    record = one_operator(**{name: value})
    assert value == stored(record)[name]
    metrics, seen = Metrics(), list[BatchProgress]()
    figures = replace(record.figures, milliseconds={"total": 1.0, **record.figures.milliseconds})
    BatchReports(Observers(seen.append, metrics)).committed(3, 4, figures, [])
    shown = getattr(seen[0], name)
    assert shown == value if number else shown.items() >= value.items()
    assert seen[0].to_json()[name] == getattr(seen[0], name)
    assert f"{name}: {figure.text}" in (BatchProgress.__doc__ or "")
    assert not number or "7" == source_metrics(seen[0])[camel_case(name)]
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
    metrics, seen = Metrics(), list[BatchProgress]()
    reports = BatchReports(Observers(seen.append, metrics), OF_EXTENSIONS)
    reports.committed(3, 4, replace(figures, milliseconds={"total": 1.0}), [])
    (progress,) = seen
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
    counted = {name: 2 if nothing[name] == 0 else {"part": 2} for name in kinds}
    combined = asdict(figures_of([[ack(0, **counted), ack(1, **counted)]]))
    for name, kind in kinds.items():
        total = 2 if kind is FigureKind.MOST else 4
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


def test_a_micro_batch_without_tasks_costs_nothing() -> None:
    assert BatchCost(0, 0, None, work_ms=0, input_ms=0) == batch_cost([], None)
