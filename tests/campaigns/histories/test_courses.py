"""Random courses of a query whose history changes: each row once, or a refusal by name."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.campaigns.histories.courses import Course, run_course
from tests.campaigns.histories.readers import (
    FeedReader,
    PublishedReader,
    Reader,
    ReplicaReader,
    SourceReader,
)
from tests.campaigns.histories.targets import (
    FilesTarget,
    Target,
    delta_target,
    iceberg_target,
    kafka_target,
    sqlite_target,
    stand_ins,
)
from tests.support.project import evidence

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import InvariantError
from statelog.extensions.publish.publisher import TablePublisher
from statelog.model import CheckpointPosition, CompletedCheckpoint

FEW = 12
MANY = int(os.environ.get("STATELOG_HISTORY_COURSES", "300"))


def run(seed: int, folder: Path, *, slow: str = "") -> Counter[str]:
    """Run a course with all targets and readers that are fast, and with those that *slow* names."""
    folder.mkdir()
    targets: dict[str, Target] = {
        "SQLite": sqlite_target(folder),
        "Kafka": kafka_target(),
        "files": FilesTarget(folder / "files"),
        "Delta": delta_target(folder / "delta"),
    }
    readers: list[Reader] = [FeedReader(), ReplicaReader(), SourceReader()]
    if slow == "sink":
        targets["Iceberg"] = iceberg_target(folder)
    elif slow:
        readers.append(PublishedReader(folder / "published", slow))
    with stand_ins():
        return run_course(seed, folder, targets, readers)


SLOW = ("", "sink", "Iceberg", "Delta")
"""What joins a course, by its seed."""


@pytest.mark.parametrize("seed", range(FEW))
def test_each_row_is_written_once_or_refused(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path / "course", slow=SLOW[seed % len(SLOW)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_courses(tmp_path: Path) -> None:
    totals: Counter[str] = Counter()
    with evidence.campaign("histories", seeds=range(FEW, FEW + MANY)) as record:
        for seed in range(FEW, FEW + MANY):
            folder = tmp_path / f"course {seed}"
            totals += run(seed, folder, slow=SLOW[1 + seed % 3])
            shutil.rmtree(folder)
            record.runs += 1
        record.counts.update(totals)
    for needed in ("rewound", "forked", "asleep", "woken and refused", "restored both"):
        assert totals[needed], f"no course has: {needed}"


@pytest.mark.parametrize("kind", ["claim", "put"])
def test_a_trace_without_a_step_does_not_conform(kind: str, tmp_path: Path) -> None:
    course = Course(0, tmp_path, {})
    with course.traces.recorded():
        course.begin_again()
        course.batches()
        course.restart()
    traces, events = course.traces.check()
    (trace,) = course.traces.ended
    assert (1, len(trace.events)) == (traces, events)
    at = next(at for at, event in enumerate(trace.events) if event.kind == kind)
    del trace.events[at]
    with pytest.raises(InvariantError, match="no step of the model"):
        course.traces.check()


def number_alone(self: DeliveredBatch, last: DeliveredBatch | None, *, target: str) -> bool:
    """A mutant: this number or a later one is taken for written."""
    return last is not None and last.batch_id >= self.batch_id


def every_position(self: CompletedCheckpoint, position: CheckpointPosition) -> bool:
    """A mutant: a number that is not higher is taken for a part of the history."""
    return position.checkpoint_id <= self.checkpoint_id


def any_history(self: TablePublisher, published: object) -> None:
    """A mutant: the newest checkpoint of a table is taken for that of its number."""


@pytest.mark.parametrize(
    ("kind", "name", "mutant", "slow"),
    [
        (DeliveredBatch, "is_written", number_alone, ""),
        (CompletedCheckpoint, "continues", every_position, ""),
        (TablePublisher, "_check_history", any_history, "Delta"),
    ],
)
def test_the_courses_find_a_number_without_its_history(
    kind: type,
    name: str,
    mutant: object,
    slow: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kind, name, mutant)
    with pytest.raises(AssertionError):
        for seed in range(40):
            run(seed, tmp_path / f"course {seed}", slow=slow)
