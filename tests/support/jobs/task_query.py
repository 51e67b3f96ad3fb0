"""A query whose tasks run in this process, without Spark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from tests.support.spark.random_programs import INPUT, OUTPUT

from statelog.model import KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle
from statelog.spark import StatefulProcessor
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import declared_by
from statelog.spark.rows.formats import RowFormat, SparkRowFormat
from statelog.spark.rows.layout import InitialLayout, InputLayout
from statelog.spark.rows.types import arrow_schema, from_ipc, make_row
from statelog.spark.worker import task as task_module
from statelog.spark.worker.kept_states import KeptStates
from statelog.spark.worker.protocol import BatchContext, TaskAck, TaskRows, TaskSpec, TaskState
from statelog.spark.worker.task import run_task
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.schema import OperatorStateSchema
from statelog.store import open_store

GROUPS = 32
ALL = KeyGroupRange(0, GROUPS - 1)
KEY = pa.schema([("key", pa.string()), ("part", pa.string())])


def arrow_input(
    rows: list[tuple[Any, ...]], ddl: str = INPUT, keys: int = 2
) -> list[pa.RecordBatch]:
    """Return rows as a task gets them: small batches, the key group first."""
    schema = arrow_schema(parse_ddl(ddl))
    groups = [key_group_of(row[:keys], pa.schema(list(schema)[:keys]), GROUPS) for row in rows]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows), schema)]  # noqa: B905
    table = pa.table([pa.array(groups, pa.int32()), *columns], names=["__key_group", *schema.names])
    return table.to_batches(max_chunksize=37)


def changed(spec: TaskSpec, **changes: Any) -> TaskSpec:
    """Return *spec* with other values, each in the part that has a field of this name."""
    for name, value in changes.items():
        parts = [
            part for part in ("context", "rows", "state") if hasattr(getattr(spec, part), name)
        ]
        if parts:
            spec = replace(spec, **{parts[0]: replace(getattr(spec, parts[0]), **{name: value})})
        else:
            spec = replace(spec, **{name: value})
    return spec


class Query:
    """
    Micro-batches of one task, with what the driver would keep.

    Args:
        folder: Of the state location.
        processor: The processor.
        changes: Of the task's specification.
    """

    def __init__(
        self,
        folder: Path,
        processor: StatefulProcessor,
        row_format: RowFormat,
        input_bytes: int,
        *,
        time_mode: str = "none",
        output: str = OUTPUT,
        key: pa.Schema = KEY,
        **changes: Any,
    ) -> None:
        self.location = folder.as_uri()
        self.acks: list[TaskAck] = []
        schema = declared_by(processor, "op", key, parse_ddl, time_mode=time_mode).state
        spec = TaskSpec(
            context=BatchContext(processor, 0, time_mode),
            rows=TaskRows(
                layout=InputLayout(tuple(range(1, 1 + len(key))), 1),
                row_format=row_format,
                output=arrow_schema(parse_ddl(output)),
                input_bytes=input_bytes,
            ),
            state=TaskState(
                location=self.location,
                storage_options={},
                epoch=1,
                schema=schema.to_json(),
            ),
            checkpoint_id=0,
            base_id=-1,
            restore_id=-1,
            committed=(),
            ranges=(ALL,),
            snapshots={},
            inline_bytes=0,
            staged=True,
        )
        self.spec = changed(spec, **changes)

    def run(
        self, batches: list[pa.RecordBatch], *, forget: bool = False, **changes: Any
    ) -> list[dict[str, Any]]:
        """Run one micro-batch and return its output rows; *forget* starts a new worker."""
        if forget:
            task_module._states = KeptStates()
        number = len(self.acks)
        last = self.acks[-1].changes.log if self.acks else None
        spec = changed(
            self.spec,
            batch_id=number,
            checkpoint_id=number,
            base_id=number - 1,
            committed=() if last is None else (last.state_handle_id,),
            **changes,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task_module, "_load", lambda *_: (self.store, self.restored()))
            output: list[Any] = list(run_task(spec, iter(batches), self.acks.append))
        if spec.staged:
            staged = self.acks[-1].output.staged
            assert not isinstance(staged, bytes)
            output = [from_ipc(self.store.get(file.path)) for file in staged or ()]
        return [row for part in output for row in part.to_pylist()]

    @property
    def store(self) -> Any:
        return open_store(self.location)

    def restored(self) -> ChangelogStateBackendHandle:
        changes = [ack.changes for ack in self.acks]
        snapshots = tuple(change.snapshot for change in changes if change.snapshot is not None)[-1:]
        covered = snapshots[0].checkpoint_id if snapshots else -1
        logs = (change.log for change in changes if change.log is not None)
        log = tuple(handle for handle in logs if handle.checkpoint_id > covered)
        return ChangelogStateBackendHandle(ALL, len(self.acks) - 1, snapshots, log)

    def tables(self) -> dict[int, list[dict[Any, Any]]]:
        """Return the state by key group, as replayed from the log."""
        codec = OperatorCodec(OperatorStateSchema.from_json(self.spec.state.schema), make_row)
        state = KeyedState(codec)
        state.catch_up(ALL, len(self.acks) - 1, (), lambda: (self.store, self.restored()))
        return {group: state.groups[group].tables for group in ALL}


NUMBERS = pa.schema([("key", pa.int64())])
COUNTS = "key long, n long, total double"


class Counting(StatefulProcessor):
    """Count and sum per key, and a timer for each even key."""

    def __init__(self, has_timers: bool = False) -> None:
        self.has_timers = has_timers

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, total double")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        n, total = self.total.get() or (0, 0.0)
        self.total.update((n + 100, total + initialState.value))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n, total = self.total.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, 2 * total + row.value
        self.total.update((n, total))
        if self.has_timers and key[0] % 2 == 0:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + key[0] % 3)
        yield Row(key=key[0], n=n, total=total)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        n, total = self.total.get() or (0, 0.0)
        self.total.update((n + 1000, total))
        yield Row(key=key.key, n=n, total=float(expiredTimerInfo.getExpiryTimeInMs()))


def numbers(count: int, keys: int, seed: int = 1) -> list[pa.RecordBatch]:
    """Return rows whose value says in which order they came."""
    rng = np.random.default_rng(seed)
    rows = [(int(key), float(at % 7)) for at, key in enumerate(rng.integers(0, keys, count))]
    return arrow_input(rows, "key long, value double", 1)


def counting(
    folder: Path, bound: int, processor: StatefulProcessor | None = None, **changes: Any
) -> Query:
    return Query(
        folder,
        processor or Counting(),
        SparkRowFormat(),
        bound,
        output=COUNTS,
        key=NUMBERS,
        **{"staged": False, **changes},
    )


INITIAL = InitialLayout(InputLayout((1,), 1), ("key", "value"), ("key", "value"))


def of_initial(is_initial: bool, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return rows of `numbers` as a first micro-batch with initial state has them."""
    mixed = []
    for batch in batches:
        nothing = [pa.nulls(batch.num_rows, column.type) for column in batch.columns[1:]]
        mark, values = pa.array([is_initial] * batch.num_rows), batch.columns[1:]
        columns = [*nothing, *values] if is_initial else [*values, *nothing]
        arrays = [batch.column(0), mark, *columns]
        mixed.append(pa.RecordBatch.from_arrays(arrays, ["g", "i", "c0", "c1", "c2", "c3"]))
    return mixed
