"""
A query of one operator without Spark: real tasks in this process, over a state location in memory.

The tasks are the same as in Spark's workers, and the commits the same as on the driver.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeAlias
from zlib import crc32

import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.errors import ProcessorError
from statelog.extensions.recordings.format import Cells, cells_of
from statelog.extensions.testing.key_state import state_id_of
from statelog.extensions.testing.tester_rows import INITIAL, LAYOUT, GivenFormat
from statelog.format.buffers import checksum
from statelog.model import (
    DEFAULT_MAX_PARALLELISM,
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)
from statelog.options import CheckpointOptions, Options
from statelog.runtime.clock import RandomIds
from statelog.spark.query.state_variables import WantedVariable, bind_variable
from statelog.spark.rows.spark_versions import WrongArgumentError
from statelog.spark.rows.types import make_row
from statelog.spark.worker.extension import TaskExtensions
from statelog.spark.worker.handle import TaskHandle
from statelog.spark.worker.kept_states import KeptStates
from statelog.spark.worker.protocol import BatchContext, TaskAck, TaskRows, TaskSpec, TaskState
from statelog.spark.worker.task import Worker, run_task
from statelog.state.columnar.run_files import StateBackendConfig
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.kinds import Key
from statelog.state.objects import BoundState, Cursor, Timers
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema
from statelog.store import PATHS, ObjectStore, open_store
from statelog.store.client import forget_memory_store

Place: TypeAlias = tuple[int, Key, Key]
"""The group of a key, and the key as tables hold it and as the processor gets it."""

KEY_GROUPS: Final = KeyGroupRange(0, DEFAULT_MAX_PARALLELISM - 1)
_LOGS_MAX: Final = 32
"""Logs after which a snapshot is written: each commit names all logs since."""


class PlainExtensions(TaskExtensions):
    """The extensions of a task in a test."""

    def failed(self, error: ProcessorError) -> ProcessorError:
        """Return the error without advice for a query."""
        return error


class KeyHandle(TaskHandle):
    """The handle of one key, which says at once which states there are when asked for another one."""

    def _variable(self, asked: WantedVariable) -> BoundState:
        """Return the state object; of a reducing or aggregating state, what is kept."""
        state_id = state_id_of(self._codec, asked.name)
        state = self._codec.states[state_id]
        if state.descriptor.kind is not asked.kind:
            kind = state.descriptor.kind_text
            raise WrongArgumentError(f"state {asked.name!r} is a {kind} state")
        return bind_variable(self._cursor, state_id, state)

    variable = _variable


class MemoryJob:
    """
    Runs micro-batches of a processor, and commits them.

    Attributes: `codec`: the codec of the state; `store`: the location.
    """

    def __init__(
        self,
        schema: OperatorStateSchema,
        time_mode: str,
        extensions: type[TaskExtensions] = PlainExtensions,
    ) -> None:
        self.store: ObjectStore = open_store(f"memory:///{RandomIds().new_id()}")
        weakref.finalize(self, forget_memory_store, self.store.url)
        self._coordinator = CheckpointCoordinator(
            self.store,
            owner_id="test",
            max_parallelism=len(KEY_GROUPS),
            options=CheckpointOptions(retained=1),
            clock_ms=lambda: 0,
        )
        self._location = TaskState(
            location=self.store.url,
            storage_options={},
            epoch=self._coordinator.claim(),
            schema=schema.to_json(),
            backend=StateBackendConfig("memory", budget_bytes=sys.maxsize),
        )
        self._storage = FsStateChangelogStorage.from_options(
            Options(changelog=self._location.changelog),
            self.store,
            job_id="",
            inline_bytes=sys.maxsize,
        )
        self._coordinator.restore()
        self._base = self._complete(None)
        self._time_mode = time_mode
        self._extensions = extensions
        self._begin()

    def _begin(self) -> None:
        """Begin with a new worker, which reads all state again."""
        self._worker = Worker(KeptStates(), self._extensions, owns_process=False)
        schema = OperatorStateSchema.from_json(self._location.schema)
        self._view = KeyedState(OperatorCodec(schema, make_row))
        self.codec = self._view.codec

    # ---------------------------------------------------------------------------- micro-batches

    def run(
        self,
        context: BatchContext,
        rows: GivenFormat,
        output: pa.Schema | None,
        extras: Mapping[str, object],
    ) -> tuple[list[pa.RecordBatch], Mapping[str, object]]:
        """
        Run one micro-batch, and commit it.

        Returns:
            The output, and what extensions answer.
        """
        layout = TaskRows(
            layout=LAYOUT,
            row_format=rows,
            output=output or pa.schema([]),
            initial=None if rows.initial is None else INITIAL,
        )
        acks: list[TaskAck] = []
        spec = self._spec(context, layout, extras)
        produced = list(run_task(spec, (), acks.append, self._worker))
        (ack,) = acks
        self._commit(ack.changes.log)
        return produced, ack.extras

    def _spec(
        self, context: BatchContext, rows: TaskRows, extras: Mapping[str, object]
    ) -> TaskSpec:
        return TaskSpec(
            context=context,
            rows=rows,
            state=self._location,
            checkpoint_id=self._coordinator.next_checkpoint_id,
            base_id=self._base.checkpoint_id,
            restore_id=self._base.checkpoint_id,
            committed=self._committed,
            ranges=(KEY_GROUPS,),
            snapshots={},  # a task would write it by threads, which a test does not end
            inline_bytes=sys.maxsize,
            staged=False,
            extras=extras,
        )

    @property
    def _committed(self) -> tuple[str, ...]:
        """The names of the logs that the newest checkpoint added."""
        base = self._base
        return tuple(
            log.state_handle_id for log in base.log if log.checkpoint_id == base.checkpoint_id
        )

    def _complete(
        self, log: ChangelogStateHandle | None, snapshot: MaterializedHandle | None = None
    ) -> CompletedCheckpoint:
        """Complete the next checkpoint, of what a task or a test wrote."""
        checkpoint_id = self._coordinator.next_checkpoint_id
        self._coordinator.trigger(checkpoint_id, [KEY_GROUPS])
        written = TaskStateSnapshot(KEY_GROUPS, log, snapshot)
        self._coordinator.acknowledge(checkpoint_id, written)
        return self._coordinator.complete(checkpoint_id, properties={})

    def _commit(self, log: ChangelogStateHandle | None) -> None:
        self._base = self._complete(log)
        if len(self._base.log) >= _LOGS_MAX:
            self._write_snapshot(-1)

    def _write_snapshot(self, now_ms: int) -> None:
        """Commit a snapshot of what has not expired, and delete the log before it."""
        data = self._state().snapshot(KEY_GROUPS, {}, now_ms)
        path = PATHS.task_owned(RandomIds().new_id())
        self.store.put(path, data)
        handle = FileStateHandle(path, len(data), checksum([data]))
        snapshot = MaterializedHandle(KEY_GROUPS, self._base.checkpoint_id, handle)
        self._base = self._complete(None, snapshot)
        self._coordinator.clean_up()

    def restart(self, now_ms: int) -> None:
        """Read the state from the log, write a snapshot of it, and read that."""
        self._begin()
        self._write_snapshot(now_ms)
        self._begin()
        self._state()

    # ------------------------------------------------------------------------- the state of a key

    def _state(self) -> KeyedState:
        """Return the state as of the newest checkpoint."""
        base = self._base
        self._view.catch_up(
            KEY_GROUPS,
            base.checkpoint_id,
            self._committed,
            lambda: (self.store, base.for_range(KEY_GROUPS)),
        )
        return self._view

    def place(self, key: Key) -> Place:
        """Return the place of the key with these values of its columns."""
        codec = self.codec.key
        frozen = codec.freeze(key)
        if any(pa.types.is_struct(kind) for kind in codec.schema.types):
            # Only Spark can hash a struct; the group makes no difference here.
            return crc32(repr(frozen).encode("utf-8")) % len(KEY_GROUPS), frozen, key
        return key_group_of(key, codec.schema, len(KEY_GROUPS)), frozen, key

    def cells(self, place: Place) -> Cells:
        """Return the cells of a key."""
        return cells_of(self._state().groups[place[0]], place[1])

    def set_cells(self, place: Place, cells: Cells) -> None:
        """Make *cells* the state of a key."""
        overlay = self._overlay()
        for state_id, kind in enumerate(self.codec.kinds):
            cell, rules = cells.get(state_id), kind.rules
            delta = rules.replacing_delta(cell) if cell else rules.clear_delta()
            overlay[state_id][place[1]] = delta
        self._change({place[0]: overlay})

    @contextmanager
    def opened(self, place: Place, now_ms: int) -> Iterator[KeyHandle]:
        """Return the handle of a key, and commit what the block changes."""
        state, overlay, cursor = self._state(), self._overlay(), Cursor(now_ms)
        timers = None
        if self._time_mode != "none":
            timers_id = self.codec.schema.state_id(TIMERS_NAME)
            timers = Timers(cursor, timers_id, self.codec.states[timers_id].value)
        cursor.enter(state.groups[place[0]], overlay)
        cursor.key = place[1]
        yield KeyHandle(cursor, self.codec, timers, lambda state_id: None)
        self._change({place[0]: overlay})

    def drop(self, name: str) -> None:
        """Delete a state variable for all keys."""
        state_id = self.codec.schema.state_id(name)
        clear = self.codec.kinds[state_id].rules.clear_delta
        overlays: dict[int, Overlay] = {}
        for group, content in self._state().groups.items():
            overlays[group] = self._overlay()
            overlays[group][state_id].update((key, clear()) for key in content.tables[state_id])
        self._change(overlays)

    def _overlay(self) -> Overlay:
        return [{} for _ in self.codec.states]

    def _change(self, overlays: Mapping[int, Overlay]) -> None:
        """Commit changes of a test; raises Arrow's errors if a value does not fit."""
        changes = self.codec.encode(overlays)
        if not len(changes):
            return
        before = self._base.checkpoint_id
        with self._storage.create_writer(self.codec.schema.operator_id, KEY_GROUPS) as writer:
            writer.append_meta(self.codec.metadata_change())
            writer.append_batch(changes.key_groups, changes.values)
            start, checkpoint_id = writer.initial_sequence_number(), before + 1
            log = writer.persist(start, checkpoint_id=checkpoint_id).result().job_manager_owned
        self._commit(log)
        if log is not None:  # so that the next look at the state does not read it
            name = log.state_handle_id
            self._view.stage(checkpoint_id, before, name, KEY_GROUPS, dict(overlays))
