"""A job of one operator whose tasks run in this process, with commits and recordings, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor

from statelog.checkpoint.attachments import (
    Addition,
    Attachment,
    PutObject,
    of_kinds,
)
from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.extensions.bad_records.dead_letters import BAD_RECORDS
from statelog.extensions.bad_records.marks import FROZEN_MARK
from statelog.extensions.bad_records.policy import ErrorPolicy
from statelog.extensions.broadcasts.driver import BroadcastVersions, kept_broadcasts
from statelog.extensions.broadcasts.stored import BROADCAST
from statelog.extensions.recordings.driver import key_bytes_of, keys_of_operators
from statelog.extensions.recordings.format import DEAD_LETTERS, RECORDING
from statelog.extensions.recordings.location import list_recordings, read_recording
from statelog.extensions.recordings.step import RecordedStep, steps_of
from statelog.metrics.table import BatchFigures
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import CompletedCheckpoint, TaskStateSnapshot
from statelog.options import CheckpointOptions, task_options
from statelog.runtime.clock import RandomIds
from statelog.spark.driver.extension import AttachingExtension, BatchStart, LocationObjects
from statelog.spark.extension_table import EXTENSIONS, loaded
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import declared_by
from statelog.spark.query.record import Record, RecordSpec
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InputLayout
from statelog.spark.rows.types import arrow_schema
from statelog.spark.worker.protocol import (
    BatchContext,
    TaskAck,
    TaskRows,
    TaskSpec,
    TaskState,
    part_of,
)
from statelog.spark.worker.task import run_task
from statelog.state.keys.key_groups import key_group_of
from statelog.store import open_store

GROUPS = 16


ATTACHING = [
    kind for row in EXTENSIONS if issubclass(kind := loaded(row.driver, type), AttachingExtension)
]
"""The extensions whose tasks add to attachments."""


def added_by(ack: TaskAck, name: str) -> tuple[Addition, ...]:
    """Return what a task adds to the attachments of an extension."""
    return part_of(ack.extras, name, tuple) or ()


def steps_recorded_by(job: RecordedJob) -> list[RecordedStep]:
    """Return the steps of all recordings and dead letters of a job."""
    return [
        step
        for stored in list_recordings(job.store)
        for task in read_recording(job.store, stored)
        for step in steps_of(task)
    ]


def attaching(
    kind: type[AttachingExtension], settings: QuerySettings, put: PutObject
) -> AttachingExtension:
    """Return the half of an extension that attaches, without a query."""
    extension = object.__new__(kind)
    AttachingExtension.__init__(extension, settings, put)
    return extension


@dataclass
class RecordedJob:
    """
    Runs micro-batches and commits them.

    *rows* have the columns of *columns*, the first of which is the key.
    """

    location: str
    processor: StatefulProcessor
    columns: str
    output: str
    record: Record | None
    time_mode: str = "processingtime"
    pandas: bool = False
    tasks: int = 1
    record_bytes: int = 1 << 20
    input_bytes: int = 1 << 30
    inline_bytes: int = 1 << 20
    retained: int = 3
    settings: QuerySettings = field(default_factory=QuerySettings)
    base: CompletedCheckpoint | None = None
    batch_id: int = -1
    operator_id: str = "totals"
    owner_id: str = "test"
    checkpoint_location: str | None = None
    errors: ErrorPolicy | None = None
    repeated: int | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.store = open_store(self.location, storage_options={"fsync": False})
        self.input = arrow_schema(parse_ddl(self.columns))
        self.key = pa.schema([self.input.field(0)])
        self.schema, self.declared = declared_by(
            self.processor, self.operator_id, self.key, parse_ddl, time_mode=self.time_mode
        )
        if self.errors is not None and self.errors.freezes:
            self.schema = replace(self.schema, states=(*self.schema.states, FROZEN_MARK))
        self.attach(self.settings)
        self.coordinator = CheckpointCoordinator(
            self.store,
            owner_id=self.owner_id,
            max_parallelism=GROUPS,
            options=CheckpointOptions(retained=self.retained),
            clock_ms=lambda: 0,
        )
        self.epoch, self.run_id = self.coordinator.claim(), RandomIds().new_id()
        self.base = self.coordinator.restore()
        if self.base is not None:
            self.batch_id = BatchRecord.of(self.base).batch_id
        self.versions = BroadcastVersions(
            self.settings, self.store, self.repeated, lambda: self.clock()
        )
        self.broadcasts: tuple[Attachment, ...] = ()

    def attach(self, settings: QuerySettings) -> None:
        """Keep attachments by other settings from now on."""
        put = LocationObjects(self.store, task_options().changelog).put
        self.extensions = [attaching(kind, settings, put) for kind in ATTACHING]

    def row_format(self) -> RowFormat:
        if not self.pandas:
            return SparkRowFormat()
        from statelog.spark.rows.pandas_input import PandasSettings

        return PandasRowFormat(PandasSettings.defaults(), parse_ddl(self.output))

    def batches(
        self, rows: Sequence[tuple[Any, ...]], ranges: Sequence[KeyGroupRange]
    ) -> list[Any]:
        parts: list[list[tuple[Any, ...]]] = [[] for _ in ranges]
        for row in rows:
            group = key_group_of(row[:1], self.key, GROUPS)
            task = next(number for number, groups in enumerate(ranges) if group in groups)
            parts[task].append((group, *row))
        schema = pa.schema([pa.field(INPUT_KEY_GROUP_COLUMN, pa.int32()), *self.input])
        inputs = []
        for part in parts:
            columns = list(zip(*part, strict=True)) if part else [[] for _ in schema]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
            half = whole.num_rows // 2  # rows of a key in several batches
            inputs.append([whole.slice(0, half), whole.slice(half)])
        return inputs

    def spec(self, now_ms: int, watermark_ms: int, ranges: tuple[KeyGroupRange, ...]) -> TaskSpec:
        base_id = -1 if self.base is None else self.base.checkpoint_id
        handles = () if self.base is None else self.base.log
        record = None if self.base is None else BatchRecord.of(self.base)
        self.broadcasts = self.versions.choose(
            self.batch_id,
            None if self.base is None else base_id,
            record,
            self.coordinator.next_checkpoint_id,
        )
        return TaskSpec(
            context=BatchContext(
                self.processor, self.batch_id, self.time_mode, now_ms, watermark_ms
            ),
            rows=TaskRows(
                layout=InputLayout((1,), 1),
                row_format=self.row_format(),
                output=arrow_schema(parse_ddl(self.output)),
                input_bytes=self.input_bytes,
            ),
            state=TaskState(
                location=self.location,
                storage_options={},
                epoch=self.epoch,
                run_id=self.run_id,
                schema=self.schema.to_json(),
            ),
            checkpoint_id=self.coordinator.next_checkpoint_id,
            base_id=base_id,
            restore_id=base_id,
            committed=tuple(
                handle.state_handle_id for handle in handles if handle.checkpoint_id == base_id
            ),
            ranges=ranges,
            snapshots={},
            inline_bytes=self.inline_bytes,
            staged=True,
            extras={name: part for name, part in self.parts(len(ranges)).items() if part},
        )

    def parts(self, tasks: int) -> dict[str, object]:
        """Return what the extensions tell a task."""
        record = None
        if self.record is not None:
            task_bytes = max(self.record_bytes // tasks, 1)
            record = RecordSpec(
                share=self.record.share,
                keys=keys_of_operators(self.record, [self.key])[0],
                batch_bytes=task_bytes,
                key_bytes=min(key_bytes_of(self.record_bytes), task_bytes),
                operator_id="",
            )
        return {
            **self.declared,
            "recordings": record,
            BAD_RECORDS: self.errors,
            "broadcasts": self.broadcasts,
        }

    def run(
        self, rows: Sequence[tuple[Any, ...]], now_ms: int = 1000, watermark_ms: int = -1
    ) -> list[TaskAck]:
        """Run one micro-batch and commit it; an error of a task leaves it uncommitted."""
        self.batch_id += 1
        ranges = tuple(KeyGroupRange(0, GROUPS - 1).split(self.tasks))
        try:
            acks = self.answers(rows, now_ms, watermark_ms, ranges)
        except BaseException:
            self.batch_id -= 1
            raise
        self.commit(acks, ranges, now_ms)
        return acks

    def run_killed(self, rows: Sequence[tuple[Any, ...]], now_ms: int = 1000) -> None:
        """Run a micro-batch whose driver dies after the tasks, before the put of the commit."""

        def die(*arguments: object, **named: object) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(self.coordinator, "complete", die)
            self.run(rows, now_ms)

    def answers(
        self,
        rows: Sequence[tuple[Any, ...]],
        now_ms: int,
        watermark_ms: int,
        ranges: tuple[KeyGroupRange, ...],
    ) -> list[TaskAck]:
        spec = self.spec(now_ms, watermark_ms, ranges)
        acks: list[TaskAck] = []
        for key_range, batches in zip(ranges, self.batches(rows, ranges), strict=True):
            # Outside Spark a task is the first partition.
            others = [other for other in ranges if other != key_range]
            for _ in run_task(replace(spec, ranges=(key_range, *others)), batches, acks.append):
                pass
        return acks

    def commit(self, acks: Sequence[TaskAck], ranges: Sequence[KeyGroupRange], now_ms: int) -> None:
        checkpoint_id = self.coordinator.next_checkpoint_id
        self.coordinator.trigger(checkpoint_id, ranges)
        for ack in acks:
            snapshot = TaskStateSnapshot(ack.place.key_range, ack.changes.log)
            self.coordinator.acknowledge(checkpoint_id, snapshot)
        attachments = self.attached(acks, checkpoint_id, now_ms)
        record = BatchRecord(
            operators=(
                OperatorRecord(
                    operator_id=self.operator_id, schema=self.schema.to_json(), state_entries=0
                ),
            ),
            query_id="q",
            batch_id=self.batch_id,
            location=self.coordinator.timeline.location_id,
            timeline=self.coordinator.timeline.number,
            figures=BatchFigures(tasks=len(acks)),
            delivery="staged",
            time_mode=self.time_mode,
            now_ms=now_ms,
            output_files=[],
            checkpoint_location=self.checkpoint_location,
            attachments=attachments,
        )
        self.base = self.coordinator.complete(
            checkpoint_id, properties=record.to_properties(), sections={}
        )
        for extension in self.extensions:
            AttachingExtension.committed(extension, self.batch_id, acks)
        self.coordinator.clean_up()

    def attached(
        self, acks: Sequence[TaskAck], checkpoint_id: int, now_ms: int
    ) -> tuple[Attachment, ...]:
        record = None if self.base is None else BatchRecord.of(self.base)
        answers = {self.operator_id: acks}
        start = BatchStart(self.batch_id, checkpoint_id, None, record)
        attached: list[Attachment] = []
        for extension in self.extensions:
            attached += extension.attachments(start, answers, attached, now_ms)
        replayed = of_kinds(attached, RECORDING, DEAD_LETTERS)
        before = of_kinds(start.attachments, BROADCAST)
        return (*attached, *kept_broadcasts(before, self.broadcasts, replayed))
