"""
Random courses of a query whose history changes, over sinks and readers that remember it.

A course has micro-batches with crashes, restarts on other state, rewinds, forks, backups that are
restored, locations that are deleted and made again, and drivers that sleep meanwhile.  After each step
the targets are compared with the rows that were delivered, and the readers with a model of the state.
The commits, claims, sinks and readers are the real ones.  What Spark stores of the query (which
micro-batches are planned, and which are finished) is a small object here.
"""

from __future__ import annotations

import copy
import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.campaigns.histories.readers import Reader
from tests.campaigns.histories.targets import ROWS, Target, Writer, keys_of
from tests.campaigns.histories.traces import Traces
from tests.support.locations.batch_records import one_operator
from tests.support.locations.histories import History, Model

import statelog
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.edit import commit_older
from statelog.checkpoint.listing import list_checkpoints
from statelog.core.delivered_batch import DeliveredBatch
from statelog.core.source_position import NOTHING_READ
from statelog.errors import CheckpointError, FencedError, StatelogError
from statelog.model import CompletedCheckpoint
from statelog.runtime.clock import RandomIds
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.driver.restart import FirstBatch, is_committed
from statelog.store import open_location

RETAINED = 4


@dataclass
class Offsets:
    """What Spark's checkpointLocation says: the plan of each micro-batch, and how many are finished."""

    plans: list[str] = field(default_factory=list)
    finished: int = 0

    def plan(self, batch_id: int) -> str:
        return self.plans[batch_id] if batch_id >= 0 else NOTHING_READ

    def times(self, batch_id: int) -> BatchTimes:
        before = self.plan(batch_id - 1)
        return BatchTimes(position=self.plan(batch_id), position_before=before)


class Job(History):
    """A history whose checkpoints have the record of a query."""

    batch_id = -1
    plan = NOTHING_READ
    plan_before = NOTHING_READ
    query_id = "q"

    def record(self) -> BatchRecord:
        timeline = self.coordinator.timeline
        return one_operator(
            schema=self.model.schema.to_json(),
            time_mode="processingtime",
            now_ms=self.now_ms,
            query_id=self.query_id,
            batch_id=self.batch_id,
            location=timeline.location_id,
            timeline=timeline.number,
            position=self.plan,
            position_before=self.plan_before,
        )


class Driver:
    """One run of the query, with a sink of each target."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.job = course.job
        self.path = course.path
        self.query_id = course.query_id
        self.coordinator = course.job.coordinator
        planned = len(course.offsets.plans) - 1
        self.writers: dict[str, Writer] = {
            name: target.open_writer(self.query_id, planned)
            for name, target in course.targets.items()
        }
        self.pending: DeliveredBatch | None = None
        """A committed micro-batch that was not delivered."""

    def deliver(self, batch: DeliveredBatch) -> None:
        """Write a micro-batch to all targets, as the function of `foreachBatch` does."""
        counts = self.course.counts
        for name, writer in self.writers.items():
            target = self.course.targets[name]
            try:
                writer.deliver(self.query_id, batch)
                if not target.counts(writer):
                    counts[f"{name}: written to what was left"] += 1
                elif not target.answered(self.query_id, batch):
                    counts[f"{name}: skipped, of an earlier timeline"] += 1
            except CheckpointError as error:
                counts[f"{name}: {error.reason}"] += 1
                if self is self.course.driver:
                    target.refused(self.query_id, error)
            except FencedError:
                counts[f"{name}: fenced"] += 1

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class Course:
    """One random course."""

    def __init__(
        self, seed: int, folder: Path, targets: Mapping[str, Target], readers: Sequence[Reader] = ()
    ) -> None:
        self.rng = random.Random(f"course {seed}")
        self.folder = folder
        self.targets = dict(targets)
        self.path = folder / "state"
        self.queries = 0
        self.query_id = ""
        self.offsets = Offsets()
        self.models: dict[tuple[str, str], tuple[Model, int]] = {}
        """The state by location and attempt of a checkpoint, and its time."""
        self.counts: Counter[str] = Counter()
        self.sleeping: list[Driver] = []
        self.backups: list[tuple[Path, Offsets, dict[str, object]]] = []
        self.readers = readers
        self.rows: Counter[str] = Counter()
        """Rows that were read and compared, by reader."""
        self.traces = Traces()

    # --- the query ------------------------------------------------------------------------------

    def begin_again(self) -> None:
        """Make the location at its path, after another one perhaps, with a new query."""
        store = open_location(str(self.path), options={"fsync": False})
        self.traces.end(store.url)
        if self.path.exists():
            shutil.rmtree(self.path)
        self.queries += 1
        self.query_id = f"query-{self.queries}"
        self.offsets = Offsets()
        self.job = Job(f"{self.rng.random()}", store, RETAINED, RandomIds())
        self.job.query_id = self.query_id
        self.backups.clear()
        self.driver = Driver(self)

    def batches(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            if not self.micro_batch():
                return

    def micro_batch(self) -> bool:
        """Run the next micro-batch, staged or direct; return False if the driver died in it."""
        batch_id = self.offsets.finished
        if len(self.offsets.plans) == batch_id:
            self.offsets.plans.append(self.new_plan())
        timeline = self.driver.coordinator.timeline
        plan = self.offsets.plan(batch_id)
        batch = DeliveredBatch(timeline.location_id, timeline.number, batch_id, plan)
        dies = self.rng.random() < 0.25
        is_staged = self.rng.random() < 0.5
        if not is_staged:
            self.driver.deliver(batch)
            if dies:
                self.restart()
                return False
        self.commit(batch_id, plan)
        if is_staged:
            if dies:
                if self.rng.random() < 0.5:
                    self.driver.pending = batch
                    self.sleep()
                self.restart()
                return False
            self.driver.deliver(batch)
        self.offsets.finished = batch_id + 1
        return True

    def commit(self, batch_id: int, plan: str) -> None:
        job = self.job
        job.batch_id, job.plan = batch_id, plan
        job.plan_before = self.offsets.plan(batch_id - 1)
        job.micro_batch()
        self.note(job.coordinator.latest)

    def note(self, checkpoint: CompletedCheckpoint | None) -> None:
        assert checkpoint is not None
        key = (checkpoint.timeline.location_id, checkpoint.attempt)
        self.models[key] = copy.deepcopy(self.job.model), BatchRecord.of(checkpoint).now_ms

    def new_plan(self) -> str:
        return hashlib.sha256(f"{self.rng.random()}".encode()).hexdigest()[:16]

    def restart(self) -> None:
        """Start the query again, from the newest checkpoint, by the checks of a start."""
        base = self.job.restart(retained=RETAINED, owner_id=self.query_id)
        self.driver = Driver(self)
        batch_id = self.offsets.finished
        if len(self.offsets.plans) == batch_id:
            self.offsets.plans.append(self.new_plan())
        if base is None:
            self.job.model = Model(self.job.model.schema)
            self.job.checkpoint_id = -1
            if batch_id:
                raise CheckpointError("the state is missing", reason="missing")
            return
        self.take_model(base)
        record = BatchRecord.of(base)
        first = FirstBatch(self.query_id, batch_id, self.offsets.times(batch_id))
        if is_committed(first, base, record, "here", free=False, newest_claim=lambda: ""):
            run_timeline = self.driver.coordinator.timeline.number
            self.driver.deliver(replace(record.delivered, run_timeline=run_timeline))
            self.offsets.finished = batch_id + 1
            self.counts["delivered again"] += 1

    def take_model(self, base: CompletedCheckpoint) -> None:
        model, _ = self.model_of(base)
        self.job.model = copy.deepcopy(model)
        self.job.checkpoint_id = base.checkpoint_id

    # --- what changes the history ---------------------------------------------------------------

    def sleep(self) -> None:
        self.sleeping.append(self.driver)
        self.counts["asleep"] += 1

    def wake(self) -> None:
        """Let a driver go on that slept: it delivers, then it commits."""
        if not self.sleeping:
            return
        driver = self.sleeping.pop(self.rng.randrange(len(self.sleeping)))
        if driver.pending is not None:
            driver.deliver(driver.pending)
        if driver.path != self.path:  # a fork does not replace the query of its parent
            driver.close()
            return
        try:
            number = driver.coordinator.next_checkpoint_id
            driver.coordinator.trigger(number, [])
            driver.coordinator.complete(number, properties=self.job.record().to_properties())
        except StatelogError:
            self.counts["woken and refused"] += 1
        else:
            self.commit_of_another_location(driver)
        driver.close()

    def commit_of_another_location(self, driver: Driver) -> None:
        """
        Check a commit of a driver that was replaced: it is of a location that was deleted.

        Its number is free in the location made since.  A start refuses it, and the operator deletes it.
        """
        latest = driver.coordinator.latest
        assert latest is not None
        number = latest.checkpoint_id
        self.traces.leave_out(self.job.store.url)
        of_this_job = self.job.coordinator.timeline.location_id
        assert latest.timeline.location_id != of_this_job, (
            "a driver that was replaced has committed"
        )
        try:
            self.job.restart(retained=RETAINED, owner_id=self.query_id)
        except CheckpointError as error:
            assert error.reason == "foreign_state", error
            self.counts["commit of a deleted location refused"] += 1
        else:
            assert self.job.coordinator.latest != latest, "the commit of a deleted location counts"
        shutil.rmtree(self.path / f"chk-{number}")
        self.traces.begin(self.job.store)
        self.restart()

    def rewind(self) -> None:
        """Go back to a micro-batch whose checkpoint is retained, source and state together."""
        store = self.job.store
        points = {
            summary.batch_id: summary.checkpoint_id
            for summary in list_checkpoints(store)
            if summary.is_retained and not summary.is_given_up
        }
        possible = [number for number in points if number is not None]
        possible = [number for number in possible if number < self.offsets.finished]
        if not possible:
            return
        batch_id = self.rng.choice(possible)
        if self.rng.random() < 0.5:
            self.sleep()
        before = self.job
        before.restart(retained=RETAINED, owner_id="rewind")
        older = points[batch_id]
        commit_older(before.coordinator, store, older)
        newest = before.coordinator.latest
        assert newest is not None
        stored = self.model_of_number(older)
        self.models[newest.timeline.location_id, newest.attempt] = stored
        del self.offsets.plans[batch_id + 1 :]
        self.offsets.finished = batch_id + 1
        self.counts["rewound"] += 1
        self.restart()

    def model_of(self, checkpoint: CompletedCheckpoint) -> tuple[Model, int]:
        """Return the state of a checkpoint, and its time."""
        return self.models[checkpoint.timeline.location_id, checkpoint.attempt]

    def model_of_number(self, checkpoint_id: int) -> tuple[Model, int]:
        with statelog.open(self.path) as state:
            return self.model_of(state.reader(checkpoint_id).checkpoint)

    def back_up(self) -> None:
        """Copy the location and the checkpointLocation by other means than statelog."""
        target = self.folder / f"backup {len(self.backups)} {self.queries} {self.rng.random()}"
        shutil.copytree(self.path, target)
        facts = {"query": self.query_id, "now_ms": self.job.now_ms}
        self.backups.append((target, copy.deepcopy(self.offsets), facts))

    def restore(self) -> None:
        """Put a backup in the place of the location, the checkpointLocation, or both."""
        if not self.backups:
            return
        target, offsets, _ = self.rng.choice(self.backups)
        what = self.rng.choice(["state", "offsets", "both", "both"])
        if what != "offsets":
            shutil.rmtree(self.path)
            shutil.copytree(target, self.path)
            self.traces.begin(self.job.store)
        if what != "state":
            self.offsets = copy.deepcopy(offsets)
        # Drivers must be stopped before: the claims that fence them are lost.
        while what != "offsets" and self.sleeping:
            self.sleeping.pop().close()
        self.counts[f"restored {what}"] += 1
        try:
            self.restart()
        except StatelogError:
            self.counts["start refused"] += 1
            self.begin_again()

    def fork(self) -> None:
        """Let a second query go on in a fork, next to this one, which ends."""
        if self.job.coordinator.latest is None:
            return
        self.queries += 1
        new = self.folder / f"fork {self.queries}"
        statelog.fork(self.path, new, state_only=True)
        if self.rng.random() < 0.5:
            self.sleep()
        store = open_location(str(new), options={"fsync": False})
        self.traces.begin(store)
        old = self.job
        self.path = new
        self.job = Job(f"{self.rng.random()}", store, RETAINED, RandomIds())
        self.job.now_ms = old.now_ms
        self.job.query_id = self.query_id = f"query-{self.queries}"
        first = self.job.restart(retained=RETAINED, owner_id=self.query_id)
        assert first is not None
        parent = old.coordinator.latest
        assert parent is not None
        model = self.model_of(parent)
        self.models[first.timeline.location_id, first.attempt] = model
        self.take_model(first)
        # A query that adopts the state, with a checkpointLocation of its own.
        self.offsets = Offsets()
        self.driver = Driver(self)
        self.backups.clear()
        self.counts["forked"] += 1

    # --- checks ---------------------------------------------------------------------------------

    def check(self) -> None:
        for name, target in self.targets.items():
            stored = Counter(target.stored())
            twice = [key for key, count in stored.items() if count > 1]
            assert not twice, f"{name} has rows twice: {twice[:3]}"
            for plan in target.delivered:
                missing = [key for key in keys_of(plan) if key not in stored]
                assert not missing, f"{name} lacks rows that were delivered: {missing[:3]}"
        newest = self.newest()
        if newest is not None:
            for reader in self.readers:
                reader.check(self, newest)

    def newest(self) -> CompletedCheckpoint | None:
        try:
            with statelog.open(self.path) as state:
                return state.reader().checkpoint
        except CheckpointError:
            return None

    def close(self) -> None:
        self.driver.close()
        for driver in self.sleeping:
            driver.close()
        for reader in self.readers:
            reader.close()

    def finish(self) -> None:
        """Count what the course did; its traces conform to the model of the protocol."""
        for name, target in self.targets.items():
            self.counts[f"{name}: courses"] += 1
            self.counts[f"{name}: rows"] += len(target.stored())
            assert len(target.stored()) >= ROWS * len(target.delivered)
        for name, count in self.rows.items():
            self.counts[f"{name}: courses"] += 1
            self.counts[f"{name}: rows"] += count
        traces, events = self.traces.check()
        self.counts["conforming traces"] += traces
        self.counts["events of traces"] += events


STEPS: dict[str, int] = {
    "batches": 10,
    "restart": 2,
    "rewind": 3,
    "back_up": 4,
    "restore": 4,
    "fork": 1,
    "begin_again": 1,
    "wake": 3,
}


def run_course(
    seed: int,
    folder: Path,
    targets: Mapping[str, Target],
    readers: Sequence[Reader] = (),
    steps: int = 12,
) -> Counter[str]:
    """Run one course."""
    course = Course(seed, folder, targets, readers)
    try:
        with course.traces.recorded():
            _run(course, steps)
        course.finish()
    finally:
        course.close()
    return course.counts


def _run(course: Course, steps: int) -> None:
    course.begin_again()
    for _ in range(steps):
        (name,) = course.rng.choices([*STEPS], [*STEPS.values()])
        try:
            getattr(course, name)()
        except CheckpointError as error:
            # The start was refused by name: the operator begins again.
            course.counts[f"{name} refused: {error.reason}"] += 1
            course.begin_again()
        course.check()
    while course.sleeping:
        course.wake()
    course.check()
