"""
Run the micro-batches of a query; each micro-batch creates one checkpoint.

For each micro-batch: trigger a checkpoint, run the tasks of each operator, take their answers,
commit, deliver.  The commit is one put-if-absent of `chk-<id>/_metadata`; everything before it can
be discarded, everything after it can be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import StatelogError
from statelog.metrics.table import BatchFigures
from statelog.model.checkpoint import CompletedCheckpoint, TaskStateSnapshot
from statelog.runtime.clock import Stopwatch, wall_clock_ms
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.batch_reports import BatchReports, after_commit, figures_of
from statelog.spark.driver.batch_times import BatchTimes, QueryTimes
from statelog.spark.driver.delivery import OUTPUT_SECTION, CommittedRows, TaskRunner, deliveries
from statelog.spark.driver.extension import (
    BatchStart,
    DriverContext,
    LocationObjects,
    driver_extensions,
)
from statelog.spark.driver.failures import QueryStopped, cause_of, is_interruption, query_stopped
from statelog.spark.driver.no_data_batches import can_skip_batch
from statelog.spark.driver.operator_run import MicroBatch, OperatorRun
from statelog.spark.driver.restart import FirstBatch
from statelog.spark.driver.state_location import StateLocation
from statelog.spark.jvm.queries import is_active
from statelog.spark.query.delivery import Delivery, Sink, set_batch
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.query import Query
from statelog.spark.worker.protocol import TaskAck


class MicroBatchEngine:
    """Runs the micro-batches of one query; it is the function passed to `foreachBatch`."""

    def __init__(
        self,
        query: Query,
        sink: Sink,
        query_times: QueryTimes | None = None,
        sinks: Mapping[str, Sink] = MappingProxyType({}),
        repeated: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._query = query
        self._query_times = query_times
        self._location = StateLocation(query)
        objects = LocationObjects(self._location.store, query.settings.options.changelog)
        self._extensions = driver_extensions(
            DriverContext(query, self._location.store, objects.put, sinks, repeated)
        )
        self._coordinator = self._location.coordinator
        self._deliveries = deliveries(query, sink, self._coordinator.section)
        self._runner = TaskRunner()
        self._delivery = self._deliveries[query.settings.delivery]
        self._operators = [
            OperatorRun(query, index, self._location, self._extensions)
            for index in range(len(query.operators))
        ]
        self._running = self._operators[0]
        """The operator that ran last, which a failed job belongs to."""
        self._reports = BatchReports(query.observers, self._extensions.figures)
        self._previous_ms: dict[str, int] | None = None
        self._has_run = False
        self._is_processing = self._is_closed = False
        self._checkpoint_location = None if query_times is None else query_times.checkpoint_location

    def open(self, query_id: str | None = None) -> None:
        """
        Check that this query can continue from the state in its location.

        See `StateLocation`.
        """
        self._location.inspect(query_id)
        # A query that ran before, over a location without state: checked here, before Spark plans a
        # batch.
        if self._query_times is not None and query_id and self._location.is_empty:
            finished = self._query_times.last_finished()
            if finished is not None:
                batch_id, position = finished
                times = BatchTimes(position_before=position)
                self._location.check_is_there(FirstBatch(query_id, batch_id + 1, times))

    def next_due_ms(self) -> int | None:
        """
        Return the time at which the next timer is due, as of the last commit.

        None if unknown.
        """
        return self._location.state.next_due_ms

    def has_run(self) -> bool:
        """Return whether this run has already processed a micro-batch."""
        return self._has_run

    def progress(self) -> BatchProgress | None:
        """
        Return the figures of the newest micro-batch.

        None while it runs, or if it had no effect.
        """
        return self._reports.current

    def close(self) -> None:
        """Delete the remaining garbage after the query has ended; may be called repeatedly."""
        self._is_closed = True  # before the look: a micro-batch looks in the opposite order
        if self._location.epoch is not None and not self._is_processing:
            self._location.clean_up.finish()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """
        Process one micro-batch.

        Spark calls it, and repeats a batch that did not finish.
        """
        self._is_processing = True
        try:
            # `close` looks at these flags in the opposite order, so one of both sees the other.
            if self._is_closed:  # the call was under way when the query was stopped
                raise query_stopped()
            self._process(frame, batch_id)
            fail_point("after-batch")
        except (StatelogError, QueryStopped):
            raise
        except Exception as error:
            if is_interruption(error) and not is_active(frame):
                raise query_stopped() from None
            cause = cause_of(error, self._running.definition.processor, batch_id)
            if cause is not None:
                raise cause from None
            raise
        finally:
            self._is_processing = False

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        """
        Process one micro-batch, in five steps.

        1. Decide: was it committed before, can it be skipped, and which tasks run it?
        2. Run the operators.
        3. Commit: one put-if-absent.
        4. Deliver the committed rows to the sink; extensions deliver theirs.
        5. Clean up, in batches.
        """
        # 1. Decide.
        decided = self._decide(frame, batch_id)
        if decided is None:
            return
        watch = Stopwatch()
        batch = self._begin(frame, batch_id, *decided)
        try:
            # 2. Run the operators.
            answers = self._run(frame, batch, watch)
            if batch.times.is_idle and not any(map(_has_effect, chain(*answers))):
                self._decline_idle(batch, answers)
                return
            # 3. Commit.  An error up to the put discards the micro-batch.
            completed, record, figures = self._commit(batch, answers, watch)
            watch.lap("commit")
        except BaseException:
            self._location.snapshots.aborted()
            # A fenced coordinator rejects this call too; the first error is the one to raise.
            with contextlib.suppress(StatelogError):
                self._coordinator.decline(batch.checkpoint_id, "the micro-batch failed")
            raise
        # 4. Deliver.  An error from here on is repeated by the next start, which finds the commit.
        self._advance(batch, answers, completed, record)
        self._delivery.deliver(frame, record, answers[-1])
        self._extensions.deliver(frame, answers)
        watch.lap("deliver")
        # 5. Clean up.
        self._clean_up(answers)
        watch.lap("clean_up")
        self._report(batch, answers, figures, watch)

    def _decide(self, frame: DataFrame, batch_id: int) -> tuple[BatchTimes, str] | None:
        """
        In a run's first micro-batch, claim the location and deliver what was committed earlier.

        Returns:
            The times of the micro-batch, and Spark's id of the query; None if nothing is to run.
        """
        query_id = ""
        times = BatchTimes()
        if self._query_times is not None:
            query_id = self._query_times.query_id()
            times = self._query_times.of(batch_id)
        self._has_run = True
        self._reports.begin()
        # The first micro-batch of a run: only now is its id known, and with it whether the state
        # fits.
        if self._location.epoch is None:
            first = FirstBatch(query_id, batch_id, times, self._query_times)
            is_committed = self._location.take_over(first)
            if is_committed:
                self._deliver_again(frame, batch_id)
                return None
        record = self._location.state.record
        if record is not None:
            times = times.not_before(record.watermark_ms)
        # A no-data batch without a timer that is due costs nothing.
        if can_skip_batch(self._query.operators, record, times):
            return None
        self._location.begin(times)
        return times, query_id

    def _begin(
        self, frame: DataFrame, batch_id: int, times: BatchTimes, query_id: str
    ) -> MicroBatch:
        """Choose the tasks of all operators, and start the checkpoint."""
        ranges = [operator.ranges(frame, times) for operator in self._operators]
        every = [*chain(*ranges)]
        # No commit for a snapshot alone, and no retry of a failing store in each no-data batch.
        snapshots = {} if times.is_idle else self._location.snapshots.choose(every, wall_clock_ms())
        checkpoint_id = self._coordinator.next_checkpoint_id
        state = self._location.state
        self._extensions.begin(BatchStart(batch_id, checkpoint_id, state.base_id, state.record))
        timeline = self._coordinator.timeline
        position = times.position or ""
        set_batch(frame, DeliveredBatch(timeline.location_id, timeline.number, batch_id, position))
        self._coordinator.trigger(checkpoint_id, every)
        return MicroBatch(batch_id, checkpoint_id, times, ranges, snapshots, query_id)

    def _run(self, frame: DataFrame, batch: MicroBatch, watch: Stopwatch) -> list[list[TaskAck]]:
        """Run the operators one after another, and return the results of their tasks."""
        answers: list[list[TaskAck]] = []
        upstream: list[TaskAck] = []
        last = self._operators[-1]
        for operator in self._operators:
            self._running = operator
            delivers = operator is last and not self._delivery.is_staged  # needed by the sink
            if operator.can_be_skipped(batch, upstream) and not delivers:
                upstream = []
            else:
                partitioned, is_read = operator.input(frame, batch, upstream)
                # Rows between operators are always staged: the next operator reads those that are
                # committed.
                staged = operator is not last or self._delivery.is_staged
                spec = operator.spec(batch, is_read=is_read, staged=staged)
                watch.lap("plan")
                run = self._delivery.run if operator is last else self._runner.collect_acks
                upstream = run(partitioned, spec)
                watch.lap("run")
                if operator is not last:
                    fail_point("between-operators")
            answers.append(upstream)
        return answers

    def _commit(
        self, batch: MicroBatch, answers: Sequence[Sequence[TaskAck]], watch: Stopwatch
    ) -> tuple[CompletedCheckpoint, BatchRecord, BatchFigures]:
        self._acknowledge(batch, answers)
        rows = self._delivery.committed_rows(answers[-1])
        operators = [
            operator.record(acks) for operator, acks in zip(self._operators, answers, strict=True)
        ]
        figures = replace(
            figures_of(answers, self._extensions.figures),
            tasks=sum(map(len, batch.ranges)),
            state_entries=sum(operator.state_entries for operator in operators),
            output_bytes=rows.size_bytes,
            milliseconds=dict(watch.milliseconds),
        )
        record = self._record(batch, answers, rows, operators, figures)
        completed = self._coordinator.complete(
            batch.checkpoint_id,
            properties=record.to_properties(),
            sections={} if rows.section is None else {OUTPUT_SECTION: rows.section},
        )
        return completed, record, figures

    def _acknowledge(self, batch: MicroBatch, answers: Sequence[Sequence[TaskAck]]) -> None:
        for ranges, acks in zip(batch.ranges, answers, strict=True):
            # Every range is acknowledged, with or without an answer: the ledger waits for all of
            # them.
            by_range = {ack.place.key_range: ack for ack in acks}
            for key_range in ranges:
                ack = by_range.get(key_range)
                # The tasks of an operator that was skipped have changed nothing.
                log_and_snapshot = (
                    (None, None) if ack is None else (ack.changes.log, ack.changes.snapshot)
                )
                self._coordinator.acknowledge(
                    batch.checkpoint_id, TaskStateSnapshot(key_range, *log_and_snapshot)
                )

    def _record(
        self,
        batch: MicroBatch,
        answers: Sequence[Sequence[TaskAck]],
        rows: CommittedRows,
        operators: Sequence[OperatorRecord],
        figures: BatchFigures,
    ) -> BatchRecord:
        """Return the record of the micro-batch, which the checkpoint contains."""
        times = batch.times
        timeline = self._coordinator.timeline
        retries = {
            "tasks": sum(ack.place.attempt for ack in chain(*answers)),
            "puts": self._location.take_repeated_puts(),  # of the claim, or the commit before
        }
        return BatchRecord(
            operators=tuple(operators),
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            location=timeline.location_id,
            timeline=timeline.number,
            delivery=self._query.settings.delivery.value,
            time_mode=self._query.time_mode,
            now_ms=times.now_ms if self._query.time_mode != "none" else -1,
            output_files=[handle.to_json() for handle in rows.files],
            went_back_to=self._location.state.went_back_to,
            watermark_ms=times.watermark_ms,
            position=times.position,
            position_before=times.position_before,
            source_logs=list(times.source_logs),
            source_folders=list(times.source_folders),
            checkpoint_location=self._checkpoint_location,
            figures=figures,
            previous_ms=self._previous_ms,
            retries=retries,
            attachments=self._extensions.attachments(answers),
        )

    def _decline_idle(self, batch: MicroBatch, answers: Sequence[Sequence[TaskAck]]) -> None:
        """Abandon the checkpoint of a no-data batch that did not change anything."""
        self._coordinator.decline(batch.checkpoint_id, "the micro-batch had no effect")
        for index, acks in enumerate(answers):
            if acks:
                self._location.state.due_ms[index] = min(ack.changes.next_due_ms for ack in acks)

    def _advance(
        self,
        batch: MicroBatch,
        answers: Sequence[Sequence[TaskAck]],
        completed: CompletedCheckpoint,
        record: BatchRecord,
    ) -> None:
        """Make the committed checkpoint the base of the next micro-batch."""
        for operator, acks in zip(self._operators, answers, strict=True):
            operator.unnamed_output.committed(batch.batch_id, acks)
            if not batch.times.is_idle:  # a no-data batch does not predict the cost of rows
                operator.ran(acks)
        self._location.snapshots.committed([*chain(*answers)], wall_clock_ms())
        self._location.state.advance(completed, record, [bool(acks) for acks in answers])
        self._location.snapshots.advance(completed)
        self._extensions.committed(answers)

    def _clean_up(self, answers: Sequence[Sequence[TaskAck]]) -> None:
        """Delete the rows passed between operators, and start any clean-up that is due."""
        self._location.clean_up.delete(
            [file.path for ack in chain(*answers[:-1]) for file in ack.output.files]
        )
        self._location.clean_up.when_due()

    def _report(
        self,
        batch: MicroBatch,
        answers: Sequence[Sequence[TaskAck]],
        figures: BatchFigures,
        watch: Stopwatch,
    ) -> None:
        self._previous_ms = after_commit(watch)
        distances = self._location.snapshots.distances
        figures = replace(
            figures,
            objects=figures.objects + 1,
            object_bytes=figures.object_bytes + self._coordinator.committed_bytes,
            log_bytes=distances.log_bytes,
            log_handles=distances.log_handles,
            milliseconds=watch.with_total(),
        )
        self._reports.committed(batch.batch_id, batch.checkpoint_id, figures, [*chain(*answers)])

    def _deliver_again(self, frame: DataFrame, batch_id: int) -> None:
        """Deliver a committed batch again, in its original delivery mode."""
        watch = Stopwatch()
        base = self._location.state.base
        record = self._location.state.record
        if base is None or record is None:
            raise StatelogError(f"batch {batch_id} cannot be replayed without a checkpoint")
        # The sink must see that a newer driver delivers an older batch, or it would not fence the
        # older one.
        run_timeline = self._coordinator.timeline.number
        set_batch(frame, replace(record.delivered, run_timeline=run_timeline))
        plan = self._query.source.plan
        if plan.has_watermark or not plan.is_stateless:
            # The state of Spark's own operators advances only when the rows are evaluated.
            frame.write.format("noop").mode("append").save()
        self._deliveries[Delivery(record.delivery)].deliver_again(frame, record, base)
        self._extensions.deliver_again(frame, record)
        watch.lap("deliver")
        self._reports.delivered_again(batch_id, base.checkpoint_id, record, watch)


def _has_effect(ack: TaskAck) -> bool:
    """Return whether a task read rows, changed state, or returned any results."""
    wrote = ack.changes.log is not None or ack.changes.snapshot is not None or bool(ack.extras)
    return wrote or ack.count("rows") > 0 or ack.count("output_rows") > 0
