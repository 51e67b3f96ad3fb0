"""
Run a query of one operator without Spark: real tasks on a state location in memory.

The tasks are the same as in Spark's workers, and the commits the same as on the driver.  A test
writes and reads the state of a key as tuples, lists of tuples and dicts of tuples, which are
converted to cells of the tables and back.  `TesterHandle` is the handle of PySpark's TwsTester.
Deviations: it has only the state variables that `init` creates, and each call commits its changes.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.errors import ProcessorError, UsageError
from statelog.extensions.recordings.format import Cells, cells_of
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
from statelog.spark.query.state_variables import (
    STATE_CLASSES,
    StateVariables,
    WantedVariable,
    bind_variable,
    methods_of,
)
from statelog.spark.rows.spark_versions import (
    MissingStateError,
    UnsupportedOperationError,
    WrongArgumentError,
    WrongTimeError,
)
from statelog.spark.rows.types import make_row
from statelog.spark.worker.extension import TaskExtensions
from statelog.spark.worker.handle import TaskHandle
from statelog.spark.worker.kept_states import KeptStates
from statelog.spark.worker.protocol import BatchContext, TaskAck, TaskRows, TaskSpec, TaskState
from statelog.spark.worker.task import Worker, run_task
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.heap import Overlay, StateBackendConfig
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.kinds import FromPython, Key, Values
from statelog.state.objects import BoundState, Cursor, Timers
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor
from statelog.store import PATHS, ObjectStore, open_location
from statelog.store.client import forget_memory_store

NO_TIMERS: Final = "timers require the ProcessingTime or EventTime time mode; this tester uses None"
"""The error of a tester in the time mode None."""


def type_of_key(key: object) -> pa.DataType:
    """Infer the type of a key value; None, which fits any type, becomes text."""
    if key is None:
        return pa.string()
    if type(key) is tuple:
        return pa.struct([(f"_{place}", type_of_key(part)) for place, part in enumerate(key, 1)])
    kind = pa.infer_type([key])
    # As in a query, a point in time is kept in UTC, whatever the zone of the first key.
    return pa.timestamp("us", "UTC") if getattr(kind, "tz", None) else kind


def cells_given(
    codec: OperatorCodec, state: Mapping[str, object], expires: Mapping[str, object], now_ms: int
) -> Cells:
    """Convert the given state of a key to cells."""
    cells: Cells = {}
    for name, value in state.items():
        state_id = state_id_of(codec, name)
        cell = _cell(codec.states[state_id], value, expires.get(name), now_ms)
        if cell:
            cells[state_id] = cell
    return cells


def timers_given(codec: OperatorCodec, timers: Sequence[int]) -> Cells:
    """Convert timers to a cell; raise `UsageError` if the time mode does not allow timers."""
    try:
        state_id = codec.schema.state_id(TIMERS_NAME)
    except KeyError:
        raise UsageError(NO_TIMERS) from None
    return {state_id: tuple(sorted(set(timers)))}


def state_id_of(codec: OperatorCodec, name: str) -> int:
    """Return the id of a variable; raise `WrongArgumentError` if `init` does not create it."""
    live = (codec.schema.states[state_id].name for state_id in codec.live)
    names = [created for created in live if created != TIMERS_NAME]
    if name not in names:
        raise WrongArgumentError(
            f"init does not create the state {name!r}; it creates {', '.join(names) or 'none'}"
        )
    return codec.schema.state_id(name)


def _cell(state: StateCodec, value: object, expires: object, now_ms: int) -> object:
    ttl_ms = state.descriptor.ttl_ms

    def entry(fields: Iterable[object], expires_ms: object) -> tuple[object, ...]:
        value: tuple[object, ...] = state.value.normalize(fields)
        if ttl_ms is None:
            return value
        return now_ms + ttl_ms if expires_ms is None else expires_ms, value

    if value is None:
        return None

    def user_key(fields: Iterable[object]) -> Values:
        if state.user_key is None:
            raise UsageError(f"state {state.descriptor.name!r} does not have map keys")
        normalized: Values = state.user_key.normalize(fields)
        return normalized

    return state.kind.from_python(
        value, FromPython(state.descriptor.name, entry, user_key), expires
    )


class KeyContent(NamedTuple):
    """The state of a key by variable, its expiry times, and its timers in ascending order."""

    state: dict[str, object]
    expiry: dict[str, object]
    timers: list[int]


def content_of(codec: OperatorCodec, cells: Cells, now_ms: int) -> KeyContent:
    """Return the content of a key's cells that has not expired by *now_ms*."""
    content = KeyContent({}, {}, [])
    for state_id in codec.live:
        variable = codec.states[state_id]
        name = variable.descriptor.name
        cell = cells.get(state_id)
        if cell and variable.expires:
            cell = variable.kind.live_cell(cell, now_ms)
        if not cell:
            continue
        if name == TIMERS_NAME:
            content.timers.extend(cell)
        elif variable.expires:
            content.expiry[name] = variable.kind.to_python(cell, itemgetter(0))
            content.state[name] = variable.kind.to_python(cell, itemgetter(1))
        else:
            content.state[name] = variable.kind.to_python(cell, lambda entry: entry)
    return content


Place: TypeAlias = tuple[int, Key, Key]
"""The group of a key, and the key as tables store it and as the processor gets it."""

KEY_GROUPS: Final = KeyGroupRange(0, DEFAULT_MAX_PARALLELISM - 1)
_LOGS_MAX: Final = 32
"""Logs after which a snapshot is written: each commit names all logs since."""


class PlainExtensions(TaskExtensions):
    """The extensions of a task that runs in a test."""

    def failed(self, error: ProcessorError) -> ProcessorError:
        """Return the error without the advice that applies only to queries."""
        return error


class KeyHandle(TaskHandle):
    """The handle for one key; errors about an unknown state list the existing ones."""

    def _variable(self, asked: WantedVariable) -> BoundState:
        """Return the state object, or the accumulator of a reducing or aggregating state."""
        state_id = state_id_of(self._codec, asked.name)
        state = self._codec.states[state_id]
        if state.descriptor.kind is not asked.kind:
            kind = state.descriptor.kind_text
            raise WrongArgumentError(f"state {asked.name!r} is a {kind} state")
        return bind_variable(self._cursor, state_id, state)

    variable = _variable


class MemoryJob:
    """
    Runs the micro-batches of a processor, and commits them.

    Attributes: `codec`: the codec of the state; `store`: the location.
    """

    def __init__(
        self,
        schema: OperatorStateSchema,
        time_mode: str,
        extensions: type[TaskExtensions] = PlainExtensions,
    ) -> None:
        self.store: ObjectStore = open_location(f"memory:///{RandomIds().new_id()}")
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
        """Start a new worker, which must read all state again."""
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
        """The names of the log files added by the newest checkpoint."""
        base = self._base
        return tuple(
            log.state_handle_id for log in base.log if log.checkpoint_id == base.checkpoint_id
        )

    def _complete(
        self, log: ChangelogStateHandle | None, snapshot: MaterializedHandle | None = None
    ) -> CompletedCheckpoint:
        """Complete the next checkpoint from what a task or a test wrote."""
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
        """Commit a snapshot of state that has not expired, and delete the log before it."""
        data = self._state().snapshot(KEY_GROUPS, {}, now_ms)
        path = PATHS.task_owned(RandomIds().new_id())
        self.store.put(path, data)
        handle = FileStateHandle(path, len(data), checksum([data]))
        snapshot = MaterializedHandle(KEY_GROUPS, self._base.checkpoint_id, handle)
        self._base = self._complete(None, snapshot)
        self._coordinator.clean_up()

    def restart(self, now_ms: int) -> None:
        """Read the state from the log, write a snapshot of it, and read the snapshot back."""
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
        """Return the position of the key with these column values."""
        codec = self.codec.key
        hashable = codec.to_hashable(key)
        if any(pa.types.is_struct(kind) for kind in codec.schema.types):
            # Only Spark can hash a struct; the group makes no difference here.
            return crc32(repr(hashable).encode("utf-8")) % len(KEY_GROUPS), hashable, key
        return key_group_of(key, codec.schema, len(KEY_GROUPS)), hashable, key

    def cells(self, place: Place) -> Cells:
        """Return the cells of a key."""
        return cells_of(self._state().groups[place[0]], place[1])

    def set_cells(self, place: Place, cells: Cells) -> None:
        """Make *cells* the state of a key."""
        overlay = self._overlay()
        for state_id, kind in enumerate(self.codec.kinds):
            cell = cells.get(state_id)
            rules = kind.rules
            delta = rules.replacing_delta(cell) if cell else rules.clear_delta()
            overlay[state_id][place[1]] = delta
        self._change({place[0]: overlay})

    @contextmanager
    def opened(self, place: Place, now_ms: int) -> Iterator[KeyHandle]:
        """Yield the handle of a key, and commit the changes made in the block."""
        state = self._state()
        overlay = self._overlay()
        cursor = Cursor(now_ms)
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
        """Commit changes made by a test; raises Arrow's errors if a value does not fit."""
        changes = self.codec.encode(overlays)
        if not len(changes):
            return
        before = self._base.checkpoint_id
        with self._storage.create_writer(self.codec.schema.operator_id, KEY_GROUPS) as writer:
            writer.append_meta(self.codec.metadata_change())
            writer.append_batch(changes.key_groups, changes.values)
            start = writer.initial_sequence_number()
            checkpoint_id = before + 1
            log = writer.persist(start, checkpoint_id=checkpoint_id).result().job_manager_owned
        self._commit(log)
        if log is not None:  # so that the next look at the state does not read it
            name = log.state_handle_id
            self._view.stage(checkpoint_id, before, name, KEY_GROUPS, dict(overlays))


Open: TypeAlias = Callable[[object], AbstractContextManager[KeyHandle]]
"""Returns the handle of a key, whose changes are committed at the end of the block."""


class TesterHandle(StateVariables):
    """The handle of a tester, for the key set by `setGroupingKey`."""

    def __init__(
        self,
        open_key: Open,
        states: Sequence[StateDescriptor],
        drop: Callable[[str], None],
        time_mode: str,
    ) -> None:
        self._open_key = open_key
        self._kinds = {state.name: state.kind for state in states if state.name != TIMERS_NAME}
        self._drop = drop
        self._time_mode = time_mode
        self._watermark_ms = 0
        self.grouping_key: object = None

    def setGroupingKey(self, key: object) -> None:
        """Use the state and timers of *key* from now on."""
        self.grouping_key = key

    def setWatermark(self, watermarkMs: int) -> None:
        """Reject timers up to this watermark; called by the tester's `setWatermark`."""
        self._watermark_ms = watermarkMs

    def _variable(self, asked: WantedVariable) -> object:
        """Return a state variable for the current key; raises if the variable is unknown."""
        with self._open_key(self.grouping_key) as handle:
            handle.variable(asked)
        return _KEYED[asked.kind](self, asked)

    def call(self, asked: WantedVariable, method: str, *args: object) -> object:
        """Call a method of a state variable, and commit its changes."""
        with self._open_key(self.grouping_key) as handle:
            result: object = getattr(handle.variable(asked), method)(*args)
            return iter(list(result)) if isinstance(result, Iterator) else result

    def _timers(self) -> AbstractContextManager[KeyHandle]:
        if self._time_mode == "none":
            raise UnsupportedOperationError(NO_TIMERS, condition="UNSUPPORTED_OPERATION")
        return self._open_key(self.grouping_key)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key, later than the watermark."""
        with self._timers() as handle:
            if self._time_mode == "eventtime" and expiryTimestampMs <= self._watermark_ms:
                raise WrongTimeError(
                    f"a timer at {expiryTimestampMs} ms is not later than the watermark, "
                    f"{self._watermark_ms} ms"
                )
            handle.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        with self._timers() as handle:
            handle.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key in ascending order."""
        with self._timers() as handle:
            return handle.listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys, if it exists."""
        if stateName in self._kinds:
            self._drop(stateName)

    def deleteState(self, stateName: str) -> None:
        """Delete a state variable of the current key."""
        kind = self._kinds.get(stateName)
        if kind is None:
            raise MissingStateError(
                f"init does not create the state {stateName!r}; it creates {', '.join(self._kinds)}",
                condition="STATE_NOT_EXISTS",
            )
        self.call(WantedVariable(stateName, kind, ""), "clear")


def _keyed(sparks: type[BoundState]) -> type:
    """Return a class of state objects that use the current key of a tester."""

    def method(name: str) -> Callable[..., object]:
        def call(self: Any, *args: Any) -> Any:
            return self._handle.call(self._wanted, name, *args)

        return call

    def begin(self: Any, handle: TesterHandle, asked: WantedVariable) -> None:
        self._handle = handle
        self._wanted = asked

    methods = {name: method(name) for name in methods_of(sparks)}
    return type(f"Keyed{sparks.__name__}", (sparks,), {"__init__": begin, **methods})


_KEYED: Final = {classes.plain.kind: _keyed(classes.plain) for classes in STATE_CLASSES}
