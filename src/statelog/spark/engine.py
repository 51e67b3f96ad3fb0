"""
The driver's side: one micro-batch in, one checkpoint out.

For each batch: trigger a checkpoint, run the tasks, take their answers, commit, deliver.  The
commit is one put-if-absent of `chk-<id>/_metadata`; everything before it can be thrown away,
everything after it can be repeated.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, floor
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import find_newest
from statelog.checkpoint.options import CheckpointOptions
from statelog.core.materialization_policy import LogDistance, MaterializationPolicy
from statelog.errors import CheckpointError, StatelogError, StoreError
from statelog.model import KeyGroupRange, split_key_groups
from statelog.model.checkpoint import CompletedCheckpoint, TaskStateSnapshot
from statelog.model.handles import FileStateHandle
from statelog.runtime.fail_points import fail_point
from statelog.spark.delivery import (
    OUTPUT_SECTION,
    AckParam,
    Delivery,
    Sink,
    collect_acks,
    direct_task,
    one_per_task,
    output_frame,
    pack_outputs,
    unpack_outputs,
)
from statelog.spark.grouping import KEY_GROUP_COLUMN
from statelog.spark.progress import BatchProgress, slowest_phases, summed_catch_up
from statelog.spark.record import BatchRecord
from statelog.spark.spec import TaskAck, TaskSpec
from statelog.state.schema import OperatorStateSchema
from statelog.store import LocationPaths, open_store

_log = logging.getLogger("statelog.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """
    Everything about one stateful query that does not change while it runs.

    Args:
        location: Root of the state location.
        store_options, fsync: How to open it.
        schema: Key and state variables the processor asks for.
        processor: The user's processor.
        output: Schema of the output rows.
        arrow_output: The same in Arrow's types.
        key_positions, first_input: Layout of the input, see `KeyedFrame`.
        time_mode: "none" or "processingtime".
        delivery: How rows reach the sink.
        tasks: Number of tasks.
        max_parallelism: Number of key groups.
        inline_bytes: Deltas and rows of a task up to this size travel in its answer.
        checkpoints: How many to retain, and the like.
        materialization: When to write snapshots.
        restore: "latest", "empty", or a checkpoint id to go back to.
        adopt: Go on from state that another query wrote.
        on_progress: Called with the numbers of each batch.
    """

    location: str
    store_options: dict[str, Any]
    fsync: bool
    schema: OperatorStateSchema
    processor: StatefulProcessor
    output: StructType
    arrow_output: pa.Schema
    key_positions: tuple[int, ...]
    first_input: int
    time_mode: str
    delivery: Delivery
    tasks: int
    max_parallelism: int
    inline_bytes: int
    checkpoints: CheckpointOptions
    materialization: MaterializationPolicy
    restore: int | str
    adopt: bool
    on_progress: Callable[[BatchProgress], None] | None


class _Watch:
    """Splits the time of a batch into phases."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._last = self._start = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.milliseconds[phase] = (now - self._last) * 1e3
        self._last = now

    def total(self) -> dict[str, float]:
        return {**self.milliseconds, "total": (self._last - self._start) * 1e3}


class MicroBatchEngine:
    """
    Runs the micro-batches of one query; the function given to `foreachBatch`.

    Args:
        config: The query.
        sink: Takes the output frame and the batch id.
    """

    def __init__(self, config: EngineConfig, sink: Sink) -> None:
        self._config = config
        self._sink = sink
        self._schema = config.schema
        self._ranges: tuple[KeyGroupRange, ...] = split_key_groups(
            config.max_parallelism, config.tasks
        )
        self._store = open_store(config.location, options=config.store_options, fsync=config.fsync)
        self._coordinator = CheckpointCoordinator(
            self._store,
            LocationPaths(),
            owner_id=os.urandom(16).hex(),
            max_parallelism=config.max_parallelism,
            options=config.checkpoints,
            clock_ms=_now_ms,
        )
        self._epoch = 0
        self._base: CompletedCheckpoint | None = None
        self._next_id = 0

    def open(self) -> None:
        """
        Check that this query can go on from what the location holds; takes nothing over yet.

        Raises:
            CheckpointError: The newest checkpoint is damaged, or holds other state.
            StoreError: The location cannot be read.

        Blocks: On the store.   Thread: the caller of `start`.
        """
        config = self._config
        if isinstance(config.restore, int):
            return  # an explicit choice, made where the newest may be damaged
        newest = find_newest(self._store, LocationPaths()).newest
        if newest is None:
            return
        if config.restore == "empty":
            raise CheckpointError(
                f"restore='empty' was asked for, but {config.location} holds checkpoint "
                f"{newest.checkpoint_id}; use an empty stateLocation",
                reason="not_empty",
            )
        self._evolve(newest)

    def _evolve(self, base: CompletedCheckpoint) -> None:
        stored = OperatorStateSchema.from_json(BatchRecord.of(base).schema)
        self._schema = stored.evolved(self._config.schema)

    def _take_over(self, query_id: str) -> None:
        """Claim the location and find the checkpoint to start from."""
        config = self._config
        newest = None
        if not isinstance(config.restore, int):
            newest = find_newest(self._store, LocationPaths()).newest
        if newest is not None and not config.adopt:  # refuse before the rightful owner is fenced
            _check_query(newest, query_id, config.location)
        present = self._coordinator.checkpoints()
        self._epoch = self._coordinator.claim()
        wanted = config.restore if isinstance(config.restore, int) else None
        self._base = self._coordinator.restore(wanted)
        if self._base is not None:
            self._evolve(self._base)
        self._next_id = max(present, default=-1) + 1
        _log.info(
            "state location %s: epoch %d, base checkpoint %s, %d tasks, delivery %s",
            config.location,
            self._epoch,
            None if self._base is None else self._base.checkpoint_id,
            config.tasks,
            config.delivery.value,
        )

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process one micro-batch; called by Spark, which repeats a batch that did not finish."""
        context = frame.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        if not self._epoch:
            self._take_over(query_id)
            replay = self._is_replay(query_id, batch_id)
            if replay:
                self._replay(frame, batch_id)
                return
        watch = _Watch()
        spec = self._spec(batch_id)
        self._coordinator.trigger(spec.checkpoint_id, self._ranges)
        try:
            acks = self._run(frame, spec, watch)
            completed = self._commit(spec, query_id, acks, watch)
        except BaseException:
            # What failed is the news; a coordinator that was fenced refuses even this.
            with contextlib.suppress(StatelogError):
                self._coordinator.decline(spec.checkpoint_id, "the micro-batch failed")
            raise
        self._base, self._next_id = completed, completed.checkpoint_id + 1
        if self._config.delivery is Delivery.STAGED:
            self._deliver(frame, batch_id, completed, acks)
        watch.lap("deliver")
        self._clean_up()
        watch.lap("clean_up")
        self._report(spec, completed, acks, watch)

    def _clean_up(self) -> None:
        try:
            self._coordinator.clean_up()
        except StoreError as error:  # nothing is lost: `statelog gc` finds what stays behind
            _log.warning("could not delete what no checkpoint needs any more: %s", error)

    def _is_replay(self, query_id: str, batch_id: int) -> bool:
        """
        Return whether the run begins with a batch that is committed already.

        Raises:
            CheckpointError: The batch does not follow on the state.
        """
        base, config = self._base, self._config
        if base is None:
            if batch_id != 0 and config.restore != "empty":
                raise CheckpointError(
                    f"the query is at batch {batch_id}, but {config.location} holds no checkpoint: "
                    "its state is missing. Point stateLocation to the state, or ask for "
                    "restore='empty' to start without it",
                    reason="missing",
                )
            return False
        record = BatchRecord.of(base)
        if record.query_id != query_id:  # adopted
            return False
        last_batch = record.batch_id
        if batch_id != last_batch + 1 and not isinstance(config.restore, int):
            if batch_id == last_batch:
                return True
            raise CheckpointError(
                f"the query is at batch {batch_id}, but the state in {config.location} is that "
                f"after batch {last_batch}: they do not belong together. Restore a checkpoint that "
                "fits, by its id",
                reason="gap",
            )
        return False

    def _spec(self, batch_id: int) -> TaskSpec:
        config, base = self._config, self._base
        base_id = -1 if base is None else base.checkpoint_id
        committed = () if base is None else _added_by(base, base_id)
        overdue = config.materialization.choose(self._distances())
        return TaskSpec(
            location=config.location,
            store_options=config.store_options,
            fsync=config.fsync,
            epoch=self._epoch,
            batch_id=batch_id,
            checkpoint_id=max(self._next_id, batch_id),
            base_id=base_id,
            committed=committed,
            ranges=self._ranges,
            schema=self._schema.to_json(),
            key_positions=config.key_positions,
            first_input=config.first_input,
            output=config.arrow_output,
            processor=config.processor,
            time_mode=config.time_mode,
            now_ms=_now_ms() if config.time_mode != "none" else -1,
            snapshots=frozenset(() if overdue is None else (overdue,)),
            inline_bytes=config.inline_bytes,
            staged=config.delivery is Delivery.STAGED,
        )

    def _distances(self) -> list[LogDistance]:
        if self._base is None:
            return []
        distances = []
        for key_group_range in self._ranges:
            handle = self._base.for_range(key_group_range)
            distances.append(
                LogDistance(
                    log_bytes=sum(log.size_bytes for log in handle.log),
                    log_handles=len(handle.log),
                    snapshot_bytes=sum(max(m.handle.size_bytes, 0) for m in handle.materialized),
                )
            )
        return distances

    def _run(self, frame: DataFrame, spec: TaskSpec, watch: _Watch) -> list[TaskAck]:
        tasks = len(self._ranges)
        groups = self._config.max_parallelism
        partition = floor(col(KEY_GROUP_COLUMN) * tasks / groups).cast("int")
        partitioned = frame.repartitionById(tasks, partition)
        watch.lap("plan")
        if spec.staged:
            acks = collect_acks(partitioned, spec)
        else:
            gathered = frame.sparkSession.sparkContext.accumulator([], AckParam())
            output = partitioned.mapInArrow(
                partial(direct_task, spec, gathered), self._config.output
            )
            self._sink(output, spec.batch_id)
            fail_point("after-sink")
            acks = one_per_task(gathered.value)
            if len(acks) < tasks:  # the sink did not look at all rows; the state needs them
                output.write.format("noop").mode("append").save()
                acks = one_per_task(gathered.value)
        watch.lap("run")
        return acks

    def _commit(
        self, spec: TaskSpec, query_id: str, acks: Sequence[TaskAck], watch: _Watch
    ) -> CompletedCheckpoint:
        for ack in acks:
            self._coordinator.acknowledge(
                spec.checkpoint_id,
                TaskStateSnapshot(ack.key_group_range, ack.log, ack.materialized),
            )
        section, files = pack_outputs(acks)
        record = BatchRecord(
            operator_id=self._schema.operator_id,
            schema=spec.schema,
            query_id=query_id,
            batch_id=spec.batch_id,
            tasks=len(self._ranges),
            delivery=self._config.delivery.value,
            time_mode=spec.time_mode,
            now_ms=spec.now_ms,
            rows=sum(ack.rows for ack in acks),
            keys=sum(ack.keys for ack in acks),
            output_rows=sum(ack.output_rows for ack in acks),
            state_entries=sum(ack.entries for ack in acks),
            delta_bytes=sum(ack.delta_bytes for ack in acks),
            output_bytes=len(section or b"") + sum(handle.size_bytes for handle in files),
            output_files=[handle.to_json() for handle in files],
        )
        completed = self._coordinator.complete(
            spec.checkpoint_id,
            properties=record.to_properties(),
            sections={} if section is None else {OUTPUT_SECTION: section},
        )
        watch.lap("commit")
        return completed

    def _deliver(
        self,
        frame: DataFrame,
        batch_id: int,
        completed: CompletedCheckpoint,
        acks: Sequence[TaskAck] | None,
    ) -> None:
        """Give the committed rows to the sink; *acks* spare reading back what was just written."""
        config = self._config
        if acks is None:
            section = self._coordinator.section(completed.checkpoint_id, OUTPUT_SECTION)
        else:
            section, _ = pack_outputs(acks)
        output = output_frame(
            frame.sparkSession,
            config.output,
            config.arrow_output,
            unpack_outputs(section),
            BatchRecord.of(completed).staged_files(),
            config.location,
            config.store_options,
        )
        self._sink(output, batch_id)
        fail_point("after-sink")

    def _replay(self, frame: DataFrame, batch_id: int) -> None:
        """
        Deliver a committed batch again.

        With staged delivery these are the committed rows.  With direct delivery the sink had
        returned before the commit, so there is nothing to do.
        """
        watch = _Watch()
        base = self._base
        if base is None:
            raise StatelogError(f"batch {batch_id} cannot be replayed without a checkpoint")
        record = BatchRecord.of(base)
        if record.delivery == Delivery.STAGED.value:
            self._deliver(frame, batch_id, base, None)
        watch.lap("deliver")
        self._emit(
            BatchProgress(
                batch_id=batch_id,
                checkpoint_id=base.checkpoint_id,
                replayed=True,
                tasks=len(self._ranges),
                output_rows=record.output_rows,
                milliseconds=watch.total(),
            )
        )

    def _report(
        self,
        spec: TaskSpec,
        completed: CompletedCheckpoint,
        acks: Sequence[TaskAck],
        watch: _Watch,
    ) -> None:
        record = BatchRecord.of(completed)
        distances = self._distances()
        files = {path for ack in acks for path in _files_of(ack)}
        self._emit(
            BatchProgress(
                batch_id=spec.batch_id,
                checkpoint_id=completed.checkpoint_id,
                tasks=len(self._ranges),
                rows=record.rows,
                keys=record.keys,
                output_rows=record.output_rows,
                state_entries=record.state_entries,
                delta_bytes=record.delta_bytes,
                output_bytes=record.output_bytes,
                objects=1 + len(files),
                object_bytes=self._coordinator.committed_bytes,
                log_bytes=sum(distance.log_bytes for distance in distances),
                log_handles=sum(distance.log_handles for distance in distances),
                snapshots=sum(ack.materialized is not None for ack in acks),
                catch_up=summed_catch_up(acks),
                milliseconds=watch.total(),
                task_milliseconds=slowest_phases(acks),
            )
        )

    def _emit(self, progress: BatchProgress) -> None:
        _log.info("%s", progress)
        if self._config.on_progress is not None:
            self._config.on_progress(progress)


def _check_query(newest: CompletedCheckpoint, query_id: str, location: str) -> None:
    record = BatchRecord.of(newest)
    if record.query_id != query_id:
        raise CheckpointError(
            f"{location} holds the state of query {record.query_id} (up to its batch "
            f"{record.batch_id}), not of this query {query_id}. Use its "
            "checkpointLocation, or another stateLocation, or adopt=True to go on from this state",
            reason="other_query",
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _added_by(checkpoint: CompletedCheckpoint, checkpoint_id: int) -> tuple[str, ...]:
    """Return the ids of the log handles that this checkpoint itself added."""
    return tuple(
        log.state_handle_id for log in checkpoint.log if log.checkpoint_id == checkpoint_id
    )


def _files_of(ack: TaskAck) -> list[str]:
    """Return the objects that a task wrote to the store."""
    handles: list[object] = [ack.output]
    if ack.log is not None:
        handles += [entry.handle for entry in ack.log.handles_and_offsets]
    if ack.materialized is not None:
        handles.append(ack.materialized.handle)
    return [handle.path for handle in handles if isinstance(handle, FileStateHandle)]
